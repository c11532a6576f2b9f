"""Workers that freeze, die, or lose Temporal or the journal during a call: no second effect, no payment too many."""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url
from temporalio.client import Client

from baton.contracts.turn import TurnResult
from baton.journal.leases import LEASE_SECONDS
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

RUNS = 6

SECONDS = 6.0
"""How long the other side takes for an answer."""


def answer(request: Request) -> Reply:
    """Calls the tool ``order`` if the agent has it, and repeats its result; else it answers after a while."""
    if request.get("tools"):
        results = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
        return Reply(text=results[0]) if results else Reply(calls=[ScriptedToolCall(name="order")])
    return Reply(text="Because.", delay=SECONDS)


@dataclass
class Call:
    """A kind of call: the manifests of the agent ``one`` that makes it, its good answer, and its requests so far."""

    manifests: list[Json]
    says: str
    requests: Callable[[], int]


@dataclass
class TwoWorkers:
    """Two workers on one task queue, with one journal."""

    client: Client
    model: ScriptedModel
    tool_server: ToolServer
    workers: list[WorkerProcess]

    def call(self, kind: str) -> Call:
        """A call of a model, a tool or an engine, whose answer takes ``SECONDS``."""
        slow = Answer("Because.", delay=SECONDS)
        self.tool_server.answer = lambda _: slow
        seen = self.tool_server.seen
        match kind:
            case "model":
                return Call([agent("one")], "Because.", lambda: len(self.model.requests))
            case "engine" | "idempotent engine":
                self.tool_server.answer = lambda _: said("Because.", delay=SECONDS)
                made = engine(self.tool_server, idempotent=kind != "engine")
                return Call([engine_agent("one"), made], "Because.", lambda: len(seen))
            case method:
                http = {"url": self.tool_server.url, "method": method}
                tool = manifest("Tool", "order", {"type": "http", "http": http})
                return Call([agent("one", "order"), tool], "Because.", lambda: len(seen))

    async def begin(self, call: Call) -> list[Handle]:
        """Starts RUNS agents, and returns when their calls have reached the other side.

        Both workers make some of the calls; and of the next attempts at them, as Temporal still counts on a frozen one.
        """
        handles = [
            await self.client.start_workflow(
                "agent",
                {"agent": "one", "input": "Why?", "resources": call.manifests},
                id=f"lease-{uuid.uuid4().hex[:8]}",
                task_queue=self.workers[0].task_queue,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
            )
            for _ in range(RUNS)
        ]
        while call.requests() < RUNS:
            await asyncio.sleep(0.01)
        return handles


@contextlib.asynccontextmanager
async def two_workers(
    client: Client, folder: Path, variables: dict[str, str], first: dict[str, str] | None = None
) -> AsyncIterator["TwoWorkers"]:
    """Two workers that run; ``first`` are other variables of the first one."""
    model = ScriptedModel(answer)
    with model.serve() as url, ToolServer().serving() as tool_server:
        async with running(folder, {"OPENAI_BASE_URL": url, **variables}, first or {}) as workers:
            yield TwoWorkers(client, model, tool_server, workers)


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
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(worker.pid, signal.SIGCONT)


@pytest.mark.parametrize("seconds", [4, 12])
@pytest.mark.parametrize("kind", ["POST", "GET", "model", "engine"])
async def test_the_answer_of_a_worker_that_freezes_shorter_than_its_lease_counts_and_nothing_is_repeated(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path, kind: str, seconds: float
) -> None:
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url}
    async with two_workers(client, tmp_path, where) as two:
        call = two.call(kind)
        handles = await two.begin(call)
        await freeze(two.workers[0], seconds)
        for handle in handles:
            turn = await ended(handle, TurnResult)
            assert (turn.stop_reason, turn.message) == ("completed", call.says), turn.failure
        assert call.requests() == RUNS


@pytest.mark.parametrize("kind", ["POST", "GET", "model", "engine", "idempotent engine"])
async def test_a_call_is_taken_over_only_when_the_lease_of_its_frozen_worker_has_ended(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path, kind: str
) -> None:
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url, "BATON_CALL_LEASE": "2"}
    async with two_workers(client, tmp_path, where) as two:
        call = two.call(kind)
        handles = await two.begin(call)
        await freeze(two.workers[0], 20)
        turns = [await ended(handle, TurnResult) for handle in handles]
        if kind in ("POST", "engine"):
            assert call.requests() == RUNS, "no second effect"
            ends = [turn.message if turn.failure is None else turn.failure.message for turn in turns]
            assert all(end == call.says or "whether it was executed is unknown" in end for end in ends), ends
        else:
            assert RUNS <= call.requests() <= 2 * RUNS, "one repetition of a call at most"
            assert {turn.message for turn in turns} == {call.says}


@pytest.mark.parametrize("kind", ["POST", "GET", "model"])
async def test_the_calls_of_a_killed_worker_are_taken_over_and_at_once_with_a_journal_on_this_machine(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path, kind: str
) -> None:
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url}
    async with two_workers(client, tmp_path, where) as two:
        call = two.call(kind)
        handles = await two.begin(call)
        two.workers[0].kill()
        killed = time.monotonic()
        turns = [await ended(handle, TurnResult) for handle in handles]
        seconds = time.monotonic() - killed
        print(f"{kind}: {seconds:.1f} s from the kill to the last answer, {call.requests()} requests")
        if kind == "POST":
            assert call.requests() == RUNS
            assert {turn.message == call.says or "is unknown" in turn.message for turn in turns} == {True}
        else:
            assert {turn.message for turn in turns} == {call.says}
        # The heartbeats' timeout, Temporal's delay of the next attempt, and the call.
        assert seconds < 12 + SECONDS + (0 if journal_url.startswith("sqlite") else LEASE_SECONDS)


@pytest.mark.parametrize("kind", ["POST", "model", "engine"])
async def test_a_worker_that_can_not_reach_temporal_goes_on_with_its_calls_and_their_answers_count(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path, kind: str
) -> None:
    async with TcpProxy(int(server.address.rpartition(":")[2])) as proxy:
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url}
        alone = {"TEMPORAL_ADDRESS": proxy.address}
        async with two_workers(client, tmp_path, where, alone) as two:
            call = two.call(kind)
            handles = await two.begin(call)
            await proxy.cut(15)
            for handle in handles:
                turn = await ended(handle, TurnResult)
                assert (turn.stop_reason, turn.message) == ("completed", call.says), turn.failure
            assert call.requests() == RUNS


@pytest.mark.parametrize("seconds", [4, 12])
@pytest.mark.parametrize("kind", ["POST", "model", "engine"])
async def test_a_worker_that_can_not_reach_the_journal_for_a_while_writes_its_answers_when_it_can(
    client: Client, server: EmbeddedServer, postgres: PostgresServer, tmp_path: Path, kind: str, seconds: float
) -> None:
    journal = make_url(await postgres.database())
    async with TcpProxy(postgres.port) as proxy:
        port = int(proxy.address.rpartition(":")[2])
        alone = {"BATON_JOURNAL_URL": journal.set(port=port).render_as_string(hide_password=False)}
        address = journal.render_as_string(hide_password=False)
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": address, "BATON_CALL_LEASE": "6"}
        async with two_workers(client, tmp_path, where, alone) as two:
            call = two.call(kind)
            handles = await two.begin(call)
            await proxy.cut(seconds)
            for handle in handles:
                turn = await ended(handle, TurnResult)
                assert (turn.stop_reason, turn.message) == ("completed", call.says), turn.failure
            assert call.requests() == RUNS
