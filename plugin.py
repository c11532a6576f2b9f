"""A plugin for Temporal's SDK, with which an application's own worker also executes teams of agents.

    worker = Worker(
        client, task_queue="claims", workflows=[Claim], activities=[pay], plugins=[BatonPlugin("teams/")]
    )
    await worker.run()

The application's workflows ask teams with ``baton.workflow.run_team``.
"""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from temporalio.client import Client, ClientConfig
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, Worker, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from .activities.registry import unbound_activities
from .activities.runtime.parts_by_run import PartsByRun
from .activities.runtime.sdk_options import WorkflowRunner as BatonWorkflowRunner
from .activities.runtime.sdk_options import with_own_defaults
from .activities.runtime.settings import Settings
from .activities.runtime.start_checks import (
    check_manifests,
    check_manifests_once_listed,
    manifests_digest,
    worker_identity,
)
from .activities.runtime.worker_process import run_all
from .contracts.settings import check_private_names
from .contracts.trace import SpanData
from .journal.database import Database
from .journal.external_storage import JournalStorageDriver, storage_drivers
from .journal.journal import Journal
from .resources.functions import Function
from .resources.strategies import OWN_WORKFLOWS
from .resources.tool import OWN_ACTIVITIES
from .starter.api.definitions import ACTIVITY, Source, load_sources, unique_functions
from .starter.server.in_process_worker import FLEET_SETTINGS
from .temporal.client import (
    converter_with_external_storage,
    for_baton,
    with_baton_interceptors,
    with_external_storage,
)
from .temporal.converter import data_converter_beside
from .temporal.encryption import ChainedCodec as ChainedCodec
from .temporal.encryption import EncryptionCodec as EncryptionCodec
from .temporal.personal_data import RedactHook, redact_setting
from .temporal.worker_connection import WorkerConnection
from .worker import log, open_worker_parts, sdk_worker, warn_of_missing
from .workflows.registry import VERSIONED_WORKFLOWS, WORKFLOW, WORKFLOWS
from .workflows.run.tracing import TracedWorkflows

PASSED_THROUGH = ("baton", "pydantic", "pydantic_core")
"""Modules that the sandbox of the application's workflows does not import anew."""


class BatonPlugin(SimplePlugin):
    """Adds Baton's workflows and activities to a worker, beside those of the application.

    The worker keeps its client, task queue, namespace, data converter with its codec, interceptors, tuner and sandbox.
    Baton's own values, workflows and activities are converted and executed as in Baton's own workers, and
    ``worker.run()`` makes the same checks: it raises SettingsError, for example if an open run has another journal.

    A plugin of a client applies to all workers of this client; one of a worker to that worker alone.
    """

    def __init__(
        self,
        *manifests: Source,
        functions: Sequence[Function] = (),
        settings: Mapping[str, str] | None = None,
        redact: RedactHook | None = None,
        recursive: bool = False,
    ) -> None:
        """``manifests`` are what runs may name: files, folders, and definitions such as ``baton.Team``.

        ``functions`` are what manifests may name as tools, members and conditions, besides those of the definitions.
        ``settings`` are a worker's variables, such as ``{"BATON_JOURNAL_URL": "postgresql://…"}``, in addition to those
        of the process; those of a fleet, such as BATON_ROLES, are not read from the process. ``redact`` replaces
        personal data before it is stored: a function of a module, or patterns by name. Raises ManifestError
        and SettingsError.
        """
        super().__init__("baton.BatonPlugin")
        self._own, of_definitions = load_sources(manifests, recursive=recursive)
        self._functions = unique_functions([*of_definitions, *functions])
        self._environment = {**os.environ, **dict.fromkeys(FLEET_SETTINGS, ""), **(settings or {})}
        if redact is not None:
            self._environment |= redact_setting(redact)
        Settings.of(self._environment)

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        """Lets a client read results of Baton as Baton's types, and retry early queries."""
        own = config.get("data_converter") or DataConverter.default
        config["data_converter"] = data_converter_beside(own, self._environment)
        config["interceptors"] = with_baton_interceptors(config.get("interceptors", ()), self._environment)
        return config

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Adds Baton's workflows and activities; what they need is opened when the worker runs."""
        parts = _LateParts({**self._environment, "BATON_TASK_QUEUE": config["task_queue"]})
        client = for_baton(config["client"], self._environment)
        in_journal = JournalStorageDriver(parts.open_database)
        parts.connection = WorkerConnection(client.service_client)
        parts.client = parts.connection.of(
            with_external_storage(client, *storage_drivers(self._environment, in_journal))
        )
        config["client"] = parts.client
        identity = config.get("identity")
        own = worker_identity(client, self._own.catalog)
        parts.identity = config["identity"] = f"{identity}/{manifests_digest(own)}" if identity else own
        deployment = config.get("deployment_config")
        is_versioned = deployment is not None and deployment.use_worker_versioning
        config["workflows"] = [*config.get("workflows", ()), *(VERSIONED_WORKFLOWS if is_versioned else WORKFLOWS)]
        activities = [one for role in unbound_activities().values() for one in role]
        config["activities"] = [*config.get("activities", ()), *activities]
        config["interceptors"] = [*config.get("interceptors", ()), parts, TracedWorkflows(parts.take)]
        config["workflow_runner"] = _passing_through(config.get("workflow_runner"))
        config["unsandboxed_workflow_runner"] = BatonWorkflowRunner()
        return with_own_defaults(config, parts.settings)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Lets a replayer replay Baton's workflows as well, with the values in external storage."""
        own = config.get("data_converter") or DataConverter.default
        journal = Settings.of(self._environment).journal
        namespace = config["namespace"]
        drivers = storage_drivers(
            self._environment, JournalStorageDriver(lambda: Database.open(journal, namespace), replays=True)
        )
        config["data_converter"] = converter_with_external_storage(
            data_converter_beside(own, self._environment), *drivers
        )
        config["workflows"] = [*config.get("workflows", ()), *WORKFLOWS]
        config["workflow_runner"] = _passing_through(config.get("workflow_runner"))
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002 - SDK's
        """Opens what Baton's activities need, makes the checks of a worker, and runs the worker."""
        check_private_names("temporalio", worker, ["_shutdown_complete_event"])
        has_begun = False

        async def begin(begun: Worker) -> None:
            nonlocal has_begun
            has_begun = True
            await next(begun)

        try:
            await self._run_checked(worker, begin)
        except BaseException:
            if not has_begun:  # else ``async with`` and ``shutdown`` would wait for its end, and nobody read the error
                worker._shutdown_complete_event.set()
            raise

    async def _run_checked(self, worker: Worker, begin: Callable[[Worker], Awaitable[None]]) -> None:
        config = worker.config(active_config=True)
        parts = _late_parts(config)
        parts.connection.follow(worker)
        await check_manifests(parts.client, parts.settings, parts.identity)
        async with self._opened(parts, config):
            check = check_manifests_once_listed(parts.client, parts.settings, parts.identity)
            checking = asyncio.create_task(check)
            ending = asyncio.create_task(_shut_down_after_failure(worker, checking))
            try:
                await begin(worker)
            finally:
                ending.cancel()
                checking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await checking  # raises SettingsError if the manifests differ

    @contextlib.asynccontextmanager
    async def _opened(self, parts: "_LateParts", config: WorkerConfig) -> AsyncIterator[None]:
        """Opens the parts of a worker, and runs workers of the task queues of models that have a rate."""
        worker_parts = open_worker_parts(parts.client, parts.identity, self._own, parts.environment, self._functions)
        async with worker_parts as (shared, _, own):
            parts.journal = shared.journal
            parts.others = own.of_activities
            parts.take_spans = own.take_spans
            limited = [
                sdk_worker(shared, parts.identity, queue, parts.settings, own.activities, own.interceptors)
                for queue in parts.settings.worker_queues()
                if queue.name != config["task_queue"]
            ]
            for notice in self._own.notices():
                log.warning("%s", notice)
            await warn_of_missing(
                self._own, own, parts.settings, activities=_activity_types(config), workflows=_workflow_types(config)
            )
            leading = asyncio.create_task(parts.connection.lead(limited))
            try:
                async with run_all(limited, parts.settings.graceful_shutdown_seconds):
                    yield
            finally:
                leading.cancel()


