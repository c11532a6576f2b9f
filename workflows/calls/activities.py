"""How activities are executed: timeouts, retries, local activities, and the translation of failures."""

from datetime import timedelta
from typing import TypedDict, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...contracts.errors import BudgetReached, CallTimeout, CircuitOpen, Failure, Refusal
from ...contracts.message import TokenUsage
from ...contracts.requests import MISSED_HEARTBEATS
from ...resources.base import JsonModel
from ..state.stopping import ActivityFailed, ActivityInterrupted


def read_failure(
    cause: BaseException | None, name: str, activity: str | None = None
) -> ActivityInterrupted | ActivityFailed:
    """The exception for a failure of the activity ``name``, translated from the cause that Temporal reports."""
    if isinstance(cause, CancelledError):
        return ActivityInterrupted(activity)
    if isinstance(cause, ActivityTimeout):
        return ActivityFailed.of(CallTimeout(f"no worker finished {name}: {cause.message}"))
    if isinstance(cause, ApplicationError) and cause.type:
        more = cause.details[1:]
        mappings = [detail for detail in more if isinstance(detail, dict)]
        refusal = next((detail["refusal"] for detail in mappings if "refusal" in detail), None)
        detail = next((detail for detail in mappings if "refusal" not in detail), {})
        usage = next((detail[0] for detail in more if isinstance(detail, list)), None)
        circuit_open = cause.type == CircuitOpen.__name__
        wait = detail.get("wait")
        budget = detail if detail and wait is None and not circuit_open else None
        failure = Failure(
            family=str(cause.details[0]) if cause.details and not circuit_open else FAMILIES[name],
            type=cause.type,
            message=cause.message,
            attempts=None if budget else next((detail for detail in more if isinstance(detail, int)), None),
            wait=wait,
            budget=BudgetReached.model_validate(budget) if budget else None,
            refusal=Refusal.model_validate(refusal) if refusal else None,
        )
        return ActivityFailed(failure.without_defaults, TokenUsage.model_validate(usage) if usage else None)
    return ActivityFailed(Failure(family=FAMILIES[name], type="ActivityError", message=str(cause or "failed")))


FAMILIES = {
    "pin": "MemoryError",
    "read_failed_run": "MemoryError",
    "read_fork": "MemoryError",
    "append": "MemoryError",
    "ask_person": "MemoryError",
    "check_reply": "MemoryError",
    "check_identity": "MemoryError",
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
    "check_arguments": "ToolError",
    "review": "ToolError",
    "perform": "ToolError",
    "evaluate": "ValidationError",
    "last_failures": "TimeoutError",
    "grant": "MemoryError",
    "audit": "MemoryError",
    "expire": "MemoryError",
    "admit_run": "BudgetError",
    "release_run": "BudgetError",
    "notify": "ToolError",
}
"""The family of an activity's failure, if the failure itself has none."""


WHILE_STOPPING = (
    *("pin", "read_failed_run", "read_fork", "recall", "append", "conclude", "remember", "cancel_agent"),
    *("last_failures", "audit"),
)
"""The activities that a run executes even when it is to stop now: they read and store its conversation."""

STORING = ("append", "conclude", "remember")
"""Of these, those that store messages. They complete or fail, but are never interrupted: a stopped run executes them
while it ends, where no code handles an interruption."""

Result = TypeVar("Result", bound=JsonModel)


class LocalActivityTooLong(Exception):
    """A local activity exceeded its time limit, or failed with an error after which it may be tried again."""


async def execute_local_activity(
    name: str, request: JsonModel, result_type: type[Result], limit: timedelta, summary: str
) -> Result:
    """The result of an activity executed within the workflow task, which saves the server an activity task.

    Raises the exceptions of ``execute_activity``, and LocalActivityTooLong if a regular activity is to be tried.
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
            failed = read_failure(cause, name)
            if isinstance(failed, ActivityInterrupted) or failed.failure.wait is None:
                raise failed from None
        raise LocalActivityTooLong from None


class ActivityOptions(TypedDict, total=False):
    """An activity's timeouts and retry policy, as arguments of the SDK."""

    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


HEARTBEAT_TIMEOUT = timedelta(seconds=3)
"""After this long without a heartbeat an activity is retried: its worker has crashed."""

LOCAL_TIMEOUT = timedelta(seconds=1)
"""How long a local activity may delay a workflow task, of which a worker runs a limited number at a time."""

JOURNAL = ActivityOptions(
    start_to_close_timeout=timedelta(seconds=30),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30)),
)
"""Options of activities that only read and write the journal, for which a run waits as long as for any outage."""

LOOK = ActivityOptions(
    schedule_to_close_timeout=timedelta(seconds=5),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_attempts=1),
)
"""Options of activities that query Temporal, and whose result is optional for a run."""

CALL = ActivityOptions(
    start_to_close_timeout=timedelta(minutes=5),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30), maximum_attempts=4
    ),
)
"""Options of activities that call a model or a tool."""


PERFORM = ActivityOptions(
    start_to_close_timeout=CALL["start_to_close_timeout"],
    schedule_to_close_timeout=CALL["schedule_to_close_timeout"],
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5),
        maximum_interval=timedelta(seconds=2),  # that after the third attempt: later ones follow missed heartbeats only
        maximum_attempts=4 + MISSED_HEARTBEATS,
    ),
)
"""Options of activities that call a function as a member; a missed heartbeat does not count as an attempt."""


MEMORY = ActivityOptions(
    start_to_close_timeout=timedelta(minutes=5),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5),
        maximum_interval=timedelta(seconds=30),
        maximum_attempts=6 + MISSED_HEARTBEATS,
    ),
)
"""Options of activities that read and write a remote Memory; a missed heartbeat does not count as an attempt.

Their ``schedule_to_close_timeout`` is the longest outage for which the run waits: the Memory is not to blame for the
time without a worker. But it is at least MEMORY_TIMEOUT.
"""

MEMORY_TIMEOUT = timedelta(minutes=10)
"""For how long a Memory may be asked, even if a run waits for no outage."""


CANCEL = ActivityOptions(
    start_to_close_timeout=timedelta(seconds=15),
    schedule_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_attempts=3),
)
"""Options of activities that cancel remote tasks. A canceled run waits for them."""


def call_timeouts(seconds: float | None) -> ActivityOptions:
    """The timeouts of a call that may take so many seconds: the call itself times out before Temporal's timeout."""
    once = max(CALL["start_to_close_timeout"], timedelta(seconds=(seconds or 0) + 10))
    return {"start_to_close_timeout": once, "schedule_to_close_timeout": 6 * once}
