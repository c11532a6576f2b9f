"""The test environment: a worker, a journal and a scripted model, and builders for manifests and scripts."""

import asyncio
import contextlib
import dataclasses
import json
import os
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import yaml
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError

from baton import worker
from baton.contracts.status import Status
from baton.contracts.turn import TurnResult
from baton.journal.database import Database
from baton.journal.engine import connect as connect_journal
from baton.journal.external_storage import JournalStorageDriver
from baton.journal.migrate import migrate
from baton.resources.documents import Document
from baton.resources.functions import Function
from baton.resources.loader import Loaded, load_documents
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT, with_external_storage
from baton.temporal.search_attributes import live_workers
from baton.testing import Reply, Request, Script, ScriptedModel, ScriptLine
from tests.harness.replayer import replay

Json = dict[str, Any]
Handle = WorkflowHandle[Any, Any]
Ended = TypeVar("Ended", TurnResult, Status)

KEY = "sk-test-0123456789abcdef"
"""The API key of every test. It must not appear in any output."""


def agent(name: str, *tools: str, **spec: Any) -> Json:
    """An Agent whose system prompt is ``You are NAME.``"""
    tool_entries = [{"name": tool} for tool in tools]
    return manifest(
        "Agent", name, {"prompt": f"You are {name}.", **({"tools": tool_entries} if tool_entries else {}), **spec}
    )


def team(name: str, *members: str, strategy: str = "round-robin", **spec: Any) -> Json:
    """A Team of agents or teams."""
    return manifest("Team", name, {"strategy": strategy, "members": [{"name": member} for member in members], **spec})


