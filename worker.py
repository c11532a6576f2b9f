"""Runs a worker: makes all its parts, registers workflows and activities, and works until it is asked to stop.

``baton worker [MANIFESTS ...]``, or ``python -m baton.worker``: files and folders, whose resources every run may name
and whose Secrets this worker alone reads. It connects as all clients do. Settings: ``activities/runtime/settings.py``.
"""

if not __package__:  # started as `python worker.py`: run the same file as a part of the package
    import runpy
    import sys

    if not sys.flags.safe_path:  # this folder last: its modules must not hide others, but BATON_FUNCTIONS may name them
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
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker, WorkerConfig

from .activities.agent.executors import Discovery, Executors
from .activities.context.calls import Calls
from .activities.context.lookup import OwnManifests
from .activities.memory import HttpMemory
from .activities.model.providers import Providers, types_in
from .activities.pin import Pin
from .activities.registry import Activities, activities_of
from .activities.runtime.functions import FunctionRegistry
from .activities.runtime.health import checks_of, serve_health
from .activities.runtime.redaction import RedactionInterceptor
from .activities.runtime.sdk_options import WorkflowRunner, sdk_options
from .activities.runtime.secrets import SecretStore
from .activities.runtime.settings import Settings, WorkerQueue
from .activities.runtime.start_checks import (
    WaitForJournal,
    check_journal,
    check_journal_is_shared,
    check_manifests,
    check_manifests_once_listed,
    worker_identity,
)
from .activities.runtime.worker_process import leave_out_loaded_objects, run_all, stopped_by_signals, watch_event_loop
from .activities.tool.tools import Tools
from .contracts.errors import JournalUnavailable
from .contracts.requests import TaskQueues
from .contracts.settings import SettingsError
from .journal.external_storage import JournalStorageDriver, storage_drivers
from .journal.journal import Journal
from .journal.manifest_store import ManifestStore
from .observability.log import log_to_stderr, shorten_sdk_log
from .observability.metrics_export import MetricsText, exporting_metrics, watch_waiting_runs
from .observability.tracing import TracedActivities, run_is_sampled, span_processor
from .resources.functions import Function
from .resources.loader import Loaded, load_files
from .resources.problems import ManifestError
from .temporal.activity import SingleFlight
from .temporal.client import ConnectionFailed, connect, with_external_storage
from .temporal.encryption import Keys
from .temporal.search_attributes import KnownAttributes, describe_namespace
from .workflows.registry import VERSIONED_WORKFLOWS, WORKFLOW_FAILURES, WORKFLOWS
from .workflows.run.tracing import TracedWorkflows

log = logging.getLogger("baton")


@contextlib.asynccontextmanager
async def run_worker(
    client: Client,
    own: Loaded,
    environment: Mapping[str, str],
    functions: Sequence[Function] = (),
    metrics: MetricsText | None = None,
) -> AsyncIterator[SecretStore]:
    """Runs a worker while the block runs. ``own`` are its manifests and Secrets. Raises SettingsError."""
    shorten_sdk_log()
    settings = Settings.of(environment)
    check_journal_is_shared(settings, client.service_client.config.target_host)
    settings.make_journal_file()

    calls = Calls(own.catalog)
    secrets = SecretStore(own.secrets, environment, settings.state_dir / "sources", own.secret_files)
    async with contextlib.AsyncExitStack() as opened:  # what is opened last is closed first
        # The journal is closed last, as activities that are cancelled append what was said.
        journal = await Journal.open(settings.journal, Keys.from_environment(environment))
        opened.push_async_callback(journal.close)
        registry = FunctionRegistry.of(settings.functions, functions, settings.max_concurrent_functions)
        opened.callback(registry.close)
        spans = span_processor(environment, settings.state_dir / "spans", secrets.redact)
        if spans:
            opened.push_async_callback(spans.close)
        tools = Tools(secrets, registry, calls, journal, approve_destructive=settings.approve_destructive)
        opened.push_async_callback(tools.close)
        memory = HttpMemory()
        opened.push_async_callback(memory.close)
        executors = Executors(secrets)
        opened.push_async_callback(executors.close)
        providers = Providers(types_in(own.catalog), calls)
        opened.push_async_callback(providers.close)
        single_flight = SingleFlight(secrets.redact_partial)
        opened.push_async_callback(single_flight.close)

        in_journal = JournalStorageDriver(lambda: contextlib.nullcontext(journal.database))
        client = with_external_storage(client, *storage_drivers(environment, in_journal))
        journal_identity = await check_journal(client, journal.database.engine, settings.task_queue)
        identity = worker_identity(client, own.catalog)
        pin = Pin(
            journal,
            OwnManifests(own.catalog, ManifestStore(journal), calls.know),
            secrets,
            Discovery(tools, executors, secrets),
            TaskQueues.model_validate(settings.activity_queues),
            inline_manifests=settings.inline_manifests,
            identity=identity,
            name=journal_identity.name,
            attributes=KnownAttributes(client),
            query_ttl=settings.query_ttl_seconds,
            dialect=settings.dialect,
            traced=partial(run_is_sampled, spans),
        )
        activities = activities_of(pin, journal, providers, executors, memory, tools, registry, secrets, calls)

        # The first is the outermost: what it redacts includes the errors of all others.
        interceptors: list[Interceptor] = [RedactionInterceptor(secrets.redact), single_flight]
        if not journal_identity.replaces:  # else what is missing is lost for good
            interceptors.append(WaitForJournal(journal.find, journal_identity.name.place))
        if spans:
            interceptors += [TracedWorkflows(spans.take), TracedActivities(spans)]
        workers = [
            _sdk_worker(client, identity, queue, settings, activities, interceptors)
            for queue in settings.worker_queues()
        ]

        checks = checks_of(workers, client, lambda: journal_identity.check_unchanged(journal.database.engine))
        health = serve_health(settings.http_addresses, checks, lambda: calls.open_circuits, metrics)
        waiting_runs = watch_waiting_runs(client, settings.task_queue) if metrics else contextlib.nullcontext()
        async with health, watch_event_loop(), waiting_runs, run_all(workers):
            yield secrets


