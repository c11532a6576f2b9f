"""The configuration of the SDK's worker: its options, its deployment version, and its workflow runner."""

from datetime import timedelta
from importlib.metadata import version as version_of
from inspect import signature
from typing import TYPE_CHECKING, Literal, get_args

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerConfig,
    WorkerDeploymentConfig,
    WorkflowInstance,
    WorkflowInstanceDetails,
)
from temporalio.workflow import Info

from ...contracts.settings import SettingsError
from ...installation import version
from ...observability.run_log import clients_of
from ...temporal.activity import INTERVAL
from ...temporal.client import EARLY_QUERY
from .settings import Settings, WorkerQueue

if TYPE_CHECKING:  # a private module, but its type is in the methods of WorkflowInstance
    from temporalio.worker._command_aware_visitor import CommandInfo


def deployment_of(settings: Settings) -> WorkerDeploymentConfig | None:
    """The worker's deployment version, if it has one. Runs are pinned to the version that they were started with."""
    if settings.deployment is None or settings.build_id is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment, settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def sdk_options(settings: Settings, queue: WorkerQueue) -> WorkerConfig:
    """The concurrency limits and heartbeat intervals of a worker of one task queue."""
    interval = timedelta(seconds=INTERVAL)
    return WorkerConfig(
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_workflow_tasks=settings.max_concurrent_workflow_tasks,
        max_concurrent_activities=settings.max_concurrent_activities,
        max_task_queue_activities_per_second=queue.rate,
        max_heartbeat_throttle_interval=interval,
        default_heartbeat_throttle_interval=interval,
        # With the SDK's default of 10 s, a run would wait that long after a crash of its worker.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        graceful_shutdown_timeout=settings.graceful_shutdown_timeout,
        deployment_config=deployment_of(settings),
        build_id=None if settings.deployment else version(),  # short: it is in three events of every turn
    )


_Interval = Literal[
    "max_heartbeat_throttle_interval",
    "default_heartbeat_throttle_interval",
    "sticky_queue_schedule_to_start_timeout",
    "graceful_shutdown_timeout",
]
_INTERVALS: tuple[_Interval, ...] = get_args(_Interval)


def with_own_defaults(config: WorkerConfig, settings: Settings) -> WorkerConfig:
    """The options of an application's worker, with Baton's values for those that have the SDK's defaults.

    They are intervals and timeouts. How much runs at once, and the version, are decided by the application.
    """
    own = sdk_options(settings, WorkerQueue(settings.task_queue, settings.roles))
    parameters = signature(Worker.__init__).parameters
    for name in _INTERVALS:
        if config.get(name) == parameters[name].default:
            config[name] = own[name]
    return config


class WorkflowRunner(UnsandboxedWorkflowRunner):
    """Runs workflows outside of the sandbox: all workflow code is Baton's own, and tests replay it in the sandbox.

    Raises SettingsError if the SDK's version has an abstract method of workflow instances that is unknown here.
    """

    def __init__(self) -> None:
        super().__init__()
        if unknown := sorted(CheckedInstance.__abstractmethods__):
            raise SettingsError(
                f"Baton can't be used with temporalio {version_of('temporalio')}, whose workflow instances have "
                f"{' and '.join(unknown)}: install the version of temporalio that Baton's requirements.lock names"
            )

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The workflow instance of a run in the worker's cache."""
        return CheckedInstance(super().create_instance(det))


class CheckedInstance(WorkflowInstance):
    """A run that rejects events which belong to no workflow task yet.

    A query that was pending while a workflow task timed out is delivered with the events of the next task, before that
    task starts. The SDK (1.35) would apply them to the run, its commands would be recorded after later events, and the
    history could not be replayed. If the activation is rejected, only the query fails, and the run is evicted from the
    cache; ``RetryQueries`` sends the query again.
    """

    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner
        self._begun_at = (0, 0)
        self._events = 0

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Handles an activation; fails it if its events belong to no started workflow task."""
        if self._is_early(act):
            rejection = WorkflowActivationCompletion(run_id=act.run_id)
            rejection.failed.failure.message = EARLY_QUERY
            return rejection
        self._begun_at = (act.timestamp.seconds, act.timestamp.nanos)
        self._events = act.history_length
        with clients_of(act):
            return self._inner.activate(act)

    def _is_early(self, act: WorkflowActivation) -> bool:
        """Whether there are new events, but the timestamp is still that of the previous workflow task."""
        same_task = (act.timestamp.seconds, act.timestamp.nanos) == self._begun_at
        acts = any(not job.HasField("query_workflow") for job in act.jobs)
        return same_task and acts and act.history_length > self._events and not act.is_replaying

    def get_serialization_context(self, command_info: "CommandInfo | None") -> SerializationContext | None:
        """See ``WorkflowInstance``."""
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: "CommandInfo | None") -> StorageDriverStoreContext:
        """See ``WorkflowInstance``."""
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Info:
        """See ``WorkflowInstance``."""
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        """See ``WorkflowInstance``."""
        return self._inner.get_thread_id()
