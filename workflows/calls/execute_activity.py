"""How is an activity called, and what does its failure mean? In a task of its own, or within the workflow's."""

from datetime import timedelta
from typing import TypedDict, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...conversation.errors import CallTimeout
from ...conversation.failure import BatonError, Failure
from ...resources.base import Plain
from .task_queues import priority

Reply = TypeVar("Reply", bound=Plain)


class Interrupted(Exception):
    """An effect was given up because its run is to stop."""


class NotAtOnce(Exception):
    """An effect takes longer than a workflow task may."""


class Failed(Exception):
    """An effect failed for good."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)

    @classmethod
    def by(cls, error: BatonError) -> "Failed":
        """A failure that the workflow itself has found."""
        return cls(error.as_failure())


class Options(TypedDict, total=False):
    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


async def call(
    name: str, request: Plain, reply: type[Reply], options: Options, summary: str, queue: str | None = None
) -> Reply:
    """Has an activity done, on a task queue of its own or on the run's."""
    try:
        async with workflow.instance().free:
            result: Reply = await workflow.execute_activity(
                name, request, result_type=reply, summary=summary, task_queue=queue, priority=priority(), **options
            )
            return result
    except ActivityError as error:
        raise _meaning(error.cause, name) from None


async def call_at_once(name: str, request: Plain, reply: type[Reply], limit: timedelta, summary: str) -> Reply:
    """Has an activity done in the midst of the workflow task, which spares the server all that one of its own takes."""
    try:
        result: Reply = await workflow.execute_local_activity(
            name,
            request,
            result_type=reply,
            summary=summary,
            start_to_close_timeout=limit,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        return result
    except FailureError as error:  # Temporal tells some failures of local activities as they are
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, CancelledError) or (isinstance(cause, ApplicationError) and cause.non_retryable):
            raise _meaning(cause, name) from None
        raise NotAtOnce from None


def _meaning(cause: BaseException | None, name: str) -> Interrupted | Failed:
    if isinstance(cause, CancelledError):
        return Interrupted()
    if isinstance(cause, ActivityTimeout):
        return Failed.by(CallTimeout(f"{name} took too long: {cause.message}"))
    if isinstance(cause, ApplicationError) and cause.type:
        family = str(cause.details[0]) if cause.details else _FAMILY[name]
        return Failed(Failure(family=family, type=cause.type, message=cause.message))
    return Failed(Failure(family=_FAMILY[name], type="ActivityError", message=str(cause or "failed")))


_FAMILY = {"pin": "MemoryError", "ask_model": "ModelError", "use_tool": "ToolError", "append": "MemoryError"}
_FAMILY |= {"select": "ModelError", "evaluate": "ValidationError", "brief": "MemoryError", "conclude": "MemoryError"}
_FAMILY["perform"] = "ToolError"