def _sdk_worker(
    client: Client,
    identity: str,
    queue: WorkerQueue,
    settings: Settings,
    activities: Activities,
    interceptors: Sequence[Interceptor],
) -> Worker:
    """The SDK's worker for one task queue."""
    workflows = VERSIONED_WORKFLOWS if settings.deployment else WORKFLOWS
    config = WorkerConfig(
        client=client,
        task_queue=queue.name,
        identity=identity,
        workflows=workflows if "workflows" in queue.roles else (),
        activities=[activity for role in sorted(queue.roles) for activity in activities[role]],
        interceptors=interceptors,
        workflow_runner=WorkflowRunner(),
        workflow_failure_exception_types=WORKFLOW_FAILURES,
    )
    return Worker(**(sdk_options(settings, queue) | config))


async def main(paths: Sequence[Path], *, recursive: bool, address: str | None = None) -> int:
    """Runs a worker until SIGINT or SIGTERM, for the Temporal at ``address`` or of the settings; the exit code.

    1: manifests or settings are refused, or do not fit to another worker of the task queue; 3: no Temporal.
    """
    try:
        settings = Settings.of(os.environ)
        stopped = stopped_by_signals(settings.graceful_shutdown_seconds)
        async with exporting_metrics(bool(settings.http_addresses), os.environ) as metrics:
            await _work(settings, load_files(paths, recursive=recursive), address, stopped, metrics)
    except (ManifestError, SettingsError, JournalUnavailable, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except ConnectionFailed as error:
        print(f"{error}\nStart a server with: baton dev", file=sys.stderr)
        return 3
    except RPCError as error:
        print(f"Temporal refused the worker: {error.message}", file=sys.stderr)
        return 3
    return 0


async def _work(
    settings: Settings, own: Loaded, address: str | None, stopped: asyncio.Event, metrics: MetricsText | None
) -> None:
    client = await connect(address)
    await describe_namespace(client)
    await check_manifests(client, settings, own.catalog)
    async with run_worker(client, own, os.environ, metrics=metrics) as secrets:
        log_to_stderr(secrets.redact, settings.log_format)
        leave_out_loaded_objects()
        for notice in own.notices():
            log.warning("%s", notice)
        place = (settings.task_queue, client.namespace)
        log.info("Worker started on task queue %s of namespace %s, %s loaded", *place, own.catalog.summary)
        checking = asyncio.create_task(check_manifests_once_listed(client, settings, own.catalog))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([checking, stopping], return_when=asyncio.FIRST_COMPLETED)
        if checking.done():
            checking.result()  # raises SettingsError, and so ends the worker
        else:
            checking.cancel()
        await stopping


if __name__ == "__main__":
    atexit.register(time.sleep, 0.02)  # the SDK's threads must release the interpreter before it ends
    parser = argparse.ArgumentParser(description="Runs Baton's workflows and activities.")
    parser.add_argument("manifests", nargs="*", type=Path, help="files and folders of manifests")
    parser.add_argument("-R", "--recursive", action="store_true", help="also the folders in a folder")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.manifests, recursive=arguments.recursive)))
