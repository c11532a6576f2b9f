"""Workers that freeze, die, or lose Temporal or the journal during a call: no second effect, no payment too many."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import make_url
from temporalio.client import Client

from baton.contracts.turn import TurnResult
from baton.starter.scripted_model import Reply, Request, ScriptedModel, ScriptedToolCall
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from tests.harness.environment import KEY, Handle, Json, agent, ended, manifest
from tests.harness.postgres import PostgresServer
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.remote_agents import engine, engine_agent, said
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.tool_answers import plain_answer
from tests.harness.tool_server import Answer, ToolServer

pytestmark = pytest.mark.full

RUNS = 4
"""Calls of each kind at once."""

SECONDS = 6.0
"""How long the other side takes for an answer."""


def answer(request: Request) -> Reply:
    """Calls the tool ``order`` if the agent has it, and repeats its result; else it answers after a while."""
    if request.get("tools"):
        results = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
        return Reply(text=results[0]) if results else Reply(calls=[ScriptedToolCall(name="order")])
    return Reply(text="Because.", delay=SECONDS)


@dataclass
class Calls:
    """The calls of one kind: the manifests of the agent ``one`` that makes them, and their requests so far."""

    kind: str
    manifests: list[Json]
    requests: Callable[[], int]
    handles: list[Handle] = field(default_factory=list)

    async def turns(self) -> list[TurnResult]:
        """The turns of the agents, once they have ended."""
        return [await ended(handle, TurnResult) for handle in self.handles]

    async def check_answered(self) -> None:
        """Each call was answered, and made once."""
        for turn in await self.turns():
            assert (turn.stop_reason, turn.message) == ("completed", "Because."), (self.kind, turn.failure)
        assert self.requests() == RUNS, self.kind

    async def check_repeated_where_allowed(self) -> None:
        """A call that must not be made twice may have an unknown outcome; each other was made twice at most."""
        turns = await self.turns()
        if self.kind in ("POST", "engine"):
            assert self.requests() == RUNS, f"{self.kind}: no second effect"
            ends = [turn.message if turn.failure is None else turn.failure.message for turn in turns]
            assert all(end == "Because." or "is unknown" in str(end) for end in ends), (self.kind, ends)
        else:
            assert RUNS <= self.requests() <= 2 * RUNS, f"{self.kind}: one repetition of a call at most"
            assert {turn.message for turn in turns} == {"Because."}, self.kind


@dataclass
class TwoWorkers:
    """Two workers on one task queue, with one journal. Each kind of tool and engine has a server of its own."""

    client: Client
    model: ScriptedModel
    workers: list[WorkerProcess]

    async def begin(self, stack: contextlib.ExitStack, *kinds: str) -> list[Calls]:
        """Starts RUNS agents of each kind, and returns when their calls have reached the other side.

        Both workers make some of the calls; and of the next attempts at them, as Temporal still counts on a frozen one.
        """
        begun = [self._calls(kind, stack) for kind in kinds]
        for calls in begun:
            for _ in range(RUNS):
                given = {"agent": "one", "input": "Why?", "resources": calls.manifests}
                handle = await self.client.start_workflow(
                    "agent",
                    given,
                    id=f"lease-{uuid.uuid4().hex[:8]}",
                    task_queue=self.workers[0].task_queue,
                    task_timeout=WORKFLOW_TASK_TIMEOUT,
                )
                calls.handles.append(handle)
        while not all(calls.requests() >= RUNS for calls in begun):
            await asyncio.sleep(0.01)
        return begun

    def _calls(self, kind: str, stack: contextlib.ExitStack) -> Calls:
        """Calls whose answers take ``SECONDS``."""
        if kind == "model":
            return Calls(kind, [agent("one")], lambda: sum("tools" not in each.body for each in self.model.requests))
        server = stack.enter_context(ToolServer().serving())
        if "engine" in kind:
            server.answer = lambda _: said("Because.", delay=SECONDS)
            made = engine(server, idempotent=kind != "engine")
            return Calls(kind, [engine_agent("one"), made], lambda: len(server.seen))
        server.answer = lambda _: Answer("Because.", delay=SECONDS)
        tool = manifest("Tool", "order", {"type": "http", "http": {"url": server.url, "method": kind}})
        return Calls(kind, [agent("one", "order"), tool], lambda: len(server.seen))


@contextlib.asynccontextmanager
async def two_workers(
    client: Client, folder: Path, variables: dict[str, str], first: dict[str, str] | None = None
) -> AsyncIterator["TwoWorkers"]:
    """Two workers that run; ``first`` are other variables of the first one."""
    model = ScriptedModel(answer)
    with model.serve() as url:
        async with running(folder, {"OPENAI_BASE_URL": url, **variables}, first or {}) as workers:
            yield TwoWorkers(client, model, workers)


@contextlib.asynccontextmanager
async def running(folder: Path, variables: dict[str, str], first: dict[str, str]) -> AsyncIterator[list[WorkerProcess]]:
    common = {
        "BATON_HOME": str(folder),
        "BATON_INLINE_MANIFESTS": "all",
        "BATON_TASK_QUEUE": uuid.uuid4().hex,
        "BATON_GRACEFUL_SHUTDOWN": "1",
        "OPENAI_API_KEY": KEY,
        **variables,
    }
    environments = [{**common, **first}, common]
    workers = [
        WorkerProcess(process_env(**own), folder / f"worker-{number}.log") for number, own in enumerate(environments)
    ]
    for worker in workers:
        worker.start()
    try:
        while not all("Worker started on task queue" in worker.log.read_text() for worker in workers):
            await asyncio.sleep(0.05)
        yield workers
    finally:
        for worker in workers:
            await worker.stop()


async def freeze(worker: WorkerProcess, seconds: float) -> None:
    """Stops a worker's process for a while: it does not die, and its sockets stay open."""
    with worker.frozen():
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("seconds", [4, 12])
async def test_the_answer_of_a_worker_that_freezes_shorter_than_its_lease_counts_and_nothing_is_repeated(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path, seconds: float
) -> None:
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url, "BATON_CALL_LEASE": "20"}
    async with two_workers(client, tmp_path, where) as two:
        with contextlib.ExitStack() as stack:
            begun = await two.begin(stack, "POST", "GET", "model", "engine")
            await freeze(two.workers[0], seconds)
            for calls in begun:
                await calls.check_answered()


