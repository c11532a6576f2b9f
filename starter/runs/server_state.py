"""Asks Temporal whether runs are open, and whether a worker polls."""

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from ...conversation.temporal import temporal_client


async def has_open_runs(client: Client) -> bool:
    """Whether any run is open; true if Temporal can't answer."""
    try:
        return (await client.count_workflows("ExecutionStatus = 'Running'")).count > 0
    except RPCError:
        return True


async def open_runs(client: Client, limit: int = 3) -> list[str]:
    """The ids of the newest open runs that clients have started, at most ``limit``."""
    wanted = "ExecutionStatus = 'Running' AND ParentWorkflowId IS NULL"
    return [run.id async for run in client.list_workflows(wanted, limit=limit)]


async def has_worker(client: Client, task_queue: str | None = None) -> bool:
    """Whether a worker polls the task queue for workflow tasks."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue or temporal_client.task_queue()),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    return bool((await client.workflow_service.describe_task_queue(request, retry=True)).pollers)
