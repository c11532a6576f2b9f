"""Runs a worker: makes all its parts, registers workflows and activities, and works until it is asked to stop.

``python -m baton.worker [MANIFESTS ...]``: files and folders, whose resources every run may name and whose Secrets this
worker alone reads. Connection: the environment and ``temporal.toml``. Settings: ``activities/process/settings.py``.
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
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pydantic
import pydantic_core
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Interceptor, UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from .activities.journal.external_storage import storage_drivers
from .activities.journal.journal import Journal
from .activities.journal.storage_driver import JournalStorageDriver
from .activities.model.providers import Providers, types_in
from .activities.pin import Pin
from .activities.process.functions import FunctionRegistry
from .activities.process.health import serve_health
from .activities.process.secrets import SecretStore
from .activities.process.settings import Settings, WorkerQueue
from .activities.registry import Activities, activities_of
from .activities.runtime.heartbeat import INTERVAL
from .activities.runtime.redaction import RedactionInterceptor, log_to_stderr
from .activities.runtime.single_flight import SingleFlight
from .activities.tool.tools import Tools
from .conversation.contracts.requests import TaskQueues
from .conversation.errors import JournalUnavailable
from .conversation.failure import BatonError
from .conversation.settings_error import SettingsError
from .conversation.temporal.encryption import Keys
from .conversation.temporal.search_attributes import registered
from .conversation.temporal.temporal_client import ConnectionFailed, connect, task_queue, with_external_storage
from .resources.functions import Function
from .resources.loader import Loaded, load_files
from .resources.problems import ManifestError
from .workflows.registry import WORKFLOWS

WORKFLOW_FAILURES = (pydantic.ValidationError, pydantic_core.PydanticSerializationError, BatonError)
"""Exceptions that fail a run. Any other is a bug in Baton: the run waits until the code is corrected."""


@contextlib.asynccontextmanager
async def run_worker(
    client: Client, own: Loaded, environment: Mapping[str, str], functions: Sequence[Function] = ()
) -> AsyncIterator[SecretStore]:
    """Runs a worker while the block runs. ``own`` are its manifests and Secrets. Raises SettingsError."""
    settings = Settings.of(environment)
    settings.check(client.service_client.config.target_host)
    if not settings.journal_url:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
    secrets = SecretStore(own.secrets, environment, settings.state_dir / "sources")
    registry = FunctionRegistry.of(settings.functions, functions, settings.max_concurrent_functions)
    providers, tools = Providers(types_in(own.catalog)), Tools(secrets)
    single_flight = SingleFlight(secrets.redact_partial)
    journal = await Journal.open(settings.journal, Keys.from_environment(environment))
    try:
        in_journal = JournalStorageDriver(lambda: contextlib.nullcontext(journal.database))
        client = with_external_storage(client, *storage_drivers(environment, in_journal))
        queues = TaskQueues.model_validate(settings.activity_queues)
        pin = Pin(journal, own.catalog, secrets, queues, searchable=await registered(client))
        activities = activities_of(pin, journal, providers, tools, registry, secrets)
        interceptors = [RedactionInterceptor(secrets.redact), single_flight]
        workers = [_worker(client, queue, settings, activities, interceptors) for queue in settings.worker_queues()]
        healthy = serve_health(settings.health_port, lambda: all(each.is_running for each in workers))
        async with healthy, _run_all(workers):
            yield secrets
    finally:
        await single_flight.close()
        await providers.close()
        await tools.close()
        registry.close()
        await journal.close()


@contextlib.asynccontextmanager
async def _run_all(workers: Sequence[Worker]) -> AsyncIterator[None]:
    """Runs workers while the block runs, and shuts them down together."""
    async with contextlib.AsyncExitStack() as stack:
        for each in workers:
            await stack.enter_async_context(each)
        try:
            yield
        finally:
            await asyncio.gather(*(each.shutdown() for each in workers))


def _worker(
    client: Client, queue: WorkerQueue, settings: Settings, activities: Activities, interceptors: Sequence[Interceptor]
) -> Worker:
    """The SDK's worker for one task queue."""
    interval = timedelta(seconds=INTERVAL)
    return Worker(
        client,
        task_queue=queue.name,
        workflows=WORKFLOWS if "workflows" in queue.roles else (),
        activities=[activity for role in sorted(queue.roles) for activity in activities[role]],
        interceptors=interceptors,
        workflow_runner=UnsandboxedWorkflowRunner(),  # all workflows are Baton's: the tests replay them in the sandbox
        workflow_failure_exception_types=WORKFLOW_FAILURES,
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_workflow_tasks=settings.max_concurrent_workflow_tasks,
        max_concurrent_activities=settings.max_concurrent_activities,
        max_task_queue_activities_per_second=queue.rate,
        max_heartbeat_throttle_interval=interval,
        default_heartbeat_throttle_interval=interval,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        graceful_shutdown_timeout=settings.graceful_shutdown_timeout,
        deployment_config=_deployment(settings),
    )


def _deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """The worker's version, if it has one: a run stays on the version that it began with."""
    if settings.deployment is None or settings.build_id is None:
        return None
    version = WorkerDeploymentVersion(settings.deployment, settings.build_id)
    return WorkerDeploymentConfig(version, True, default_versioning_behavior=VersioningBehavior.PINNED)


async def main(paths: list[Path]) -> int:
    """Runs a worker until SIGINT or SIGTERM. Exit code 1: manifests or settings are refused; 3: no Temporal."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        own = load_files(paths)
        client = await connect()
        request = DescribeNamespaceRequest(namespace=client.namespace)
        await client.workflow_service.describe_namespace(request, retry=True)
    except (ManifestError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 1
    except ConnectionFailed as error:
        print(f"{error}\nStart a server with: baton dev", file=sys.stderr)
        return 3
    except RPCError as error:
        print(f"Temporal refused the worker: {error.message}", file=sys.stderr)
        return 3
    try:
        async with run_worker(client, own, os.environ) as secrets:
            log_to_stderr(secrets.redact)
            for notice in own.notices():
                logging.getLogger("baton").warning("%s", notice)
            logging.getLogger("baton").info("working on the task queue %s of %s", task_queue(), client.namespace)
            await stopped.wait()
    except (JournalUnavailable, SettingsError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    atexit.register(time.sleep, 0.02)  # the SDK's threads must release the interpreter before it ends
    parser = argparse.ArgumentParser(description="Runs Baton's workflows and activities.")
    parser.add_argument("manifests", nargs="*", type=Path, help="files and folders of manifests")
    sys.exit(asyncio.run(main(parser.parse_args().manifests)))
