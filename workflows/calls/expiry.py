"""Starts the workflow that deletes what a query has left, and calls the activity that does it."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ParentClosePolicy

from ...conversation.contracts.expiry import ExpireInput, ExpireRequest, ExpireResult
from ...conversation.temporal.temporal_client import WORKFLOW_TASK_TIMEOUT
from ..state.cancellation import uncancelled
from .options import HEARTBEAT_TIMEOUT


async def start_expiry(seconds: float | None) -> None:
    """Lets what this run leaves be deleted after ``seconds``, even while it is being cancelled; never if None.

    A child run waits for that. It outlives this one, whose status can be read until then.
    """
    if seconds is not None:
        await uncancelled(asyncio.create_task(_start(seconds)))


async def _start(seconds: float) -> None:
    await workflow.start_child_workflow(
        "expire",
        ExpireInput(seconds=seconds),
        id=f"expire/{workflow.uuid4()}",  # not the run's id, which a reset changes
        result_type=ExpireResult,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
        parent_close_policy=ParentClosePolicy.ABANDON,
        static_summary=f"deletes {workflow.info().workflow_id} {timedelta(seconds=seconds)} after its end"[:400],
    )


async def expire(request: ExpireRequest) -> ExpireResult:
    """Deletes what a run has left. It is tried until it is done."""
    result: ExpireResult = await workflow.execute_activity(
        "expire",
        request,
        result_type=ExpireResult,
        summary=f"delete {request.workflow_id}"[:200],
        start_to_close_timeout=timedelta(minutes=10),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=10)),
    )
    return result
