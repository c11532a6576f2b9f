"""Executing an activity within the workflow task."""

from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError

from ...resources.base import JsonModel
from .activity_failure import read_failure

Result = TypeVar("Result", bound=JsonModel)


class LocalActivityTooLong(Exception):
    """A local activity took longer than a workflow task may, or failed in a way that is worth another try."""


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
            raise read_failure(cause, name) from None
        raise LocalActivityTooLong from None