async def test_a_call_is_taken_over_only_when_the_lease_of_its_frozen_worker_has_ended(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path
) -> None:
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url, "BATON_CALL_LEASE": "2"}
    async with two_workers(client, tmp_path, where) as two:
        with contextlib.ExitStack() as stack:
            begun = await two.begin(stack, "POST", "GET", "model", "engine", "idempotent engine")
            await freeze(two.workers[0], 20)
            for calls in begun:
                await calls.check_repeated_where_allowed()


async def test_the_calls_of_a_killed_worker_are_taken_over(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path
) -> None:
    """At once with a journal on this machine, as a process that has ended holds no lease there."""
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url}
    async with two_workers(client, tmp_path, where) as two:
        with contextlib.ExitStack() as stack:
            begun = await two.begin(stack, "POST", "GET", "model")
            two.workers[0].kill()
            killed = time.monotonic()
            for calls in begun:
                await calls.check_repeated_where_allowed()
            print(f"{time.monotonic() - killed:.1f} s from the kill to the last answer")


async def test_a_worker_that_can_not_reach_temporal_goes_on_with_its_calls_and_their_answers_count(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path
) -> None:
    async with TcpProxy(int(server.address.rpartition(":")[2])) as proxy:
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url}
        alone = {"TEMPORAL_ADDRESS": proxy.address}
        async with two_workers(client, tmp_path, where, alone) as two:
            with contextlib.ExitStack() as stack:
                begun = await two.begin(stack, "POST", "model", "engine")
                await proxy.cut(15)
                for calls in begun:
                    await calls.check_answered()


@pytest.mark.parametrize("seconds", [4, 12])
async def test_a_worker_that_can_not_reach_the_journal_for_a_while_writes_its_answers_when_it_can(
    client: Client, server: EmbeddedServer, postgres: PostgresServer, tmp_path: Path, seconds: float
) -> None:
    journal = make_url(await postgres.database())
    async with TcpProxy(postgres.port) as proxy:
        port = int(proxy.address.rpartition(":")[2])
        alone = {"BATON_JOURNAL_URL": journal.set(port=port).render_as_string(hide_password=False)}
        address = journal.render_as_string(hide_password=False)
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": address, "BATON_CALL_LEASE": "6"}
        async with two_workers(client, tmp_path, where, alone) as two:
            with contextlib.ExitStack() as stack:
                begun = await two.begin(stack, "POST", "model", "engine")
                await proxy.cut(seconds)
                for calls in begun:
                    await calls.check_answered()
