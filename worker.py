"""Runs a worker: creates its parts, registers workflows and activities, and runs until it is signaled to stop.

``baton worker [MANIFESTS ...]``, or ``python -m baton.worker``: files and folders, whose resources any run may
reference and whose Secrets only this worker reads. It connects like all clients. Settings:
``activities/runtime/settings.py``.
"""

if not __package__:  # started as `python worker.py`: run the same file as a part of the package
    import runpy
    import sys

    if not sys.flags.safe_path:  # this folder last: BATON_FUNCTIONS may name its modules, but they must not hide others
        sys.path.append(sys.path.pop(0))
    runpy.run_module("baton.worker", run_name="__main__", alter_sys=True)

import argparse
import asyncio
import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker, WorkerConfig

from .activities.agent.executors import Discovery, Executors
from .activities.context.calls import Calls
from .activities.context.lookup import OwnManifests
from .activities.context.metering import Meters
from .activities.context.outside import Outside
from .activities.memory import HttpMemory, NoMemory
from .activities.model.providers import Providers, types_in
from .activities.pin import Pin
from .activities.registry import SECRETS_OF, Activities, activities_of
from .activities.runtime.functions import FunctionRegistry, marked_functions
from .activities.runtime.health import Readiness, checks_of, serve_health
from .activities.runtime.parts_by_run import ActivityParts, PartsByRun
from .activities.runtime.redaction import RedactionInterceptor
from .activities.runtime.replay import Replays
from .activities.runtime.sdk_options import WorkflowRunner, sdk_options
from .activities.runtime.secrets import SecretStore
from .activities.runtime.settings import ROLES, Settings, WorkerQueue
from .activities.runtime.start_checks import (
    check_journal,
    check_journal_is_shared,
    check_manifests,
    check_manifests_once_listed,
    publish_manifests,
    worker_identity,
)
from .activities.runtime.worker_process import (
    START,
    leave_out_loaded_objects,
    run_all,
    stopped_by_signals,
    watch_event_loop,
)
from .activities.tenants import QuotaChanges
from .activities.tool.tools import Tools
from .contracts.errors import JournalUnavailable
from .contracts.identity import IdentityKeys
from .contracts.requests import TaskQueues
from .contracts.settings import SCRIPTED_MODEL_URL, SettingsError
from .contracts.trace import SpanData
from .installation import MissingExtraError
from .journal.database import JournalIdentity
from .journal.engine import free_space
from .journal.external_storage import JournalStorageDriver, storage_drivers
from .journal.journal import Journal
from .journal.live_text import LiveTextPublisher, channel_of
from .journal.manifest_store import ManifestStore
from .observability.log import LogFormat, log_to_stderr, shorten_sdk_log
from .observability.runtime import MetricsText, exporting_metrics, watch_surroundings
from .observability.tracing import TracedActivities, run_is_sampled, span_processor
from .resources.catalog import Catalog
from .resources.functions import Function
from .resources.loader import Loaded, load_files
from .resources.problems import ManifestError
from .resources.secret import Secrets
from .resources.validation import Registered
from .temporal.activity import OwnClient, SingleFlight
from .temporal.bounded_process import check_processes, close_idle
from .temporal.client import ConnectionFailed, connect, with_external_storage
from .temporal.encryption import Keys
from .temporal.external_storage import check_private_hooks
from .temporal.personal_data import personal_data_of
from .temporal.search_attributes import KnownAttributes, describe_namespace
from .workflows.registry import VERSIONED_WORKFLOWS, WORKFLOWS
from .workflows.run.tracing import TracedWorkflows

log = logging.getLogger("baton")


