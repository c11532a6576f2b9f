"""A program's connections to Temporal, with which it starts runs: ``baton.connect``, ``baton.run``, ``baton.start``."""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast, overload
from weakref import WeakKeyDictionary

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from typing_extensions import TypeVar

from ...contracts.panel import Contribution
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.functions import Function, name_of
from ...resources.loader import Loaded, OfWorkers
from ...resources.query import Query
from ...resources.schedule import Schedule
from ...resources.validation import function_names
from ...temporal.client import PROGRAM, set_program_runtime
from ...temporal.client import task_queue as default_task_queue
from ...temporal.personal_data import RedactHook, personal_data_of, redact_setting
from ..runs import schedules
from ..runs.runs import RunHandle, find_run, open_task_queue, why_not_served
from ..runs.start import ended_run, manifests_of_run, new_run_id, retry_run, start_query
from ..server.connection import ServerLocation, use_server
from ..server.in_process_worker import InProcessWorker, worker_environment
from .content import RunInput
from .definitions import (
    ResourceDefinition,
    ValueInput,
    as_json,
    check,
    check_list,
    check_mapping,
    check_text,
    load_definitions,
    unique_functions,
    with_options_in_signature,
)
from .handle import Handle, Result, ScheduleHandle
from .resources import QueryDefinition, ScheduleDefinition


class RunOptions(TypedDict, total=False):
    """Options of a run.

    ``id`` is the run's id: an open run of that id is joined. ``parameters`` are values for templates, ``session`` the
    initial values of its session, ``timeout`` a duration such as ``"5m"``, ``budget`` its limits, such as
    ``{"tokens": 20_000}``. ``conversation`` is the id of the conversation that it continues. ``functions`` and
    ``resources`` are added to those of the target. With ``once``, a run of that ``id`` that has ended is not started
    again: its handle is returned, as long as Temporal keeps it.
    """

    id: str | None
    once: bool | None
    parameters: Mapping[str, ValueInput] | None
    session: JsonObject | None
    timeout: str | None
    budget: Mapping[str, Any] | None
    conversation: str | None
    functions: Sequence[Function] | None
    resources: Sequence[ResourceDefinition] | None


Value = TypeVar("Value", default=object)
"""The type of ``value`` in the result of a run; object for a target of which only the name is known."""

Target = ResourceDefinition[Value] | str
"""What a run is started with: a definition, or the name of a resource that workers know, such as ``"team/NAME"``."""


class _QueryOfRun(QueryDefinition):
    """The query of one run. Its mistakes are reported when the run's manifests are loaded, immediately after this."""

    def _report_mistakes(self) -> None: ...


