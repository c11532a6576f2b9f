"""How the SDK's worker is set up: its options, its deployment version, and its workflow runner."""

from datetime import timedelta
from importlib.metadata import version

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    WorkerConfig,
    WorkerDeploymentConfig,
    WorkflowInstance,
    WorkflowInstanceDetails,
)
from temporalio.worker._command_aware_visitor import CommandInfo  # private in 1.35, but in WorkflowInstance's methods
from temporalio.workflow import Info

from ...temporal.activity import INTERVAL
from ...temporal.client import EARLY_QUERY
from .settings import Settings, WorkerQueue


def deployment_of(settings: Settings) -> WorkerDeploymentConfig | None:
    """The worker's version, if it has one: a run stays on the version that it began with."""
    if settings.deployment is None or settings.build_id is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment, settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def sdk_options(settings: Settings, queue: WorkerQueue) -> WorkerConfig:
    """How much a worker of one task queue does at once, and how soon it learns of what has changed."""
    interval = timedelta(seconds=INTERVAL)
    return WorkerConfig(
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_workflow_tasks=settings.max_concurrent_workflow_tasks,
        max_concurrent_activities=settings.max_concurrent_activities,
        max_task_queue_activities_per_second=queue.rate,
        max_heartbeat_throttle_interval=interval,
        default_heartbeat_throttle_interval=interval,
        # With the SDK's default of 10 s, each run would wait that long after its worker's death.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        graceful_shutdown_timeout=settings.graceful_shutdown_timeout,
        deployment_config=deployment_of(settings),
        build_id=None if settings.deployment else version("baton"),  # three events of each turn hold it
    )


class WorkflowRunner(UnsandboxedWorkflowRunner):
    """Runs workflows outside of the sandbox: all are Baton's, and the tests replay them inside it."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The workflow of a run, for as long as a worker keeps it in its cache."""
        return _Instance(super().create_instance(det))


class _Instance(WorkflowInstance):
    """A run that refuses events that belong to no workflow task yet.

    A query that waited while a workflow task timed out brings the events of the next task, before that task. The SDK
    (1.35) would continue the run with them, and its commands would get into the history after later events: it could
    not be replayed. Refused, the query alone fails, and the run leaves the cache; ``RetryQueries`` sends it again.
    """

    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner
        self._begun_at = (0, 0)
        self._events = 0

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Handles what has happened; fails where no workflow task has begun on it."""
        if self._is_early(act):
            refused = WorkflowActivationCompletion(run_id=act.run_id)
            refused.failed.failure.message = EARLY_QUERY
            return refused
        self._begun_at = (act.timestamp.seconds, act.timestamp.nanos)
        self._events = act.history_length
        return self._inner.activate(act)

    def _is_early(self, act: WorkflowActivation) -> bool:
        """Whether there are new events, but the time is still that of the workflow task before."""
        same_task = (act.timestamp.seconds, act.timestamp.nanos) == self._begun_at
        acts = any(not job.HasField("query_workflow") for job in act.jobs)
        return same_task and acts and act.history_length > self._events and not act.is_replaying

    def get_serialization_context(self, command_info: CommandInfo | None) -> SerializationContext | None:
        """As of the run."""
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: CommandInfo | None) -> StorageDriverStoreContext:
        """As of the run."""
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Info:
        """As of the run."""
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        """As of the run."""
        return self._inner.get_thread_id()