@contextlib.asynccontextmanager
async def run_worker(
    client: Client,
    own: Loaded,
    environment: Mapping[str, str],
    functions: Sequence[Function] = (),
    metrics: MetricsText | None = None,
    outside: Outside | None = None,
) -> AsyncIterator["WorkerParts"]:
    """A context manager that runs a worker. ``own`` are its manifests and Secrets. Raises SettingsError.

    ``outside`` answers the calls of runs in place of models, tools and remote agents.
    """
    settings = Settings.of(environment)
    identity = worker_identity(client, own.catalog)
    opened = open_worker_parts(client, identity, own, environment, functions, outside)
    async with opened as (shared, journal_identity, parts):
        workers = [
            sdk_worker(shared, identity, queue, settings, parts.activities, parts.interceptors)
            for queue in settings.worker_queues()
        ]

        async def check_journal_again() -> None:
            await journal_identity.check_unchanged(shared.journal.database.engine)
            await shared.journal.leases.renew()  # fails if the disk is full, as the writes of runs do

        checks = checks_of(workers, shared.client, check_journal_again)
        health = serve_health(settings.http_addresses, checks, lambda: parts.calls.open_circuits, metrics)
        # All workers share the settings but their roles: these tell the backlog of a role that no worker has any more.
        watched = settings.with_all_roles() if "workflows" in settings.roles else settings
        surroundings = watch_surroundings(
            shared.client,
            settings.task_queue,
            {queue.name: queue.task_kinds for queue in watched.worker_queues()},
            Readiness(checks).results,
            partial(free_space, settings.journal),
        )
        watching = surroundings if metrics else contextlib.nullcontext()
        running = run_all(workers, settings.graceful_shutdown_seconds, shared.journal.database.give_up)
        async with health, watch_event_loop(quiet=START), running, watching:
            yield parts


@contextlib.asynccontextmanager
async def open_worker_parts(
    client: Client,
    identity: str,
    own: Loaded,
    environment: Mapping[str, str],
    functions: Sequence[Function] = (),
    outside: Outside | None = None,
) -> AsyncIterator[tuple["SharedParts", JournalIdentity, "WorkerParts"]]:
    """A context manager for all that a worker needs before it polls: checks the journal, and publishes the manifests.

    ``identity`` is that of the worker in Temporal. Raises SettingsError.
    """
    settings = Settings.of(environment)
    async with open_shared_parts(client, environment) as shared:
        journal_identity = await check_journal(shared.client, shared.journal.database.engine, settings.task_queue)
        async with open_parts(shared, identity, journal_identity, own, environment, functions, outside) as parts:
            await publish_manifests(shared.client, shared.journal, settings, identity, own.catalog)
            async with parts.quota_changes.watched():
                yield shared, journal_identity, parts


@dataclass(frozen=True)
class ProgramThreads:
    """What executes code for a worker in a program: threads for workflow tasks, and for functions that are not async.

    Async functions run in the event loop of the ``program``. ``dependencies`` are the program's own, for functions.
    """

    workflows: ThreadPoolExecutor
    functions: ThreadPoolExecutor
    program: asyncio.AbstractEventLoop
    dependencies: object = None


@dataclass(frozen=True)
class SharedParts:
    """The connection and the journal that the workers of one event loop share.

    ``threads`` are those of a program. Without them, each worker has its own threads.
    """

    client: Client
    journal: Journal
    live_text: LiveTextPublisher
    attributes: KnownAttributes
    threads: ProgramThreads | None = None


@contextlib.asynccontextmanager
async def open_shared_parts(
    client: Client, environment: Mapping[str, str], threads: ProgramThreads | None = None
) -> AsyncIterator[SharedParts]:
    """A context manager that opens the journal, and checks that workers can run in this process.

    Raises SettingsError and JournalUnavailable.
    """
    shorten_sdk_log()
    settings = Settings.of(environment)
    check_journal_is_shared(settings, client.service_client.config.target_host)
    settings.make_journal_file()
    check_private_hooks()
    await check_processes()
    async with contextlib.AsyncExitStack() as opened:
        keys = Keys.from_environment(environment)
        personal_data = personal_data_of(environment)
        if personal_data:
            await personal_data.check()
        journal = await Journal.open(
            settings.journal,
            client.namespace,
            keys,
            lease_seconds=settings.call_lease_seconds,
            personal_data=personal_data,
        )
        opened.push_async_callback(journal.close)
        opened.push_async_callback(close_idle)
        in_journal = JournalStorageDriver(lambda: contextlib.nullcontext(journal.database))
        client = with_external_storage(client, *storage_drivers(environment, in_journal))
        live_text = LiveTextPublisher(channel_of(settings.journal), client.namespace, keys)
        live_text.start()
        opened.push_async_callback(live_text.close)
        yield SharedParts(client, journal, live_text, KnownAttributes(client), threads)


