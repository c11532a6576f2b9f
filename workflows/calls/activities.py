"""How activities are executed: timeouts and retries, local activities, and how their failures are read."""

from datetime import timedelta
from typing import TypedDict, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...contracts.errors import BudgetReached, CallTimeout, CircuitOpen, Failure
from ...contracts.requests import MISSED_HEARTBEATS
from ...resources.base import JsonModel
from ..state.stopping import ActivityFailed, ActivityInterrupted


def read_failure(
    cause: BaseException | None, name: str, activity: str | None = None
) -> ActivityInterrupted | ActivityFailed:
    """What to raise for the failure of the activity ``name`` with an id, by the cause that Temporal gives."""
    if isinstance(cause, CancelledError):
        return ActivityInterrupted(activity)
    if isinstance(cause, ActivityTimeout):
        return ActivityFailed.of(CallTimeout(f"{name} took too long: {cause.message}"))
    if isinstance(cause, ApplicationError) and cause.type:
        more = cause.details[1:]
        about = next((each for each in more if isinstance(each, dict)), {})
        circuit_open = cause.type == CircuitOpen.__name__
        budget = about if about and not (circuit_open or "dialect" in about) else None
        failure = Failure(
            family=str(cause.details[0]) if cause.details and not circuit_open else FAMILIES[name],
            type=cause.type,
            message=cause.message,
            attempts=None if budget else next((each for each in more if isinstance(each, int)), None),
            wait=about.get("wait") if circuit_open else None,
            budget=BudgetReached.model_validate(budget) if budget else None,
            dialect=about.get("dialect"),
        )
        return ActivityFailed(failure.without_defaults)
    return ActivityFailed(Failure(family=FAMILIES[name], type="ActivityError", message=str(cause or "failed")))


FAMILIES = {
    "pin": "MemoryError",
    "append": "MemoryError",
    "ask_person": "MemoryError",
    "check_reply": "MemoryError",
    "recall": "MemoryError",
    "remember": "MemoryError",
    "brief": "MemoryError",
    "conclude": "MemoryError",
    "ask_model": "ModelError",
    "execute_agent": "ModelError",
    "cancel_agent": "ModelError",
    "select": "ModelError",
    "use_tool": "ToolError",
    "delegate": "ToolError",
    "review": "ToolError",
    "perform": "ToolError",
    "evaluate": "ValidationError",
    "last_failures": "TimeoutError",
    "grant": "MemoryError",
    "expire": "MemoryError",
}
"""The family of an activity's failure, where the failure itself does not say it."""


WHILE_STOPPING = ("pin", "recall", "append", "conclude", "remember", "cancel_agent", "last_failures")
"""The activities that a run executes although it is to stop now: they find and keep its conversation."""

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


class ActivityOptions(TypedDict, total=False):
    """An activity's timeouts and retries, as arguments of the SDK."""

    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


HEARTBEAT_TIMEOUT = timedelta(seconds=2.5)
"""After this long without a heartbeat an activity is tried again: its worker has died."""

LOCAL_TIMEOUT = timedelta(seconds=1)
"""How long a local activity may hold up a workflow task, of which a worker runs only some at a time."""

JOURNAL = ActivityOptions(
    start_to_close_timeout=timedelta(seconds=30),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30)),
)
"""Options of activities that read and write the journal alone."""

LOOK = ActivityOptions(
    schedule_to_close_timeout=timedelta(seconds=5),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_attempts=1),
)
"""Options of activities that look at Temporal, and without which a run can do."""

CALL = ActivityOptions(
    start_to_close_timeout=timedelta(minutes=5),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30), maximum_attempts=4
    ),
)
"""Options of activities that call a model, a tool or a function."""


MEMORY = ActivityOptions(
    start_to_close_timeout=timedelta(minutes=5),
    schedule_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5),
        maximum_interval=timedelta(seconds=30),
        maximum_attempts=6 + MISSED_HEARTBEATS,
    ),
)
"""Options of activities that read and write a Memory at its address; a missed heartbeat counts as no attempt."""


CANCEL = ActivityOptions(
    start_to_close_timeout=timedelta(seconds=15),
    schedule_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_attempts=3),
)
"""Options of activities that cancel what is left open elsewhere. A run that was canceled waits for them."""


def call_timeouts(seconds: float | None) -> ActivityOptions:
    """The timeouts of a call that may take so many seconds: it gives up by itself before Temporal gives it up."""
    once = max(CALL["start_to_close_timeout"], timedelta(seconds=(seconds or 0) + 10))
    return {"start_to_close_timeout": once, "schedule_to_close_timeout": 6 * once}
