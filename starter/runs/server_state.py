"""Asks Temporal whether runs are open, and whether a worker polls."""

from temporalio.client import Client
from temporalio.service import RPCError

from ...conversation.temporal import temporal_client
from ...conversation.temporal.live_workers import live_workers


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
    """Whether a worker lives on the task queue."""
    return bool(await live_workers(client, task_queue or temporal_client.task_queue()))
