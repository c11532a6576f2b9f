"""An environment of real processes: a Temporal server and workers that can be killed, and a scripted model server."""

import asyncio
import contextlib
import json
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]
import yaml
from temporalio import workflow
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from baton.contracts.settings import TASK_QUEUE
from baton.starter.server.embedded import TUNING, EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request, ScriptedModel
from tests.chaos.secret_search import SecretSearch
from tests.harness.environment import KEY, Handle, Json, manifest
from tests.harness.ports import own_ports
from tests.harness.processes import WorkerProcess, process_env

SECRET_MODEL_KEY = "sk-held-fedcba9876543210"
"""The API key of the Model ``secret-model``, from a Secret. All other models use the key of the environment.
The tokens of its answers are bounded, so a budget knows the most that a call uses."""

T = TypeVar("T")
Answer = Callable[[Request], Reply]
SECRETS = (KEY, SECRET_MODEL_KEY)
WORKS = "Worker started on task queue"


APPLICATION_QUEUE = "application"
"""The task queue of the application whose workflows start runs as child workflows."""


@workflow.defn(name="application")
class Application:
    """A workflow of an application that knows Baton's runs by their names alone, and waits for one."""

    @workflow.run
    async def run(self, child: str, given: Json, child_id: str) -> Any:
        """Starts a run as a child workflow; its result."""
        return await workflow.execute_child_workflow(
            child,
            given,
            id=child_id,
            task_queue=TASK_QUEUE,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        )


