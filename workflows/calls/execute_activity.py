"""Executing an activity, and what its failure means to the workflow."""

from datetime import timedelta
from typing import TypedDict, TypeVar

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...conversation.errors import CallTimeout
from ...conversation.failure import Failure
from ...resources.base import JsonModel
from ..state.errors import ActivityFailed, ActivityInterrupted
from ..state.run_state import RunState

Result = TypeVar("Result", bound=JsonModel)


class LocalActivityTooLong(Exception):
    """A local activity took longer than a workflow task may, or failed in a way that is worth another try."""


class ActivityOptions(TypedDict, total=False):
    """What the SDK is told of an activity's time and retries."""

    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


async def execute_activity(
    run: RunState,
    name: str,
    request: JsonModel,
    result_type: type[Result],
    options: ActivityOptions,
    summary: str,
    task_queue: str | None = None,
) -> Result:
    """The result of an activity on a task queue, by default the run's own.

    Raises ActivityFailed when it fails and is not tried again, ActivityInterrupted when it was cancelled.
    """
    try:
        async with run.activity_slots:
            result: Result = await workflow.execute_activity(
                name,
                request,
                result_type=result_type,
                summary=summary,
                task_queue=task_queue,
                priority=priority(run),
                **options,
            )
            return result
    except ActivityError as error:
        raise _meaning(error.cause, name) from None


async def execute_local_activity(
    name: str, request: JsonModel, result_type: type[Result], limit: timedelta, summary: str
) -> Result:
    """The result of an activity within the workflow task, which saves the server a task of its own.

    Raises what ``execute_activity`` does, and LocalActivityTooLong where an ordinary activity is to be tried.
    """
    try:
        result: Result = await workflow.execute_local_activity(
            name,
            request,
            result_type=result_type,
            summary=summary,
            start_to_close_timeout=limit,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        return result
    except FailureError as error:  # Temporal raises some failures of local activities unwrapped
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, CancelledError) or (isinstance(cause, ApplicationError) and cause.non_retryable):
            raise _meaning(cause, name) from None
        raise LocalActivityTooLong from None


def priority(run: RunState) -> Priority:
    """The priority of the run's activities and children; what it leaves open is inherited from the run.

    A run without a tenant shares fairly with others under an id of its own, which its children inherit.
    """
    info = workflow.info()
    own = None if info.priority.fairness_key else info.first_execution_run_id
    return Priority(priority_key=run.task_queues.priority, fairness_key=run.task_queues.tenant or own)


def _meaning(cause: BaseException | None, name: str) -> ActivityInterrupted | ActivityFailed:
    if isinstance(cause, CancelledError):
        return ActivityInterrupted()
    if isinstance(cause, ActivityTimeout):
        return ActivityFailed.of(CallTimeout(f"{name} took too long: {cause.message}"))
    if isinstance(cause, ApplicationError) and cause.type:
        family = str(cause.details[0]) if cause.details else _FAMILIES[name]
        return ActivityFailed(Failure(family=family, type=cause.type, message=cause.message))
    return ActivityFailed(Failure(family=_FAMILIES[name], type="ActivityError", message=str(cause or "failed")))


_FAMILIES = {
    "pin": "MemoryError",
    "append": "MemoryError",
    "brief": "MemoryError",
    "conclude": "MemoryError",
    "ask_model": "ModelError",
    "select": "ModelError",
    "use_tool": "ToolError",
    "perform": "ToolError",
    "evaluate": "ValidationError",
}
"""The family of an activity's failure, where the failure itself does not say it."""