def manifest(kind: str, name: str, spec: Json) -> Json:
    """A manifest of one of ARK's kinds."""
    return {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def line(name: str, *say: str | Json) -> ScriptLine:
    """A script line: the replies of the agent of that name, in order."""
    return ScriptLine.model_validate({"system": f"You are {name}.", "agent": name, "say": [*say]})


def call(tool: str, text: str = "", **arguments: Any) -> Json:
    """A scripted reply that calls a tool."""
    return {"text": text, "calls": [{"name": tool, "arguments": arguments}]}


_tables: list[bytes] = []
"""The file of an empty journal. Creating its tables is a tenth of the work of a test."""


def create_journal(file: Path) -> None:
    """Creates an empty journal as the first worker does, if there is none. It gets its identity from that worker."""
    if file.exists():
        return
    if not _tables:
        asyncio.run(_create_tables(file))
        _tables.append(file.read_bytes())
    file.write_bytes(_tables[0])


async def _create_tables(file: Path) -> None:
    engine = connect_journal(f"sqlite:///{file}")
    await migrate(engine)
    await engine.dispose()


@dataclass
class Environment:
    """A worker on a task queue of its own, with a journal and a scripted model.

    ``catalog`` are the worker's own manifests; ``answer`` replies to each request of the model.
    """

    client: Client
    folder: Path
    model: ScriptedModel
    model_url: str
    task_queue: str
    catalog: Loaded
    journal_url: str = ""
    encryption_keys: str = ""
    inline_manifests: str = "all"
    variables: Mapping[str, str] = field(default_factory=dict)
    dialect: str = "baton"
    answer: Callable[[Request], Reply] = lambda _: Reply(text="…")
    started: list[Handle] = field(default_factory=list, init=False)

    replays: ClassVar[bool] = True
    """Whether every run of every test is replayed. The quick tests leave that, a fifth of their time, to ``--full``."""

    @property
    def model_host(self) -> str:
        """The host and the port of the model's server, as errors name it."""
        return urlsplit(self.model_url).netloc

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        client: Client,
        folder: Path,
        catalog: Loaded | None = None,
        journal_url: str = "",
        functions: Sequence[Function] = (),
        encryption_keys: str = "",
        variables: Mapping[str, str] | None = None,
        dialect: str = "baton",
    ) -> AsyncIterator["Environment"]:
        """Runs an environment while the block runs; at the end every closed run of its task queue may be replayed."""
        model = ScriptedModel(lambda request: env.answer(request))
        with model.serve() as url:
            if not journal_url:
                await asyncio.to_thread(create_journal, folder / "journal.db")
            env = cls(client, folder, model, url, uuid.uuid4().hex, catalog or Loaded(), journal_url, encryption_keys)
            env.dialect, env.variables = dialect, variables or {}
            async with worker.run_worker(client, env.catalog, env.worker_env, functions):
                await env._until_listed()
                yield env
                if cls.replays:
                    await env.replay_closed_runs()

    @contextlib.asynccontextmanager
    async def without_cache(self) -> AsyncIterator["Environment"]:
        """The same environment with a worker that caches no workflow, and so replays a run at every step."""
        uncached = dataclasses.replace(self, task_queue=uuid.uuid4().hex)
        self.model._answer = lambda request: uncached.answer(request)
        async with worker.run_worker(
            self.client, self.catalog, {**uncached.worker_env, "BATON_MAX_CACHED_WORKFLOWS": "0"}
        ):
            yield uncached

    @contextlib.asynccontextmanager
    async def with_manifests(self, manifests: Iterable[Json]) -> AsyncIterator["Environment"]:
        """The same environment with a worker on another task queue that has these manifests."""
        loaded = load_documents([Document("manifests.yaml", each, {}) for each in manifests])
        other = dataclasses.replace(self, task_queue=uuid.uuid4().hex, catalog=loaded)
        self.model._answer = lambda request: other.answer(request)
        async with worker.run_worker(self.client, loaded, other.worker_env):
            await other._until_listed()
            yield other

    async def _until_listed(self) -> None:
        """Waits until Temporal lists the worker, if it has manifests: a gateway serves those of listed workers."""
        while self.catalog.manifests and not await live_workers(self.client, self.task_queue):
            await asyncio.sleep(0.01)

    @property
    def worker_env(self) -> dict[str, str]:
        """The environment variables of the worker."""
        secrets = {
            "OPENAI_BASE_URL": self.model_url,
            "OPENAI_API_KEY": KEY,
            "BATON_ENCRYPTION_KEYS": self.encryption_keys,
        }
        where = {"BATON_HOME": str(self.folder), "BATON_JOURNAL_URL": self.journal_url}
        trust = {"BATON_INLINE_MANIFESTS": self.inline_manifests, "BATON_DIALECT": self.dialect}
        traces = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
        return {**where, "BATON_TASK_QUEUE": self.task_queue, **trust, **secrets, **traces, **self.variables}

    @property
    def journal_address(self) -> str:
        """The URL of the journal's database."""
        return self.journal_url or f"sqlite:///{self.journal}"

    @property
    def journal(self) -> Path:
        """The journal's SQLite file, unless the journal is elsewhere."""
        return self.folder / "journal.db"

    @property
    def journal_bytes(self) -> bytes:
        """All that the files of the journal hold."""
        return b"".join(file.read_bytes() for file in self.folder.glob("journal.db*") if file.is_file())

    def script(self, *lines: ScriptLine) -> None:
        """Scripts the model."""
        self.answer = Script(lines=[*lines]).answer

    async def start(self, workflow: str, run_input: Any, *, run_id: str = "", **options: Any) -> Handle:
        """Starts a workflow as a client in any language would: by its type, with JSON."""
        handle = await self.client.start_workflow(
            workflow,
            run_input,
            id=run_id or new_run_id(workflow),
            task_queue=self.task_queue,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            **options,
        )
        self.started.append(handle)
        return handle

    async def start_team(self, manifests: Iterable[Json], name: str = "team", question: str = "Why?") -> Handle:
        """Starts a team without a query, as the workflow of its strategy."""
        resources = [*manifests]
        strategy = next(manifest["spec"]["strategy"] for manifest in resources if manifest["metadata"]["name"] == name)
        return await self.start(strategy, {"team": name, "input": question, "resources": resources})

    async def start_query(self, manifests: Iterable[Json], *targets: str, **spec: Any) -> Handle:
        """Starts a query; targets are written as ``team/NAME``."""
        target_refs = [dict(zip(("type", "name"), target.split("/"), strict=True)) for target in targets]
        query_spec = {"input": "Why?", "targets": target_refs, **spec}
        return await self.start("query", {"name": "q", "spec": query_spec, "resources": [*manifests]})

    async def wait_for_calls(self, count: int) -> None:
        """Waits until the model has got so many requests."""
        while len(self.model.requests) < count:
            await asyncio.sleep(0.01)

    async def wait_until_idle(self, handle: Handle) -> None:
        """Waits until a run and its child runs do nothing: only a message, a timer or their end can wake them."""
        while not await self._is_idle(handle):
            await asyncio.sleep(0.02)

    async def _is_idle(self, handle: Handle) -> bool:
        described = await handle.describe()
        run = described.raw_description
        if described.status != WorkflowExecutionStatus.RUNNING:
            return False
        if run.pending_activities or run.HasField("pending_workflow_task"):
            return False
        if not all(child.run_id for child in run.pending_children):  # one is being started
            return False
        children = [self.client.get_workflow_handle(child.workflow_id) for child in run.pending_children]
        return all([await self._is_idle(child) for child in children])

    async def turn_result(self, handle: Handle) -> TurnResult:
        """The result of a team or an agent, also of one that has failed or was canceled."""
        return await ended(handle, TurnResult)

    async def status(self, handle: Handle) -> Status:
        """The status of a query, also of one that has failed or was canceled."""
        return await ended(handle, Status)

    async def replay_closed_runs(self) -> None:
        """Replays every closed run of this environment; raises if the present code would issue other commands."""
        driver = JournalStorageDriver(lambda: Database.open(self.journal_address, "default"))
        converter = with_external_storage(self.client, driver).data_converter
        histories = []
        async for handle in self.closed_runs():
            with contextlib.suppress(RPCError):  # it was deleted meanwhile
                histories.append(await handle.fetch_history())
        await replay(histories, converter)

    async def closed_runs(self) -> AsyncIterator[Handle]:
        """Every closed run of this environment, child runs included.

        The server lists a run, and its end, a moment late: what ``start`` has started need not be listed, and each run
        says itself whether it is closed.
        """
        listed = [run async for run in self.client.list_workflows(f"TaskQueue = '{self.task_queue}'")]
        handles = [self.client.get_workflow_handle(run.id, run_id=run.run_id) for run in listed]
        ids = {run.id for run in listed}
        for handle in [*handles, *(handle for handle in self.started if handle.id not in ids)]:
            try:
                described = await handle.describe()
            except RPCError:  # it was deleted meanwhile
                continue
            if described.status != WorkflowExecutionStatus.RUNNING:
                yield handle

    async def find_runs(self, query: str, count: int) -> list[str]:
        """The ids of this environment's runs that match a visibility query; waits until there are ``count``."""
        while True:
            matching = self.client.list_workflows(f"TaskQueue = '{self.task_queue}' AND {query}")
            if len(ids := [run.id async for run in matching]) >= count:
                return ids
            await asyncio.sleep(0.05)

    def rows(self) -> list[Json]:
        """Every row of the journal, in no order."""
        with contextlib.closing(sqlite3.connect(self.journal)) as database:
            rows = database.execute("select id, parent, depth, message from baton_messages").fetchall()
        return [{"id": i, "parent": p, "depth": d, **json.loads(message)} for i, p, d, message in rows]

    def transcript(self, head: str) -> list[Json]:
        """The conversation up to a row of the journal, question first."""
        rows = {row["id"]: row for row in self.rows()}
        chain = []
        while head:
            chain.append(rows[head])
            head = chain[-1]["parent"]
        return chain[::-1]


async def signaled(handle: Handle, name: str) -> None:
    """Waits until a run has received a signal of that name, which the run above it may forward a moment later."""
    while True:
        events = (await handle.fetch_history()).events
        if name in [event.workflow_execution_signaled_event_attributes.signal_name for event in events]:
            return
        await asyncio.sleep(0.02)


async def ended(handle: Handle, kind: type[Ended]) -> Ended:
    """The result of a run, also of one that has failed or was canceled."""
    try:
        result = await handle.result()
    except WorkflowFailureError as failure:
        assert isinstance(failure.cause, ApplicationError | CancelledError)
        result = failure.cause.details[0]
    if kind is TurnResult and "phase" in result:  # the run was started by a client: its result is a status
        result = {**result, "usage": result["tokenUsage"], "answer": result["message"]}
    return kind.model_validate_json(json.dumps(result))


def new_run_id(workflow: str) -> str:
    """An id for a run of that type, which no other run has."""
    return f"{workflow}-{uuid.uuid4().hex[:8]}"


def texts(messages: Iterable[Any]) -> list[str]:
    """The contents of messages."""
    return [message.content for message in messages]


def read(path: Path) -> list[Json]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]