def query_for(target: Target[Any], value: RunInput | None, options: RunOptions) -> ResourceDefinition:
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
    if options.get("once") and not options.get("id"):
        raise TypeError("once needs an id")
    check_mapping(options.get("session"), "session")
    _session(options)
    check_list(options.get("functions") or (), "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # ABC
    check_list(options.get("resources") or (), "resources", ResourceDefinition, "a list of Manifests")
    if isinstance(target, ResourceDefinition) and target.kind == "Query":
        if value is not None:
            raise TypeError("a Query has its own input")
        if conversation is not None:
            raise TypeError("pass the conversation to the Query itself: baton.Query(…, conversation=…)")
        return target
    if value is None:
        raise TypeError(f"{target if isinstance(target, str) else target.name} needs an input")
    return _QueryOfRun(
        target.rpartition("/")[2] if isinstance(target, str) else target.name,
        value,
        targets=[target],
        parameters=options.get("parameters"),
        timeout=options.get("timeout"),
        budget=options.get("budget"),
        conversation=conversation,
        namespace="default" if isinstance(target, str) else target.namespace,
    )


def _session(options: RunOptions) -> JsonObject | None:
    """The initial values of a session. Raises TypeError for values that JSON can't represent."""
    session = options.get("session")
    return cast(JsonObject, as_json({"session": session})["session"]) if session else None


def manifests_digest(target: Target[Any], value: RunInput | None, options: RunOptions) -> str:
    """A digest of everything that a run is started with: its input, options and manifests. Raises as ``query_for``."""
    loaded = load_definitions([query_for(target, value, options), *(options.get("resources") or ())])
    session = json.dumps(_session(options) or {}, sort_keys=True)
    return hashlib.sha256(f"{loaded.catalog.sha}{session}".encode()).hexdigest()


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
        dependencies: object = None,
        redact: RedactHook | None = None,
        environment: Mapping[str, str] | None = None,
        of_workers: OfWorkers | None = None,
    ) -> None:
        """``dependencies`` are objects of the program, such as a connection pool, for functions with a ``Context``.

        ``redact`` replaces personal data before it is stored: a function of a module, or patterns by name. Workers in
        other processes need the same hook, in BATON_REDACT.
        ``environment`` are the settings, by default the environment variables of the process.
        ``of_workers`` are the manifests that runs may name, if they are known.
        """
        check(address, (str, type(None)), "address", "a string such as 'localhost:7233'")
        check(client, (Client, type(None)), "client", "a client of Temporal's SDK")
        check(task_queue, (str, type(None)), "task_queue", "a string")
        if address and client:
            raise TypeError("pass an address or a client, not both")
        self._task_queue = task_queue or default_task_queue()
        self._dependencies = dependencies
        settings = os.environ if environment is None else environment
        if redact is not None:
            settings = {**settings, **redact_setting(redact)}
        self._server = ServerLocation(address, client=client, environment=settings)
        self._of_workers = of_workers or OfWorkers(Catalog(), is_complete=False)
        self._server_locks = contextlib.ExitStack()
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._in_process: InProcessWorker | None = None

    def __repr__(self) -> str:
        return f"Connection(address={self._server.address!r}, task_queue={self._task_queue!r})"

    async def __aenter__(self) -> Self:
        await self.client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_process:
            await self._in_process.stop()
        if personal_data := personal_data_of(self._server.environment):
            await personal_data.close()
        self._server_locks.close()

    async def client(self) -> Client:
        """The client of Temporal's SDK. Raises UnreachableError, ConnectionFailed or SettingsError."""
        async with self._connecting:
            if self._client is None:
                if not (self._server.address or self._server.client):
                    own = use_server(_log.warning, start=True)
                    local = await asyncio.to_thread(self._server_locks.enter_context, own)
                    self._server = replace(local, environment=self._server.environment)
                set_program_runtime()
                self._client = await self._server.connect()
        return self._client

    @overload
    async def run(
        self,
        target: Target[Any],
        input: RunInput | None = None,
        *,
        output_type: type[Value],
        **options: Unpack[RunOptions],
    ) -> Result[Value]: ...

    @overload
    async def run(
        self,
        target: Target[Value],
        input: RunInput | None = None,
        *,
        output_type: None = None,
        **options: Unpack[RunOptions],
    ) -> Result[Value]: ...

    @with_options_in_signature
    async def run(
        self,
        target: Target[Any],
        input: RunInput | None = None,  # noqa: A002
        *,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Result[Any]:
        """Starts a run as ``start`` does, and waits for its result. Raises RunFailed.

        If the waiting task is cancelled, the run continues.
        """
        return await (await self.start(target, input, output_type=output_type, **options)).result()

    @overload
    async def start(
        self,
        target: Target[Any],
        input: RunInput | None = None,
        *,
        output_type: type[Value],
        **options: Unpack[RunOptions],
    ) -> Handle[Value]: ...

    @overload
    async def start(
        self,
        target: Target[Value],
        input: RunInput | None = None,
        *,
        output_type: None = None,
        **options: Unpack[RunOptions],
    ) -> Handle[Value]: ...

    @with_options_in_signature
    async def start(
        self,
        target: Target[Any],
        input: RunInput | None = None,  # noqa: A002
        *,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Handle[Any]:
        """Starts a run that sends ``input`` to a team, an agent, a model or a tool, or a run of a ``Query``.

        ``target`` can also be the name of a resource that workers know, such as ``"team/NAME"``. ``output_type`` is the
        type into which the answer is parsed, JSON or a text; by default the one that the target declares.

        Raises ManifestError before the start if a resource that the run needs is missing. If workers don't know the
        name, the run fails.
        """
        query = query_for(target, input, options)
        loaded = load_definitions([query, *(options.get("resources") or ())])
        if query.names_workers or self._of_workers.is_complete:
            loaded = replace(loaded, of_workers=self._of_workers)
        functions = unique_functions([*query.functions(), *(options.get("functions") or ())])
        client = await self.client()
        run_id = options.get("id")
        once = bool(options.get("once"))
        output_model = output_type or query.output_model
        if once and run_id and (ended := await ended_run(client, run_id)):
            return Handle(client, ended, output_model)
        new_id = run_id or new_run_id(query.name)
        manifest = loaded.catalog.get("Query", query.namespace, query.name)
        assert isinstance(manifest, Query)
        # Only this process has the functions, the literal keys and the commands: it executes the run, on a separate
        # task queue.
        in_process = bool(functions or loaded.secrets or loaded.has_commands)
        remote = self._server.state_dir is None
        catalog = loaded.needed_by(manifest, elsewhere=remote and not in_process)
        if self._server.state_dir:
            self._server.state_dir.write_sources(catalog.sha, [])
        start_run = partial(
            start_query,
            client,
            manifest,
            catalog,
            new_id,
            session=_session(options),
            joins=run_id is not None,
            once=once,
        )
        if in_process:
            worker = await self._worker()
            queue = await open_task_queue(client, run_id) if run_id else None
            queue = queue if queue and PROGRAM in queue else None  # the workers of any other queue execute the run
            run = await worker.execute(new_id, loaded, functions, lambda name: start_run(task_queue=name), queue)
        else:
            run = await start_run(task_queue=self._task_queue)
            if remote and (reason := await why_not_served(client, self._task_queue)):
                _log.warning("%s waits: %s", run.id, reason)
        return Handle(client, run, output_model)

    async def register(self, loaded: Loaded) -> None:
        """Records for the worker of a local server that its owner runs these manifests; nothing for other workers."""
        await self.client()
        if self._server.state_dir:
            files = [Path(file) for file in sorted(loaded.secret_files)]
            self._server.state_dir.write_sources(loaded.catalog.sha, files)

    async def attach(
        self,
        name: str,
        *,
        output_type: type[Value] | None = None,
        namespace: str = "default",
        functions: Sequence[Function] = (),
    ) -> Handle[Value]:
        """The run with that id, or the newest run of the Query with that name, regardless of who started it.

        ``output_type`` is the type of its value, such as a pydantic model. With ``functions`` it is executed in this
        process. Without them, a run that waits for its program is logged. Raises NoSuchRunError; and ValueError if a
        function is missing that the run needs, and for functions of a run that workers execute.
        """
        check_text(name, "name")
        check_list(functions, "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # an ABC
        client = await self.client()
        run = await find_run(client, name, namespace)
        about = await run.describe()
        needs_program = PROGRAM in about.task_queue and about.status is WorkflowExecutionStatus.RUNNING
        if needs_program and not functions and (reason := await why_not_served(client, about.task_queue)):
            _log.warning("%s waits: %s", run.id, reason)
        if functions:
            queue = _program_queue(run, about)
            await _check_functions(client, run, about, functions)

            async def existing(_: str) -> RunHandle:
                return run

            await (await self._worker()).execute(run.id, Loaded(), unique_functions(functions), existing, queue)
        return Handle(client, run, output_type)

    async def retry(
        self,
        name: str,
        *,
        output_type: type[Value] | None = None,
        namespace: str = "default",
        functions: Sequence[Function] = (),
    ) -> Handle[Value]:
        """Resumes a failed run from the failed call, under the same id.

        ``output_type`` is the type of its value, such as a pydantic model. With ``functions`` the run is executed in
        this process. Raises NoSuchRunError and NotRetriedError.
        """
        check_text(name, "name")
        check_list(functions, "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # an ABC
        client = await self.client()
        failed = await find_run(client, name, namespace)
        if not functions:
            return Handle(client, await retry_run(client, failed), output_type)
        about = await failed.describe()
        queue = _program_queue(failed, about)
        await _check_functions(client, failed, about, functions)
        named = unique_functions(functions)

        async def start(_: str) -> RunHandle:
            return await retry_run(client, failed)

        run = await (await self._worker()).execute(failed.id, Loaded(), named, start, queue)
        return Handle(client, run, output_type)

    async def apply_schedule(self, schedule: ScheduleDefinition) -> ScheduleHandle:
        """Creates a schedule, or updates it in place, like ``baton schedules apply``.

        Raises ManifestError, ScheduleError, and ValueError if its query needs functions or keys that only this process
        has.
        """
        check(schedule, ScheduleDefinition, "schedule", "a Schedule")
        loaded = load_definitions([schedule])
        if schedule.functions() or loaded.secrets or loaded.has_commands:
            what = "a secret of this process" if loaded.secrets else "an MCPServer with a command"
            what = "functions" if schedule.functions() else what
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

    async def _worker(self) -> InProcessWorker:
        """The worker in this process; started on first use."""
        async with self._connecting:
            if self._in_process is None:
                worker = InProcessWorker(self._server, self._task_queue, self._dependencies)
                await worker.start()
                self._in_process = worker
            return self._in_process


def _program_queue(run: RunHandle, about: WorkflowExecutionDescription) -> str:
    """The task queue of a run that programs execute. Raises ValueError for a run that workers execute."""
    if PROGRAM not in about.task_queue:
        raise ValueError(
            f"the workers of the task queue {about.task_queue} execute {run.id}, so no program can: give the "
            "workers the functions with BATON_FUNCTIONS, and pass none here"
        )
    return about.task_queue


async def _check_functions(
    client: Client, run: RunHandle, about: WorkflowExecutionDescription, functions: Sequence[Function]
) -> None:
    """Raises ValueError if the manifests that a run was started with name a function that is not one of these."""
    catalog = await manifests_of_run(client, run.id, about.run_id)
    if missing := sorted({*function_names(catalog)} - {name_of(function) for function in functions}):
        raise ValueError(f"{run.id} needs the function '{missing[0]}' as well: pass it in functions")


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()


def connect(
    address: str | None = None,
    *,
    client: Client | None = None,
    task_queue: str | None = None,
    dependencies: object = None,
    redact: RedactHook | None = None,
) -> Connection:
    """A new connection, for ``async with``: as ``Connection``."""
    return Connection(address, client=client, task_queue=task_queue, dependencies=dependencies, redact=redact)


def _default_connection() -> Connection:
    """The connection of the program's event loop, which stays open until the loop ends."""
    return _connections.setdefault(asyncio.get_running_loop(), Connection())


@overload
async def run(
    target: Target[Any],
    input: RunInput | None = None,
    *,
    output_type: type[Value],
    **options: Unpack[RunOptions],
) -> Result[Value]: ...


@overload
async def run(
    target: Target[Value],
    input: RunInput | None = None,
    *,
    output_type: None = None,
    **options: Unpack[RunOptions],
) -> Result[Value]: ...


@with_options_in_signature
async def run(
    target: Target[Any],
    input: RunInput | None = None,  # noqa: A002
    *,
    output_type: type[Any] | None = None,
    **options: Unpack[RunOptions],
) -> Result[Any]:
    """Runs a team, an agent or a query to its end, as ``Connection.run`` does."""
    return await _default_connection().run(target, input, output_type=output_type, **options)


@overload
def run_sync(
    target: Target[Any],
    input: RunInput | None = None,
    *,
    output_type: type[Value],
    **options: Unpack[RunOptions],
) -> Result[Value]: ...


@overload
def run_sync(
    target: Target[Value],
    input: RunInput | None = None,
    *,
    output_type: None = None,
    **options: Unpack[RunOptions],
) -> Result[Value]: ...


@with_options_in_signature
def run_sync(
    target: Target[Any],
    input: RunInput | None = None,  # noqa: A002
    *,
    output_type: type[Any] | None = None,
    **options: Unpack[RunOptions],
) -> Result[Any]:
    """Runs a team, an agent or a query to its end, for programs without an event loop: as ``await baton.run(…)``.

    Raises RuntimeError in a thread that runs an event loop, such as in a coroutine or a notebook: await ``run`` there.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # as it should be
    else:
        raise RuntimeError("this thread runs an event loop: use `await baton.run(…)` instead of `baton.run_sync(…)`")

    async def run_once() -> Result[Any]:
        async with Connection() as connection:
            return await connection.run(target, input, output_type=output_type, **options)

    return asyncio.run(run_once())


@overload
async def start(
    target: Target[Any],
    input: RunInput | None = None,
    *,
    output_type: type[Value],
    **options: Unpack[RunOptions],
) -> Handle[Value]: ...


@overload
async def start(
    target: Target[Value],
    input: RunInput | None = None,
    *,
    output_type: None = None,
    **options: Unpack[RunOptions],
) -> Handle[Value]: ...


@with_options_in_signature
async def start(
    target: Target[Any],
    input: RunInput | None = None,  # noqa: A002
    *,
    output_type: type[Any] | None = None,
    **options: Unpack[RunOptions],
) -> Handle[Any]:
    """Starts a run, as ``Connection.start`` does."""
    return await _default_connection().start(target, input, output_type=output_type, **options)


async def attach(
    name: str,
    *,
    output_type: type[Value] | None = None,
    namespace: str = "default",
    functions: Sequence[Function] = (),
) -> Handle[Value]:
    """A handle on an existing run, as ``Connection.attach``."""
    connection = _default_connection()
    return await connection.attach(name, output_type=output_type, namespace=namespace, functions=functions)


async def retry(
    name: str,
    *,
    output_type: type[Value] | None = None,
    namespace: str = "default",
    functions: Sequence[Function] = (),
) -> Handle[Value]:
    """Resumes a failed run, as ``Connection.retry``."""
    connection = _default_connection()
    return await connection.retry(name, output_type=output_type, namespace=namespace, functions=functions)


async def contributions(session: str, key: str = "contributions") -> tuple[Contribution, ...]:
    """A shared transcript, as ``Connection.contributions``."""
    return await _default_connection().contributions(session, key)


async def apply_schedule(schedule: ScheduleDefinition) -> ScheduleHandle:
    """Creates a schedule, or updates it in place, as ``Connection.apply_schedule``."""
    return await _default_connection().apply_schedule(schedule)


async def find_schedule(name: str, *, namespace: str = "default") -> ScheduleHandle:
    """An existing schedule, as ``Connection.find_schedule``."""
    return await _default_connection().find_schedule(name, namespace=namespace)