@dataclass(frozen=True)
class WorkerParts:
    """The activities of a worker and the interceptors around them, with its manifests, Secrets and functions."""

    activities: Activities
    interceptors: Sequence[Interceptor]
    manifests: OwnManifests
    functions: FunctionRegistry
    secrets: SecretStore
    calls: Calls
    quota_changes: QuotaChanges
    take_spans: Callable[[Sequence[SpanData]], None] | None

    @property
    def of_activities(self) -> ActivityParts:
        """The parts that a worker of several runs needs."""
        by_type = {function.__name__: function for role in self.activities.values() for function in role}
        return ActivityParts(by_type=by_type, interceptors=self.interceptors)


@contextlib.asynccontextmanager
async def open_parts(
    shared: SharedParts,
    identity: str,
    journal_identity: JournalIdentity,
    own: Loaded,
    environment: Mapping[str, str],
    functions: Sequence[Function] = (),
    outside: Outside | None = None,
) -> AsyncIterator[WorkerParts]:
    """A context manager for the parts of a worker. ``own`` are its manifests and Secrets. Raises SettingsError.

    ``outside`` answers the calls of runs: then Secrets are hidden, unless it is one that also makes calls.
    """
    journal = shared.journal
    settings = Settings.of(environment)
    IdentityKeys.of(environment)  # raises SettingsError now, and not at the first decision
    calls = Calls(own.catalog)
    store = ManifestStore(journal)
    secrets = SecretStore(
        own.secrets,
        environment,
        settings.state_dir / "sources",
        own_files=own.secret_files,
        store=store,
        hidden=outside is not None and outside.hides_secrets,
    )
    # Resources are closed in reverse order, the journal last: canceled activities still append messages.
    async with contextlib.AsyncExitStack() as opened:
        program = shared.threads
        registry = FunctionRegistry(
            [*marked_functions(settings.functions), *functions],
            max_concurrent=settings.max_concurrent_functions,
            threads=program.functions if program else None,
            program=program.program if program else None,
            dependencies=program.dependencies if program else None,
            redact=secrets.redact,
        )
        opened.callback(registry.close)
        personal_data = personal_data_of(environment)
        spans = span_processor(environment, settings.state_dir / "spans", secrets.redact, personal_data)
        if spans:
            opened.push_async_callback(spans.close)
        tools = Tools(
            secrets,
            registry,
            calls,
            journal,
            approve_destructive=settings.approve_destructive,
            max_mcp_connections=settings.max_mcp_connections,
        )
        opened.push_async_callback(tools.close)
        memory = HttpMemory() if outside is None else NoMemory()
        opened.push_async_callback(memory.close)
        executors = Executors()
        opened.push_async_callback(executors.close)
        providers = Providers(
            types_in(own.catalog, environment) if "models" in settings.roles else (),
            calls,
            scripted=bool(environment.get(SCRIPTED_MODEL_URL)),
            outside=outside,
        )
        opened.push_async_callback(providers.close)
        # A part of a text can't be redacted: a name may go on in the next part.
        partial_text = secrets.redact_partial if personal_data is None else lambda _: ""
        single_flight = SingleFlight(partial_text, shared.live_text.publish)
        opened.push_async_callback(single_flight.close)

        manifests = OwnManifests(own.catalog, store, calls.know)
        pin = Pin(
            journal,
            manifests,
            secrets,
            Discovery(tools, executors, secrets, outside),
            TaskQueues.model_validate(settings.activity_queues),
            inline_manifests=settings.inline_manifests,
            identity=identity,
            name=journal_identity.name,
            attributes=shared.attributes,
            query_ttl=settings.query_ttl_seconds,
            max_outage=settings.max_outage_seconds,
            audited=settings.audit,
            dialect=settings.dialect,
            traced=partial(run_is_sampled, spans),
        )
        # The first interceptor is the outermost: it redacts the errors of all others.
        redaction = RedactionInterceptor(
            secrets.redact,
            waits_for_keys=settings.wait_for_keys,
            waits_for_rows=not journal_identity.replaces,
            personal_data=personal_data,
        )
        interceptors: list[Interceptor] = [OwnClient(shared.client), redaction, single_flight]
        if spans:
            interceptors += [TracedWorkflows(spans.take), TracedActivities(spans)]
        meters = Meters(manifests, settings.task_queue)
        replays = Replays(WORKFLOWS, shared.client.data_converter)
        yield WorkerParts(
            activities=activities_of(
                pin,
                journal,
                providers,
                executors,
                memory,
                tools,
                registry,
                secrets,
                calls,
                replays,
                shared.attributes,
                meters,
                outside,
            ),
            interceptors=interceptors,
            manifests=manifests,
            functions=registry,
            secrets=secrets,
            calls=calls,
            quota_changes=QuotaChanges(shared.client, journal, meters),
            take_spans=spans.take if spans else None,
        )


