"""A program's connections to Temporal, with which it starts runs: ``baton.connect``, ``baton.run``, ``baton.start``."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack
from weakref import WeakKeyDictionary

from temporalio.client import Client

from ...contracts.panel import Contribution
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.functions import Function
from ...resources.loader import Loaded, OfWorkers
from ...resources.query import Query
from ...resources.schedule import Schedule
from ...temporal.client import PROGRAM
from ...temporal.client import task_queue as default_task_queue
from ..runs import schedules
from ..runs.runs import RunHandle, find_run, open_task_queue, why_not_served
from ..runs.start import new_run_id, retry_run, start_query
from ..server.connection import ServerLocation, use_server
from ..server.in_process_worker import InProcessWorkers, worker_environment
from .content import RunInput
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


Target = ResourceDefinition | str
"""What a run is started with: a definition, or the name of a resource that workers know, such as ``"team/NAME"``."""


def query_for(target: Target, value: RunInput | None, options: RunOptions) -> ResourceDefinition:
    """The query that sends an input to a target; raises TypeError if the input is missing or not allowed."""
    what = "an agent, a team, a model, a Query, a Manifest, or a name such as 'team/NAME'"
    check(target, (ResourceDefinition, str), "target", what)
    unknown = sorted(options.keys() - RunOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"there is no option '{unknown[0]}'; known: {', '.join(sorted(RunOptions.__annotations__))}")
    conversation = options.get("conversation")
    what_input = "a string, a mapping such as {'goal': …}, or a list of texts, images and files"
    check(value, (str, Mapping, list, tuple, type(None)), "input", what_input)
    for argument, option in (("id", options.get("id")), ("conversation", conversation)):
        check(option, (str, type(None)), argument, "a string")
    check_mapping(options.get("session"), "session")
    check_list(options.get("functions", ()), "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # ABC
    check_list(options.get("resources", ()), "resources", ResourceDefinition, "a list of Manifests")
    if isinstance(target, ResourceDefinition) and target.kind == "Query":
        if value is not None:
            raise TypeError("a Query has its own input")
        if conversation is not None:
            raise TypeError("pass the conversation to the Query itself: baton.Query(…, conversation=…)")
        return target
    if value is None:
        raise TypeError(f"{target if isinstance(target, str) else target.name} needs an input")
    return QueryDefinition(
        target.rpartition("/")[2] if isinstance(target, str) else target.name,
        value,
        targets=[target],
        parameters=options.get("parameters"),
        timeout=options.get("timeout"),
        budget=options.get("budget"),
        conversation=conversation,
        namespace="default" if isinstance(target, str) else target.namespace,
    )


_log = logging.getLogger("baton")


class Connection:
    """A connection to Temporal, for ``async with``.

    It uses the ``client`` of Temporal's SDK that the program has, with its namespace, data converter and interceptors.
    Otherwise it connects to the server at ``address``, or to the one configured in the environment (TEMPORAL_ADDRESS
    etc.), or to this machine's local server, which is started with a worker if it isn't running, and stops when it is
    unused. Namespace, API key and TLS are those of the environment and of Temporal's profiles, also for an ``address``.

    Runs are executed by the workers of ``task_queue``. A run that uses functions or a literal API key is executed in
    this process instead, in a thread with its own event loop, until the run ends or the connection is closed.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        client: Client | None = None,
        task_queue: str | None = None,
        environment: Mapping[str, str] | None = None,
        of_workers: OfWorkers | None = None,
    ) -> None:
        """``environment`` are the settings, by default the environment variables of the process.

        ``of_workers`` are the manifests that runs may name, if they are known.
        """
        check(address, (str, type(None)), "address", "a string such as 'localhost:7233'")
        check(client, (Client, type(None)), "client", "a client of Temporal's SDK")
        check(task_queue, (str, type(None)), "task_queue", "a string")
        if address and client:
            raise TypeError("pass an address or a client, not both")
        self._task_queue = task_queue or default_task_queue()
        settings = os.environ if environment is None else environment
        self._server = ServerLocation(address, client=client, environment=settings)
        self._of_workers = of_workers or OfWorkers(Catalog(), is_complete=False)
        self._server_locks = contextlib.ExitStack()
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._in_process: InProcessWorkers | None = None

    async def __aenter__(self) -> Self:
        await self.client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_process:
            await self._in_process.stop()
        self._server_locks.close()

    async def client(self) -> Client:
        """The client of Temporal's SDK. Raises UnreachableError, ConnectionFailed or SettingsError."""
        async with self._connecting:
            if self._client is None:
                if not (self._server.address or self._server.client):
                    own = use_server(_log.warning, start=True)
                    self._server = await asyncio.to_thread(self._server_locks.enter_context, own)
                self._client = await self._server.connect()
        return self._client

    async def run(
        self,
        target: Target,
        input: RunInput | None = None,  # noqa: A002
        **options: Unpack[RunOptions],
    ) -> Result:
        """Starts a run as ``start`` does, and waits for its result. Raises RunFailed.

        If the waiting task is cancelled, the run continues.
        """
        return await (await self.start(target, input, **options)).result()

    async def start(
        self,
        target: Target,
        input: RunInput | None = None,  # noqa: A002
        **options: Unpack[RunOptions],
    ) -> Handle:
        """Starts a run that sends ``input`` to a team, an agent, a model or a tool, or a run of a ``Query``.

        ``target`` can also be the name of a resource that workers know, such as ``"team/NAME"``.

        Raises ManifestError before the start if a resource that the run needs is missing. If workers don't know the
        name, the run fails.
        """
        query = query_for(target, input, options)
        loaded = load_definitions([query, *options.get("resources", ())])
        if query.names_targets or self._of_workers.is_complete:
            loaded = replace(loaded, of_workers=self._of_workers)
        functions = unique_functions([*query.functions(), *options.get("functions", ())])
        client = await self.client()
        run_id = options.get("id")
        new_id = run_id or new_run_id(query.name)
        manifest = loaded.catalog.get("Query", query.namespace, query.name)
        assert isinstance(manifest, Query)
        # Only this process has the functions and the literal keys: it executes the run, on a separate task queue.
        in_process = bool(functions or loaded.secrets)
        remote = self._server.state_dir is None
        catalog = loaded.needed_by(manifest, elsewhere=remote and not in_process)
        if self._server.state_dir:
            self._server.state_dir.write_sources(catalog.sha, [])
        start_run = partial(
            start_query, client, manifest, catalog, new_id, session=options.get("session"), joins=run_id is not None
        )
        if in_process:
            workers = await self._workers()
            queue = await open_task_queue(client, run_id) if run_id else None
            queue = queue if queue and PROGRAM in queue else None  # the workers of any other queue execute the run
            run = await workers.execute(new_id, loaded, functions, lambda name: start_run(task_queue=name), queue)
        else:
            run = await start_run(task_queue=self._task_queue)
            if remote and (reason := await why_not_served(client, self._task_queue)):
                _log.warning("%s waits: %s", run.id, reason)
        return Handle(client, run, query.output_model)

    async def attach(self, name: str, *, namespace: str = "default", functions: Sequence[Function] = ()) -> Handle:
        """The run with that id, or the newest run of the Query with that name, regardless of who started it.

        With ``functions`` it is executed in this process. Raises NoSuchRunError.
        """
        check_text(name, "name")
        check_list(functions, "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # an ABC
        client = await self.client()
        run = await find_run(client, name, namespace)
        if functions:
            queue = (await run.describe()).task_queue

            async def existing(_: str) -> RunHandle:
                return run

            await (await self._workers()).execute(run.id, Loaded(), functions, existing, queue)
        return Handle(client, run)

    async def retry(self, name: str, *, namespace: str = "default", functions: Sequence[Function] = ()) -> Handle:
        """Resumes a failed run from the failed call, under the same id.

        With ``functions`` the run is executed in this process. Raises NoSuchRunError and NotRetriedError.
        """
        check_text(name, "name")
        check_list(functions, "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # an ABC
        client = await self.client()
        failed = await find_run(client, name, namespace)
        if not functions:
            return Handle(client, await retry_run(client, failed))
        queue = (await failed.describe()).task_queue

        async def start(_: str) -> RunHandle:
            return await retry_run(client, failed)

        return Handle(client, await (await self._workers()).execute(failed.id, Loaded(), functions, start, queue))

    async def apply_schedule(self, schedule: ScheduleDefinition) -> ScheduleHandle:
        """Creates a schedule, or updates it in place, like ``baton schedules apply``.

        Raises ManifestError, ScheduleError, and ValueError if its query needs functions or keys that only this process
        has.
        """
        check(schedule, ScheduleDefinition, "schedule", "a Schedule")
        loaded = load_definitions([schedule])
        if schedule.functions() or loaded.secrets:
            what = "functions" if schedule.functions() else "a secret of this process"
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
        """The schedule with that name. Raises ScheduleError."""
        check_text(name, "name")
        client = await self.client()
        await schedules.describe_schedule(client, namespace, name)
        return ScheduleHandle(client, namespace, name)

    async def contributions(self, session: str, key: str = "contributions") -> tuple[Contribution, ...]:
        """The contributions to the panel that shares its transcript under this key of a session; empty if none does.

        They are read from the journal, to which this process needs access, even while the panel is running.
        """
        check_text(session, "session")
        check_text(key, "key")
        client = await self.client()
        from ..operations.conversations import read_contributions  # noqa: PLC0415  # loads the database's library

        return await read_contributions(client.namespace, session, key, worker_environment(self._server))

    async def _workers(self) -> InProcessWorkers:
        """The workers in this process; started on first use."""
        async with self._connecting:
            if self._in_process is None:
                workers = InProcessWorkers(self._server, self._task_queue)
                await workers.start()
                self._in_process = workers
            return self._in_process


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()


def connect(address: str | None = None, *, client: Client | None = None, task_queue: str | None = None) -> Connection:
    """A new connection, for ``async with``: as ``Connection``."""
    return Connection(address, client=client, task_queue=task_queue)


def _default_connection() -> Connection:
    """The connection of the program's event loop, which stays open until the loop ends."""
    return _connections.setdefault(asyncio.get_running_loop(), Connection())


async def run(target: Target, input: RunInput | None = None, **options: Unpack[RunOptions]) -> Result:  # noqa: A002
    """Runs a team, an agent or a query to its end, as ``Connection.run`` does."""
    return await _default_connection().run(target, input, **options)


async def start(target: Target, input: RunInput | None = None, **options: Unpack[RunOptions]) -> Handle:  # noqa: A002
    """Starts a run, as ``Connection.start`` does."""
    return await _default_connection().start(target, input, **options)


async def attach(name: str, *, namespace: str = "default", functions: Sequence[Function] = ()) -> Handle:
    """A handle on an existing run, as ``Connection.attach``."""
    return await _default_connection().attach(name, namespace=namespace, functions=functions)


async def retry(name: str, *, namespace: str = "default", functions: Sequence[Function] = ()) -> Handle:
    """Resumes a failed run, as ``Connection.retry``."""
    return await _default_connection().retry(name, namespace=namespace, functions=functions)


async def contributions(session: str, key: str = "contributions") -> tuple[Contribution, ...]:
    """A shared transcript, as ``Connection.contributions``."""
    return await _default_connection().contributions(session, key)


async def apply_schedule(schedule: ScheduleDefinition) -> ScheduleHandle:
    """Creates a schedule, or updates it in place, as ``Connection.apply_schedule``."""
    return await _default_connection().apply_schedule(schedule)


async def find_schedule(name: str, *, namespace: str = "default") -> ScheduleHandle:
    """An existing schedule, as ``Connection.find_schedule``."""
    return await _default_connection().find_schedule(name, namespace=namespace)
