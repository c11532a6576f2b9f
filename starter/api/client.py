"""Connections of a program to Temporal, on which it starts runs: ``baton.connect``, ``baton.run``, ``baton.start``."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack
from weakref import WeakKeyDictionary

from temporalio.client import Client

from ...contracts.panel import Contribution
from ...resources.base import JsonObject
from ...resources.functions import Function
from ...resources.loader import Loaded
from ...resources.query import Query
from ...resources.schedule import Schedule
from ...temporal.client import task_queue as default_task_queue
from ..runs import schedules
from ..runs.runs import RunHandle, find_run, has_worker
from ..runs.start import start_query
from ..server.connection import ServerLocation, use_server
from ..server.in_process_worker import InProcessWorker, worker_environment
from .handle import Handle, Result, ScheduleHandle
from .resources import (
    QueryDefinition,
    ResourceDefinition,
    ScheduleDefinition,
    ValueInput,
    check,
    check_list,
    check_mapping,
    check_text,
    load_definitions,
    unique_functions,
)


class RunOptions(TypedDict, total=False):
    """Options of a run.

    ``id`` is the run's id: an open run of that id is joined. ``parameters`` are values for templates, ``session`` the
    initial values of its session, ``timeout`` a duration such as ``"5m"``, ``budget`` its limits, such as
    ``{"tokens": 20_000}``. ``conversation`` is the id of the conversation that it continues. ``functions`` and
    ``resources`` are added to those of the target.
    """

    id: str
    parameters: Mapping[str, ValueInput]
    session: JsonObject
    timeout: str
    budget: Mapping[str, Any]
    conversation: str
    functions: Sequence[Function]
    resources: Sequence[ResourceDefinition]


def query_for(target: ResourceDefinition, text: str | None, options: RunOptions) -> ResourceDefinition:
    """The query that gives an input to a target; raises TypeError if the input is missing or not allowed."""
    check(target, ResourceDefinition, "target", "an agent, a team, a model, a Query or a Manifest")
    unknown = sorted(options.keys() - RunOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"there is no option '{unknown[0]}'; known: {', '.join(sorted(RunOptions.__annotations__))}")
    conversation = options.get("conversation")
    for argument, value in (("input", text), ("id", options.get("id")), ("conversation", conversation)):
        check(value, (str, type(None)), argument, "a string")
    check_mapping(options.get("session"), "session")
    check_list(options.get("functions", ()), "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # ABC
    check_list(options.get("resources", ()), "resources", ResourceDefinition, "a list of Manifests")
    if target.kind == "Query":
        if text is not None:
            raise TypeError("a Query has its own input")
        if conversation is not None:
            raise TypeError("pass the conversation to the Query itself: baton.Query(…, conversation=…)")
        return target
    if text is None:
        raise TypeError(f"{target.name} needs an input")
    return QueryDefinition(
        target.name,
        text,
        targets=[target],
        parameters=options.get("parameters"),
        timeout=options.get("timeout"),
        budget=options.get("budget"),
        conversation=conversation,
        namespace=target.namespace,
    )


_log = logging.getLogger("baton")


class Connection:
    """A connection to Temporal, for ``async with``.

    It connects to the server at ``address``, else to the one that the environment names (TEMPORAL_ADDRESS and the
    like), else to this machine's local server, which is started with a worker if it isn't running, and stops when
    nothing uses it.

    Runs are executed by the workers of ``task_queue``. A run that uses functions or a literal API key is executed in
    this process instead, in a thread with its own event loop, until the run ends or the connection is closed.
    """

    def __init__(self, address: str | None = None, *, task_queue: str | None = None) -> None:
        check(address, (str, type(None)), "address", "a string such as 'localhost:7233'")
        check(task_queue, (str, type(None)), "task_queue", "a string")
        self._address = address
        self._task_queue = task_queue or default_task_queue()
        self._server = ServerLocation(address)
        self._server_locks = contextlib.ExitStack()
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._workers: list[InProcessWorker] = []

    async def __aenter__(self) -> Self:
        await self.client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            await worker.stop()
        self._server_locks.close()

    async def client(self) -> Client:
        """The client of Temporal's SDK. Raises UnreachableError, ConnectionFailed or SettingsError."""
        async with self._connecting:
            if self._client is None:
                if not self._address:
                    own = use_server(_log.warning, start=True)
                    self._server = await asyncio.to_thread(self._server_locks.enter_context, own)
                self._client = await self._server.connect()
        return self._client

    async def run(self, target: ResourceDefinition, input: str | None = None, **options: Unpack[RunOptions]) -> Result:  # noqa: A002
        """Starts a run as ``start`` does, and waits for its result. Raises RunFailed.

        If the waiting task is cancelled, the run continues.
        """
        return await (await self.start(target, input, **options)).result()

    async def start(
        self,
        target: ResourceDefinition,
        input: str | None = None,  # noqa: A002
        **options: Unpack[RunOptions],
    ) -> Handle:
        """Starts a run that gives ``input`` to a team, an agent, a model or a tool, or a run of a ``Query``.

        Raises ManifestError, before it is started, if a resource that the run needs is missing.
        """
        query = query_for(target, input, options)
        loaded = load_definitions([query, *options.get("resources", ())])
        functions = unique_functions([*query.functions(), *options.get("functions", ())])
        client = await self.client()
        run_id = options.get("id")
        manifest = loaded.catalog.get("Query", query.namespace, query.name)
        assert isinstance(manifest, Query)
        # Only this process has the functions and the literal keys: it executes the run, on a task queue of its own.
        in_process = bool(functions or loaded.secrets)
        remote = self._server.state_dir is None
        catalog = loaded.needed_by(manifest, elsewhere=remote and not in_process)
        if self._server.state_dir:
            self._server.state_dir.write_sources(catalog.sha, [])
        queue = f"{self._task_queue}-{run_id or uuid.uuid4().hex}" if in_process else self._task_queue
        session = options.get("session")
        start_run = partial(start_query, client, manifest, catalog, run_id, task_queue=queue, session=session)
        if in_process:
            run = await self._execute(queue, loaded, functions, start_run)
        else:
            run = await start_run()
            if remote and not await has_worker(client, queue):
                _log.warning("%s waits: no worker is running; start one with: baton worker", run.id)
        return Handle(client, run, query.output_model)

    async def attach(self, name: str, *, namespace: str = "default", functions: Sequence[Function] = ()) -> Handle:
        """The run of that id, or the newest run of the Query of that name, whichever process has started it.

        With ``functions`` it is executed in this process. Raises NoSuchRunError.
        """
        check_text(name, "name")
        check_list(functions, "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # an ABC
        client = await self.client()
        find = partial(find_run, client, name, namespace)
        run = await find()
        if functions:
            await self._execute((await run.describe()).task_queue, Loaded(), functions, find)
        return Handle(client, run)

    async def apply_schedule(self, schedule: ScheduleDefinition) -> ScheduleHandle:
        """Creates a schedule, or updates it in place, as ``baton schedules apply``.

        Raises ManifestError, ScheduleError, and ValueError if its query needs functions or keys that only this process
        has.
        """
        check(schedule, ScheduleDefinition, "schedule", "a Schedule")
        loaded = load_definitions([schedule])
        if schedule.functions() or loaded.secrets:
            what = "functions" if schedule.functions() else "a literal API key"
            raise ValueError(f"a scheduled query can't use {what}: it runs on workers, without this process")
        manifest = loaded.catalog.get("Schedule", schedule.namespace, schedule.name)
        assert isinstance(manifest, Schedule)
        client = await self.client()
        state_dir = self._server.state_dir
        query, catalog = loaded.scheduled_query(manifest, elsewhere=state_dir is None)
        if state_dir:
            state_dir.write_sources(catalog.sha, [])
        await schedules.apply_schedule(client, manifest, query, catalog, self._task_queue)
        return ScheduleHandle(client, schedule.namespace, schedule.name)

    async def find_schedule(self, name: str, *, namespace: str = "default") -> ScheduleHandle:
        """The schedule of that name. Raises ScheduleError."""
        check_text(name, "name")
        client = await self.client()
        await schedules.describe_schedule(client, namespace, name)
        return ScheduleHandle(client, namespace, name)

    async def contributions(self, session: str, key: str = "contributions") -> tuple[Contribution, ...]:
        """The contributions to the panel that shares its transcript under this key of a session; empty if none does.

        They are read from the journal, which this process must be able to open, also while the panel is running.
        """
        check_text(session, "session")
        check_text(key, "key")
        await self.client()
        from ..operations.conversations import read_contributions  # noqa: PLC0415  # loads the database's library

        return await read_contributions(session, key, worker_environment(self._server))

    async def _execute(
        self,
        task_queue: str,
        own: Loaded,
        functions: Sequence[Function],
        start_run: Callable[[], Awaitable[RunHandle]],
    ) -> RunHandle:
        """Starts a run that a worker in this process executes."""
        worker = InProcessWorker(self._server, task_queue, own, functions)
        run = await worker.execute(start_run)
        self._workers.append(worker)
        return run


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()


def connect(address: str | None = None, *, task_queue: str | None = None) -> Connection:
    """A new connection, for ``async with``."""
    return Connection(address, task_queue=task_queue)


def _default_connection() -> Connection:
    """The connection of the program's event loop, which stays open until the loop ends."""
    return _connections.setdefault(asyncio.get_running_loop(), Connection())


async def run(target: ResourceDefinition, input: str | None = None, **options: Unpack[RunOptions]) -> Result:  # noqa: A002
    """Runs a team, an agent or a query to its end, as ``Connection.run`` does."""
    return await _default_connection().run(target, input, **options)


async def start(target: ResourceDefinition, input: str | None = None, **options: Unpack[RunOptions]) -> Handle:  # noqa: A002
    """Starts a run, as ``Connection.start`` does."""
    return await _default_connection().start(target, input, **options)


async def attach(name: str, *, namespace: str = "default", functions: Sequence[Function] = ()) -> Handle:
    """A handle on a run that exists, as ``Connection.attach`` gives it."""
    return await _default_connection().attach(name, namespace=namespace, functions=functions)


async def contributions(session: str, key: str = "contributions") -> tuple[Contribution, ...]:
    """A shared transcript, as ``Connection.contributions`` reads it."""
    return await _default_connection().contributions(session, key)


async def apply_schedule(schedule: ScheduleDefinition) -> ScheduleHandle:
    """Creates a schedule, or updates it in place, as ``Connection.apply_schedule``."""
    return await _default_connection().apply_schedule(schedule)


async def find_schedule(name: str, *, namespace: str = "default") -> ScheduleHandle:
    """A schedule that exists, as ``Connection.find_schedule`` gives it."""
    return await _default_connection().find_schedule(name, namespace=namespace)