async def warn_of_missing(
    own: Loaded,
    parts: WorkerParts,
    settings: Settings,
    activities: Collection[str] | None = (),
    workflows: Collection[str] | None = (),
) -> None:
    """Logs the resources, functions, activities and workflows that a worker's manifests name, and that it doesn't have.

    ``activities`` and ``workflows`` are the application's on its task queue, or None if any type. It is no error: the
    store may get what is missing, or a client may bring it.
    """
    functions = parts.functions.names if settings.roles == frozenset(ROLES) else None
    registered = Registered(
        task_queue=settings.task_queue, functions=functions, activities=activities, workflows=workflows
    )
    stored = (await parts.secrets.of_run("")).stored.secrets
    secrets_of = None if functions is not None else {kind for role in settings.roles for kind in SECRETS_OF[role]}
    unresolved = own.unresolved(await parts.manifests.catalog(), stored, secrets_of)
    for problem in (*unresolved, *own.unregistered(registered)):
        log.warning("%s", problem)


@dataclass(frozen=True)
class RunsOfWorker:
    """Registers runs with a worker, each with its own manifests and Secrets."""

    shared: SharedParts
    identity: str
    journal_identity: JournalIdentity
    environment: Mapping[str, str]
    by_run: PartsByRun

    @contextlib.asynccontextmanager
    async def registered(self, run: str, own: Loaded, functions: Sequence[Function]) -> AsyncIterator[None]:
        """Registers the run with that workflow id while the block runs."""
        opened = open_parts(self.shared, self.identity, self.journal_identity, own, self.environment, functions)
        async with opened as parts:
            with self.by_run.registered(run, parts.of_activities):
                yield


@contextlib.asynccontextmanager
async def run_worker_for_runs(shared: SharedParts, environment: Mapping[str, str]) -> AsyncIterator[RunsOfWorker]:
    """A context manager that runs a worker of the environment's task queue, with which runs are registered.

    It declines the activities of all other runs. Raises SettingsError.
    """
    settings = Settings.of(environment)
    journal_identity = await check_journal(shared.client, shared.journal.database.engine, settings.task_queue)
    identity = worker_identity(shared.client, Catalog())
    async with open_parts(shared, identity, journal_identity, Loaded(), environment) as parts:
        by_run = PartsByRun()
        of_workflows = [part for part in parts.interceptors if isinstance(part, TracedWorkflows)]
        workers = [
            sdk_worker(shared, identity, queue, settings, parts.activities, [by_run, *of_workflows])
            for queue in settings.worker_queues()
        ]
        async with run_all(workers, settings.graceful_shutdown_seconds):
            yield RunsOfWorker(shared, identity, journal_identity, environment, by_run)


