"""Two workers that share calls whose answers take a while, so that a test can interrupt one worker meanwhile."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client

from baton.contracts.turn import TurnResult
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request, ScriptedModel, ScriptedToolCall
from tests.harness.environment import KEY, Handle, Json, agent, ended, manifest
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.remote_agents import engine, engine_agent, said
from tests.harness.tool_answers import plain_answer
from tests.harness.tool_server import Answer, ToolServer

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

    @property
    def must_not_repeat(self) -> bool:
        """Whether a second request would have a second effect."""
        return self.kind in ("POST", "engine")

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
        if self.must_not_repeat:
            assert self.requests() == RUNS, f"{self.kind}: no second effect"
            assert all(turn.message == "Because." or is_unknown(turn) for turn in turns), (self.kind, turns)
        else:
            assert RUNS <= self.requests() <= 2 * RUNS, f"{self.kind}: one repetition of a call at most"
            assert {turn.message for turn in turns} == {"Because."}, self.kind


def is_unknown(turn: TurnResult) -> bool:
    """Whether the turn failed, or its tool's result says so, because nobody knows whether a call was executed."""
    return "is unknown" in str(turn.failure.message if turn.failure else turn.message)


@dataclass
class TwoWorkers:
    """Two workers on one task queue, with one journal, and the server of all tools and engines.

    ``url``: where the workers reach that server.
    """

    client: Client
    model: ScriptedModel
    server: ToolServer
    url: str
    workers: list[WorkerProcess]
    _batches: int = 0

    async def begin(self, *kinds: str) -> list[Calls]:
        """Starts RUNS agents of each kind, and returns when their calls have reached the other side.

        Both workers make some of the calls; and of the next attempts at them, as Temporal still counts on a frozen one.
        """
        self._batches += 1
        begun = [self._calls(kind) for kind in kinds]
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

    def _calls(self, kind: str) -> Calls:
        """Calls whose answers take ``SECONDS``."""
        if kind == "model":
            before = self._model_calls()
            return Calls(kind, [agent("one")], lambda: self._model_calls() - before)
        path = f"/{kind.replace(' ', '-')}/{self._batches}"
        if "engine" in kind:
            made = engine(self.server, address=f"{self.url}{path}", idempotent=kind != "engine")
            manifests = [engine_agent("one"), made]
        else:
            tool = manifest("Tool", "order", {"type": "http", "http": {"url": f"{self.url}{path}", "method": kind}})
            manifests = [agent("one", "order"), tool]
        return Calls(kind, manifests, lambda: sum(seen.path.startswith(path) for seen in self.server.seen))

    def _model_calls(self) -> int:
        """How many requests the model got from agents without tools."""
        return sum("tools" not in request.body for request in self.model.requests)


@contextlib.asynccontextmanager
async def two_workers(
    client: Client,
    folder: Path,
    variables: dict[str, str],
    first: dict[str, str] | None = None,
) -> AsyncIterator[TwoWorkers]:
    """Two workers that run; ``first`` are other variables of the first one."""
    with called_servers() as (model, model_url, server):
        async with running(folder, {"OPENAI_BASE_URL": model_url, **variables}, first or {}) as workers:
            yield TwoWorkers(client, model, server, server.url, workers)


@contextlib.contextmanager
def called_servers() -> Iterator[tuple[ScriptedModel, str, ToolServer]]:
    """The model with its base URL, and the server of the tools and engines; answers take ``SECONDS``."""
    model = ScriptedModel(answer)
    with model.serve() as url, ToolServer().serving() as server:

        def respond(number: int) -> Answer:
            is_engine = "engine" in server.seen[number - 1].path
            return said("Because.", delay=SECONDS) if is_engine else Answer("Because.", delay=SECONDS)

        server.answer = respond
        yield model, url, server


@contextlib.asynccontextmanager
async def running(
    folder: Path, variables: dict[str, str], first: dict[str, str], kind: type[WorkerProcess] = WorkerProcess
) -> AsyncIterator[list[WorkerProcess]]:
    """Two workers that run with these environment variables; ``first`` are other ones of the first worker."""
    common = {
        "BATON_HOME": str(folder),
        "BATON_INLINE_MANIFESTS": "all",
        "BATON_TASK_QUEUE": uuid.uuid4().hex,
        "BATON_GRACEFUL_SHUTDOWN": "1",
        "OPENAI_API_KEY": KEY,
        **variables,
    }
    environments = [{**common, **first}, common]
    workers = [kind(process_env(**own), folder / f"worker-{number}.log") for number, own in enumerate(environments)]
    for worker in workers:
        worker.start()
    try:
        await until_started(workers)
        yield workers
    finally:
        for worker in workers:
            await worker.stop()


async def until_started(workers: Sequence[WorkerProcess]) -> None:
    """Waits until every worker polls its task queue, also after a restart."""
    while not all(worker.log.read_text().count("Worker started on task queue") >= worker.started for worker in workers):
        await asyncio.sleep(0.05)
