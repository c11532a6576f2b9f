"""Workers and servers that a test can kill, with a team of three whose replies are numbered."""

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client

from baton.contracts.decisions import PendingDecision
from baton.contracts.settings import TASK_QUEUE
from baton.starter.runs.decisions import pending_decisions
from baton.starter.runs.runs import NotServedError
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request, ScriptedModel
from tests.harness.environment import KEY, Handle, agent, team
from tests.harness.ports import own_ports
from tests.harness.processes import WorkerProcess, kill_server, process_env, server_process

MANIFESTS = [agent("one"), agent("two"), agent("three"), team("team", "one", "two", "three", maxTurns=3)]
REPLIES = [f"answer {number}" for number in range(1, 10)]


async def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds, and looks every millisecond."""
    while not condition():
        await asyncio.sleep(0.001)


def journal_rows(journal: Path) -> int:
    """How many rows a journal has; 0 if there is none yet."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(journal)) as database:
        return int(database.execute("select count(*) from baton_messages").fetchone()[0])
    return 0


class Kill:
    """A kill at a moment. ``answer`` is that of a model, but for calls that it gets from the moment to the kill.

    Those it leaves unanswered: an answer that is sent, and not yet written when the worker dies, is asked for again.
    """

    def __init__(self, answer: Callable[[Request], Reply], is_reached: Callable[[], bool]) -> None:
        self._answer, self._is_reached = answer, is_reached
        self.is_over = False

    def answer(self, request: Request) -> Reply:
        """The reply of the model."""
        hangs = not self.is_over and self._is_reached()
        return self._answer(request).model_copy(update={"hang": hangs})


async def pending_of(run: Handle) -> Sequence[PendingDecision]:
    """What a run waits for; nothing while its worker is dead, which a busy machine takes a while to start again."""
    with contextlib.suppress(NotServedError):
        return await pending_decisions(run._client, run.id)
    return ()


class KillableWorker:
    """A worker process that can be killed, with its client, model and journal."""

    def __init__(self, client: Client, model: ScriptedModel, worker: WorkerProcess, journal: Path) -> None:
        self.client, self.model, self.worker, self.journal = client, model, worker, journal
        self.task_queue = worker.task_queue

    @classmethod
    @contextlib.asynccontextmanager
    async def ready(
        cls, client: Client, address: str, folder: Path, answer: Callable[[Request], Reply], **env: str
    ) -> AsyncIterator["KillableWorker"]:
        """A worker of the server at ``address``, on a task queue of its own, that is started later.

        At the end it is stopped. It uses what runs bring, since the servers of tests are in its own network.
        """
        model = ScriptedModel(answer)
        with model.serve() as url:
            own = {"TEMPORAL_ADDRESS": address, "BATON_HOME": str(folder), "BATON_INLINE_MANIFESTS": "all"}
            given = process_env(
                **own, BATON_TASK_QUEUE=uuid.uuid4().hex, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY, **env
            )
            killable = cls(client, model, WorkerProcess(given, folder / "worker.log"), folder / "journal.db")
            try:
                yield killable
            finally:
                await killable.worker.stop()

    async def start(self, workflow: str, **given: Any) -> Handle:
        """Starts the worker and a run with this input."""
        self.worker.start()
        options: dict[str, Any] = {"task_queue": self.task_queue, "task_timeout": WORKFLOW_TASK_TIMEOUT}
        return await self.client.start_workflow(workflow, given, id=f"killed-{uuid.uuid4().hex[:8]}", **options)

    def restart(self) -> None:
        """Kills the worker, and starts it again."""
        self.worker.kill()
        self.worker.start()

    def journal_rows(self) -> int:
        """How many rows the journal has."""
        return journal_rows(self.journal)


class KillableEnvironment:
    """A Temporal server and a worker process that can be killed.

    The model takes ``slow`` seconds for the fifth answer, and fails ``failing`` times before it.
    """

    def __init__(
        self, server: EmbeddedServer, client: Client, folder: Path, answer: Callable[[Request], Reply] | None = None
    ) -> None:
        self.server, self.client, self.journal = server, client, folder / "journal.db"
        self.model = ScriptedModel(answer or self.answer)
        self.slow, self.failing = 1.0, 0
        self.worker: WorkerProcess

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, folder: Path, answer: Callable[[Request], Reply] | None = None, /, **variables: str
    ) -> AsyncIterator["KillableEnvironment"]:
        """A server and a worker, which uses what runs bring, since the servers of tests are in its own network."""
        with StateDir(folder / "server").lock("dev") as lock:
            assert lock
            server = EmbeddedServer(folder / "server", lock, *own_ports())
            killable = cls(server, await server.start(), folder, answer)
            with killable.model.serve() as url:
                own = {"TEMPORAL_ADDRESS": server.address, "BATON_HOME": str(folder), "BATON_INLINE_MANIFESTS": "all"}
                env = process_env(**own, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY, **variables)
                killable.worker = WorkerProcess(env, folder / "worker.log")
                killable.worker.start()
                yield killable
                await killable.worker.stop()
            await server.stop()

    def answer(self, request: Request) -> Reply:
        """A reply with its number."""
        number = reply_count(request) + 1
        if number == 5 and len(self.model.requests) < 5 + self.failing:
            return Reply(status=503)
        return Reply(text=f"answer {number}", delay=self.slow if number == 5 else 0.02)

    async def start(self, workflow: str, given: dict[str, Any]) -> Handle:
        """Starts a run."""
        options: dict[str, Any] = {"task_queue": TASK_QUEUE, "task_timeout": WORKFLOW_TASK_TIMEOUT}
        return await self.client.start_workflow(workflow, given, id="run", **options)

    async def start_team(self) -> Handle:
        """Starts three rounds of a team of three."""
        return await self.start("round-robin", {"team": "team", "input": "Why?", "resources": MANIFESTS})

    def journal_rows(self) -> int:
        """How many rows the journal has."""
        return journal_rows(self.journal)

    @contextlib.asynccontextmanager
    async def silent_server(self) -> AsyncIterator[None]:
        """Holds the server up while the block runs, so that it notes nothing."""
        assert self.server._process
        server = server_process(self.server._process.pid)
        server.suspend()
        try:
            yield
        finally:
            server.resume()

    async def kill_server(self) -> None:
        """Kills the server."""
        assert self.server._process
        kill_server(self.server._process.pid)
        await self.server._process.wait()

    async def stop_server_for(self, seconds: float) -> None:
        """Kills the server, and starts it again after so many seconds."""
        await self.kill_server()
        await asyncio.sleep(seconds)
        await self.server.start()


def reply_count(request: Request) -> int:
    """How many replies a conversation holds."""
    return sum(message["role"] == "assistant" for message in request["messages"])