async def _shut_down_after_failure(worker: Worker, checking: "asyncio.Task[None]") -> None:
    """Shuts the worker down if the check of its manifests has failed."""
    await asyncio.wait([checking])
    if not checking.cancelled() and checking.exception():
        await worker.shutdown()


class _LateParts(PartsByRun):
    """What a worker gets when it runs: the journal, Baton's activities, and the span processor.

    ``client`` is Baton's, with the ``connection`` of the worker's client, and ``identity`` that of the worker.
    """

    connection: WorkerConnection
    client: Client
    identity: str

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.environment = environment
        self.settings = Settings.of(environment)
        self.journal: Journal | None = None
        self.take_spans: Callable[[Sequence[SpanData]], None] | None = None

    def open_database(self) -> contextlib.AbstractAsyncContextManager[Database]:
        """The journal's database, for values in external storage."""
        assert self.journal, "the journal is opened before the worker polls"
        return contextlib.nullcontext(self.journal.database)

    def take(self, spans: Sequence[SpanData]) -> None:
        """Exports spans of runs if the worker has a span processor."""
        if self.take_spans:
            self.take_spans(spans)


def _late_parts(config: WorkerConfig) -> _LateParts:
    return next(one for one in config["interceptors"] if isinstance(one, _LateParts))


def _activity_types(config: WorkerConfig) -> frozenset[str] | None:
    """The types of the application's activities; None if it has a dynamic one, which executes all types."""
    names = {getattr(one, ACTIVITY).name for one in config["activities"]}
    return None if None in names else frozenset(name for name in names - OWN_ACTIVITIES if name)


def _workflow_types(config: WorkerConfig) -> frozenset[str] | None:
    """The types of the application's workflows; None if it has a dynamic one, which executes all types."""
    names = {getattr(one, WORKFLOW).name for one in config["workflows"]}
    return None if None in names else frozenset(name for name in names - OWN_WORKFLOWS if name)


def _passing_through(runner: WorkflowRunner | None) -> WorkflowRunner:
    """The runner of the application's workflows, whose sandbox passes Baton's modules through."""
    if runner is None:
        runner = SandboxedWorkflowRunner()
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    return dataclasses.replace(runner, restrictions=runner.restrictions.with_passthrough_modules(*PASSED_THROUGH))