class ProcessEnvironment:
    """A server and its workers, each a process of its own, and a model that quotes the API key of the request.

    ``below_application``: workflows of an application start all runs, as their child workflows.
    """

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path, answer: Answer) -> None:
        self.server, self.client, self.folder = server, client, folder
        self.model = ScriptedModel(lambda request: self._quoting(answer(request)))
        self.model.on_headers = self._note_key
        self.workers: list[WorkerProcess] = []
        self._key, self._used = "", set[str]()
        self._started = set[str]()
        self.model_url = ""
        self.below_application = False

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        answer: Answer,
        workers: int = 1,
        tuning: Sequence[tuple[str, str]] = (),
        own: Callable[[Path], Sequence[Json]] = lambda _: (),
    ) -> AsyncIterator["ProcessEnvironment"]:
        """Runs an environment in a new folder: so many workers that are ready, and a server with more ``tuning``.

        ``own`` gives further manifests of the workers for the folder.
        """
        with tempfile.TemporaryDirectory(prefix="baton-proof-") as name, StateDir(Path(name)).lock("dev") as lock:
            assert lock
            server = EmbeddedServer(Path(name), lock, *own_ports(), tuning=(*TUNING, *tuning))
            env = cls(server, await server.start(), Path(name), answer)
            with env.model.serve() as url:
                env.model_url = url
                try:
                    env._start_workers(url, workers, own(env.folder))
                    await env.workers_ready()
                    yield env
                finally:
                    for worker in env.workers:
                        await worker.stop()
                    await server.stop()

    def _start_workers(self, url: str, workers: int, own: Sequence[Json]) -> None:
        config = {
            "baseUrl": {"value": url},
            "apiKey": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
            "properties": {"max_tokens": {"value": "60"}},
        }
        held = manifest(
            "Model",
            "secret-model",
            {"type": "openai", "model": {"value": "secret-model"}, "config": {"openai": config}},
        )
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s"},
            "stringData": {"token": SECRET_MODEL_KEY},
        }
        given = self.folder / "given" / "secret.yaml"
        given.parent.mkdir()
        given.write_text(yaml.safe_dump_all([secret, held, *own]))
        env = process_env(TEMPORAL_ADDRESS=self.server.address, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
        env["BATON_ALLOW_PRIVATE_HOSTS"] = "1"  # what runs call elsewhere is on this machine
        for number in range(workers):
            log = self.folder / f"worker-{number}.log"
            self.workers.append(WorkerProcess({**env, "BATON_HOME": str(self.folder)}, log, given))
            self.workers[-1].start()

    def _note_key(self, headers: Mapping[str, str]) -> None:
        self._key = headers["authorization"].removeprefix("Bearer ")
        self._used.add(self._key)

    def _quoting(self, reply: Reply) -> Reply:
        """The reply with the API key in place of KEY: it must be redacted wherever it is shown or stored."""
        quoted = reply.text.replace("KEY", self._key)
        return reply.model_copy(update={"text": quoted})

    async def workers_ready(self) -> None:
        """Waits until every worker polls its task queue."""
        while not all(worker.log.read_text().count(WORKS) >= worker.started for worker in self.workers):
            await asyncio.sleep(0.05)

    async def start(self, workflow: str, given: Json, name: str, signal: str | None = None) -> Handle:
        """Starts a run, with a signal that arrives before its first step."""
        self._started.add(name)
        if self.below_application:
            assert signal is None
            return await self._start_below_application(workflow, given, name)
        options: dict[str, Any] = {
            "task_queue": TASK_QUEUE,
            "task_timeout": WORKFLOW_TASK_TIMEOUT,
            "start_signal": signal,
        }
        return await self.client.start_workflow(workflow, given, id=name, **options)

    async def _start_below_application(self, workflow: str, given: Json, name: str) -> Handle:
        arguments = [workflow, given, name]
        await self.client.start_workflow(
            "application", args=arguments, id=f"application-{name}", task_queue=APPLICATION_QUEUE
        )
        child = self.client.get_workflow_handle(name)
        while True:
            with contextlib.suppress(RPCError):  # it is not started yet
                await child.describe()
                return child
            await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def started_by(self, application: int) -> AsyncIterator[None]:
        """While the block runs, an ``application`` starts all runs, in a worker of its own in this process."""
        if not application:
            yield
            return
        self.below_application = True
        runner = UnsandboxedWorkflowRunner()
        try:
            async with Worker(
                self.client, task_queue=APPLICATION_QUEUE, workflows=[Application], workflow_runner=runner
            ):
                yield
        finally:
            self.below_application = False

    def rows(self, run: str = "") -> list[Json]:
        """The journal's messages of one run, or of all runs; empty if there is no journal yet."""
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self.journal)) as database:
            found = database.execute("select message from baton_messages where id like ?", (f"{run}%",)).fetchall()
            return [json.loads(message) for (message,) in found]
        return []

    def has_noted_task(self, run: Handle) -> bool:
        """Whether the worker has noted the task on another server that a run waits for."""
        with contextlib.closing(sqlite3.connect(self.journal)) as database:
            noted = "select count(*) from baton_messages where id like ?"
            return bool(database.execute(noted, (f"{run.first_execution_run_id}/%/task",)).fetchone()[0])

    def count(self) -> int:
        """How many rows the journal has."""
        with contextlib.closing(sqlite3.connect(self.journal)) as database:
            return int(database.execute("select count(*) from baton_messages").fetchone()[0])

    @property
    def journal(self) -> Path:
        """The journal's SQLite file."""
        return self.folder / "journal.db"

    @property
    def server_process(self) -> psutil.Process:
        """The Temporal server itself, a child process of the shell that started it."""
        assert self.server._process
        below = psutil.Process(self.server._process.pid).children(recursive=True)
        [server] = [each for each in below if each.name() == "temporal"]
        return server

    async def kill_server(self) -> None:
        """Kills the server as ``kill -9`` does."""
        assert self.server._process
        self.server_process.kill()
        await self.server._process.wait()

    async def kill(self, *, worker: bool, server: bool) -> float:
        """Kills the first worker, the server or both, and starts them again at once; the time of the restart."""
        if worker:
            self.workers[0].kill()
        if server:
            await self.kill_server()
        else:
            self.server_process.resume()
        restarted = time.time()
        if server:
            await self.server.start()
        if worker:  # it ends if it finds no server
            self.workers[0].start()
        return restarted

    def memory(self) -> float:
        """Resident memory of the first worker, in MB."""
        return float(psutil.Process(self.workers[0].pid).memory_info().rss) / 1e6

    async def _listed(self) -> list[WorkflowExecution]:
        """All runs, once the server lists those that were started and their ends, which it does a moment late."""
        while True:
            listed = [run async for run in self.client.list_workflows("")]
            ended = {run.id for run in listed if run.status != WorkflowExecutionStatus.RUNNING}
            late = [run for run in self._started if run not in ended and not await is_running(self.client, run)]
            if self._started <= {run.id for run in listed} and not late:
                return listed
            await asyncio.sleep(0.1)

    async def search(self) -> Json:
        """Searches histories, journal, logs and the server's database for every secret."""
        search = SecretSearch(SECRETS)
        runs = [(run.id, run.run_id) for run in await self._listed()]
        for some in batched(runs, 50):
            handles = [self.client.get_workflow_handle(name, run_id=run_id) for name, run_id in some]
            for history in await asyncio.gather(*(handle.fetch_history() for handle in handles)):
                search.history(history.workflow_id, history.events)
        for file in sorted(self.folder.rglob("*")):
            if file.is_file() and file.parent.name != "given":
                search.file(file)
        return {"secrets used": len(self._used), **search.found}


async def is_running(client: Client, run: str) -> bool:
    """Whether a run has not ended, as it says itself."""
    return (await client.get_workflow_handle(run).describe()).status == WorkflowExecutionStatus.RUNNING


def batched(all_: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """Slices of so many elements."""
    return (all_[start : start + count] for start in range(0, len(all_), count))
