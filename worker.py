"""Where does it all run? The composition root: builds what is real, registers it, and runs until told to stop.

    python worker.py [MANIFESTS ...]

MANIFESTS are files and folders whose resources runs may name without bringing them, and whose Secrets they may use.
It connects to Temporal as its environment and ``temporal.toml`` say. Settings: BATON_HOME, BATON_JOURNAL_URL,
and the keys of BATON_ENCRYPTION_KEYS.
"""

import argparse
import asyncio
import atexit
import contextlib
import ipaddress
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pydantic
import pydantic_core
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.append import Append
from activities.ask_model import AskModel
from activities.brief import Brief
from activities.conclude import Conclude
from activities.evaluate import Evaluate
from activities.functions import Function, Functions
from activities.heartbeat import INTERVAL
from activities.in_flight import InFlight
from activities.journal import Blobs, Journal
from activities.model import Models
from activities.perform import Perform
from activities.pin import Pin
from activities.redaction import RedactingFormatter, Redaction
from activities.secrets import Vault
from activities.select import Select
from activities.tool import Tools
from activities.use_tool import UseTool
from conversation.attributes import registered
from conversation.encryption import Keys
from conversation.errors import BatonError, JournalUnavailable
from conversation.settings import SettingsError
from conversation.wire import HOME, TASK_QUEUE, ConnectionFailed, connect, storing
from resources.loader import Loaded, load_files
from resources.problems import ManifestError
from workflows.registry import WORKFLOWS

PASSED_THROUGH = ("pydantic", "pydantic_core", "resources", "conversation")
"""Modules that a workflow shares with its worker; all others are checked for what isn't deterministic."""


FINAL = (pydantic.ValidationError, pydantic_core.PydanticSerializationError, BatonError)
"""What fails a run. Any other exception is a bug, which suspends the run until the code is mended."""


@dataclass(frozen=True)
class Settings:
    """Where a worker keeps what it keeps."""

    home: Path
    journal: str
    journal_chosen: bool
    functions: tuple[str, ...]

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Settings":
        """Reads BATON_HOME, BATON_JOURNAL_URL and BATON_FUNCTIONS, modules with functions that manifests name."""
        home = Path(environment.get("BATON_HOME") or HOME)
        chosen = environment.get("BATON_JOURNAL_URL")
        modules = tuple(name.strip() for name in environment.get("BATON_FUNCTIONS", "").split(",") if name.strip())
        return cls(home, chosen or f"sqlite:///{home / 'journal.db'}", bool(chosen), modules)

    def check(self, address: str) -> None:
        """Raises JournalUnavailable where other machines would need a journal that only this one has."""
        if not self.journal_chosen and not _is_loopback(address):
            raise JournalUnavailable(
                f"Temporal at {address} is not on this machine, and the default journal is a file here: "
                "set BATON_JOURNAL_URL to a database that all workers share"
            )


@contextlib.asynccontextmanager
async def running(
    client: Client,
    own: Loaded,
    environment: Mapping[str, str],
    task_queue: str = TASK_QUEUE,
    cached_runs: int = 1_000,
    functions: Sequence[Function] = (),
) -> AsyncIterator[Vault]:
    """Runs a worker as long as the block does; ``own`` are its manifests and Secrets.

    It keeps ``cached_runs`` runs in memory, and replays the others when something happens in them.
    """
    settings = Settings.of(environment)
    settings.check(client.service_client.config.target_host)
    if not settings.journal_chosen:
        settings.home.mkdir(parents=True, exist_ok=True)
    vault = Vault(own.secrets, environment, settings.home / "sources")
    models, tools, calls = Models(vault), Tools(vault), InFlight()
    known = Functions.of(settings.functions, functions)
    journal = await Journal.open(settings.journal, Keys.of(environment))
    client = storing(client, Blobs(lambda: contextlib.nullcontext(journal)))
    try:
        pin = Pin(journal, own.catalog, vault, searchable=await registered(client))
        activities: list[Callable[..., Any]] = [
            pin.pin,
            AskModel(journal, models, tools, known, vault, calls).ask_model,
            UseTool(journal, tools, vault, calls).use_tool,
            Append(journal).append,
            Select(journal, models, vault, calls).select,
            Evaluate(journal, known).evaluate,
            Brief(journal, vault).brief,
            Conclude(journal, vault).conclude,
            Perform(journal, known, vault, calls).perform,
        ]
        async with _worker(client, task_queue, cached_runs, activities, vault):
            yield vault
    finally:
        await calls.close()
        await models.close()
        await tools.close()
        await journal.close()


def _worker(
    client: Client,
    task_queue: str,
    cached_runs: int,
    activities: Sequence[Callable[..., Any]],
    vault: Vault,
) -> Worker:
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    beat = timedelta(seconds=INTERVAL)
    return Worker(
        client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        activities=activities,
        interceptors=[Redaction(vault.redact)],
        workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
        workflow_failure_exception_types=FINAL,
        max_cached_workflows=cached_runs,
        max_concurrent_workflow_tasks=10,  # more at once would only outlast their timeout
        max_heartbeat_throttle_interval=beat,
        default_heartbeat_throttle_interval=beat,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        graceful_shutdown_timeout=timedelta(seconds=10),
    )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
            logging.getLogger("baton").info("working on the task queue %s of %s", TASK_QUEUE, client.namespace)
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
