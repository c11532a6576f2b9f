"""Where does it all run? The composition root: builds what is real, registers it, and runs until told to stop.

    python worker.py [MANIFESTS ...]

MANIFESTS are files and folders whose resources runs may name without bringing them, and whose Secrets they may use.
It connects to Temporal as its environment and ``temporal.toml`` say. Its settings: ``activities/settings.py``.
"""

if not __package__:  # started as `python worker.py`: hand over to the installed package
    import runpy
    import sys

    sys.path.pop(0)
    runpy.run_module("baton.worker", run_name="__main__", alter_sys=True)
    raise SystemExit

import argparse
import asyncio
import atexit
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pydantic
import pydantic_core
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from .activities.append import Append
from .activities.ask_model import AskModel
from .activities.brief import Brief
from .activities.conclude import Conclude
from .activities.evaluate import Evaluate
from .activities.journal import Journal
from .activities.journal.external_storage import stores
from .activities.journal.storage_driver import Blobs
from .activities.model.models import Models
from .activities.perform import Perform
from .activities.pin import Pin
from .activities.process.functions import Function, Functions
from .activities.process.health import health
from .activities.process.secrets import Vault
from .activities.process.settings import Lane, Role, Settings
from .activities.runtime.heartbeat import INTERVAL
from .activities.runtime.redaction import RedactingFormatter, Redaction
from .activities.runtime.single_flight import InFlight
from .activities.select import Select
from .activities.tool.tools import Tools
from .activities.use_tool import UseTool
from .conversation.errors import JournalUnavailable
from .conversation.failure import BatonError
from .conversation.settings_error import SettingsError
from .conversation.temporal.encryption import Keys
from .conversation.temporal.search_attributes import registered
from .conversation.temporal.temporal_client import ConnectionFailed, connect, storing, task_queue
from .resources.loader import Loaded, load_files
from .resources.problems import ManifestError
from .workflows.registry import WORKFLOWS

FINAL = (pydantic.ValidationError, pydantic_core.PydanticSerializationError, BatonError)
"""What fails a run. Any other exception is a bug, which suspends the run until the code is mended."""

Served = Mapping[Role, Sequence[Callable[..., Any]]]


@contextlib.asynccontextmanager
async def running(
    client: Client, own: Loaded, environment: Mapping[str, str], functions: Sequence[Function] = ()
) -> AsyncIterator[Vault]:
    """Runs a worker as long as the block does; ``own`` are its manifests and Secrets. Raises SettingsError."""
    settings = Settings.of(environment)
    settings.check(client.service_client.config.target_host)
    if not settings.journal_url:
        settings.home.mkdir(parents=True, exist_ok=True)
    vault = Vault(own.secrets, environment, settings.home / "sources")
    models, tools, calls, known = Models(vault), Tools(vault), InFlight(), Functions.of(settings.functions, functions)
    journal = await Journal.open(settings.journal, Keys.of(environment))
    try:
        client = storing(client, *stores(environment, Blobs(lambda: contextlib.nullcontext(journal))))
        pin = Pin(journal, own.catalog, vault, settings.route, searchable=await registered(client))
        served: Served = {
            "workflows": [
                pin.pin,
                Append(journal).append,
                Evaluate(journal, known).evaluate,
                Brief(journal, vault).brief,
                Conclude(journal, vault).conclude,
            ],
            "models": [
                AskModel(journal, models, tools, known, vault, calls).ask_model,
                Select(journal, models, vault, calls).select,
            ],
            "tools": [UseTool(journal, tools, vault, calls).use_tool, Perform(journal, known, vault, calls).perform],
        }
        workers = [_worker(client, lane, settings, served, vault) for lane in settings.lanes()]
        async with health(settings.health_port, lambda: all(each.is_running for each in workers)), _all(workers):
            yield vault
    finally:
        await calls.close()
        await models.close()
        await tools.close()
        await journal.close()


@contextlib.asynccontextmanager
async def _all(workers: Sequence[Worker]) -> AsyncIterator[None]:
    """Runs workers as long as the block does, and ends them together."""
    async with contextlib.AsyncExitStack() as stack:
        for each in workers:
            await stack.enter_async_context(each)
        try:
            yield
        finally:
            await asyncio.gather(*(each.shutdown() for each in workers))


def _worker(client: Client, lane: Lane, settings: Settings, served: Served, vault: Vault) -> Worker:
    """The worker of one task queue."""
    beat = timedelta(seconds=INTERVAL)
    return Worker(
        client,
        task_queue=lane.queue,
        workflows=WORKFLOWS if "workflows" in lane.roles else (),
        activities=[activity for role in sorted(lane.roles) for activity in served[role]],
        interceptors=[Redaction(vault.redact)],
        workflow_runner=UnsandboxedWorkflowRunner(),  # they are all ours: the tests replay them in the sandbox
        workflow_failure_exception_types=FINAL,
        max_cached_workflows=settings.cached_runs,
        max_concurrent_workflow_tasks=settings.max_workflow_tasks,
        max_concurrent_activities=settings.max_activities,
        max_task_queue_activities_per_second=lane.rate,
        max_heartbeat_throttle_interval=beat,
        default_heartbeat_throttle_interval=beat,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        graceful_shutdown_timeout=settings.shutdown,
        deployment_config=_deployment(settings),
    )


def _deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """The version that the worker is of: runs stay on the one they began with."""
    if settings.deployment is None or settings.build_id is None:
        return None
    version = WorkerDeploymentVersion(settings.deployment, settings.build_id)
    return WorkerDeploymentConfig(version, True, default_versioning_behavior=VersioningBehavior.PINNED)


async def main(paths: list[Path]) -> int:
    """Runs a worker until SIGINT or SIGTERM; 1 if manifests or settings are refused, 3 if Temporal can't be reached."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        own = load_files(paths)
        client = await connect()
        asked = DescribeNamespaceRequest(namespace=client.namespace)
        await client.workflow_service.describe_namespace(asked, retry=True)
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
        async with running(client, own, os.environ) as vault:
            log_to_stderr(vault)
            logging.getLogger("baton").info("working on the task queue %s of %s", task_queue(), client.namespace)
            await stopped.wait()
    except (JournalUnavailable, SettingsError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def log_to_stderr(vault: Vault) -> None:
    """Sends the log to stderr, without secrets."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s", vault.redact))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for chatty in ("httpx", "httpx2", "httpcore", "openai"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


if __name__ == "__main__":
    atexit.register(time.sleep, 0.02)  # the SDK's threads let go of the interpreter before it ends
    parser = argparse.ArgumentParser(description="Runs Baton's workflows and activities.")
    parser.add_argument("manifests", nargs="*", type=Path, help="files and folders of manifests")
    sys.exit(asyncio.run(main(parser.parse_args().manifests)))
