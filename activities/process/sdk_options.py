"""The options of the SDK's worker that settings decide."""

from datetime import timedelta
from importlib.metadata import version

from temporalio.worker import WorkerConfig

from ..runtime.heartbeat import INTERVAL
from .deployment import deployment_of
from .settings import Settings, WorkerQueue


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
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        graceful_shutdown_timeout=settings.graceful_shutdown_timeout,
        deployment_config=deployment_of(settings),
        build_id=None if settings.deployment else version("baton"),  # three events of each turn hold it
    )