def sdk_worker(
    shared: SharedParts,
    identity: str,
    queue: WorkerQueue,
    settings: Settings,
    activities: Activities,
    interceptors: Sequence[Interceptor],
) -> Worker:
    """The SDK's worker for one task queue."""
    workflows = VERSIONED_WORKFLOWS if settings.deployment else WORKFLOWS
    config = WorkerConfig(
        client=shared.client,
        workflow_task_executor=shared.threads.workflows if shared.threads else None,
        task_queue=queue.name,
        identity=identity,
        workflows=workflows if "workflows" in queue.roles else (),
        activities=[activity for role in sorted(queue.roles) for activity in activities[role]],
        interceptors=interceptors,
        unsandboxed_workflow_runner=WorkflowRunner(),
    )
    return Worker(**(sdk_options(settings, queue) | config))


def logs_json() -> bool:
    """Whether each line of this process's log is to be JSON, also those before its settings are checked."""
    return os.environ.get("BATON_LOG_FORMAT") == "json"


def log_before_start(form: LogFormat) -> None:
    """Sends the log to stderr until a worker has started, which knows more secrets than those in the environment."""
    log_to_stderr(SecretStore(Secrets(), os.environ).redact, form)


async def main(paths: Sequence[Path], *, recursive: bool, address: str | None = None) -> int:
    """Runs a worker until SIGINT or SIGTERM, on the server at ``address`` or the configured one; returns the exit code.

    1: manifests or settings are invalid, or differ from those of another worker of the task queue; 3: no connection.
    """
    is_json = logs_json()
    log_before_start("json" if is_json else "text")

    def end(code: int, text: str) -> int:
        if is_json:
            log.error("%s", text)
        else:
            print(text, file=sys.stderr)
        return code

    try:
        settings = Settings.of(os.environ)
        stopped = stopped_by_signals(settings.graceful_shutdown_seconds)
        async with exporting_metrics(bool(settings.http_addresses), os.environ) as metrics:
            await _work(settings, load_files(paths, recursive=recursive), address, stopped, metrics)
    except (ManifestError, SettingsError, MissingExtraError, JournalUnavailable, OSError) as error:
        return end(1, str(error))
    except ConnectionFailed as error:
        return end(3, f"{error}\nStart a server with: baton dev")
    except RPCError as error:
        return end(3, f"Temporal rejected the worker: {error.message}")
    return 0


async def _work(
    settings: Settings, own: Loaded, address: str | None, stopped: asyncio.Event, metrics: MetricsText | None
) -> None:
    client = await connect(address)
    await describe_namespace(client)
    identity = worker_identity(client, own.catalog)
    await check_manifests(client, settings, identity)
    async with run_worker(client, own, os.environ, metrics=metrics) as parts:
        log_to_stderr(parts.secrets.redact, settings.log_format, settings.log_level, calls=settings.log_calls)
        leave_out_loaded_objects()
        for notice in own.notices():
            log.warning("%s", notice)
        await warn_of_missing(own, parts, settings)
        place = (settings.task_queue, client.namespace)
        log.info("Worker started on task queue %s of namespace %s, %s loaded", *place, own.catalog.summary)
        checking = asyncio.create_task(check_manifests_once_listed(client, settings, identity))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([checking, stopping], return_when=asyncio.FIRST_COMPLETED)
        if checking.done():
            checking.result()  # raises SettingsError, which ends the worker
        else:
            checking.cancel()
        await stopping


if __name__ == "__main__":
    atexit.register(time.sleep, 0.02)  # the SDK's threads must release the interpreter before it ends

    class _Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            if not logs_json():
                super().error(message)
            log_before_start("json")
            log.error("%s", message)
            sys.exit(2)

    parser = _Parser(description="Runs Baton's workflows and activities.")
    parser.add_argument("manifests", nargs="*", type=Path, help="files and folders of manifests")
    parser.add_argument("-R", "--recursive", action="store_true", help="also read subfolders")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.manifests, recursive=arguments.recursive)))
