"""What the failure of an activity means to the workflow."""

from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...conversation.errors import CallTimeout, CircuitOpen
from ...conversation.failure import BudgetReached, Failure
from ..state.errors import ActivityFailed, ActivityInterrupted


def read_failure(
    cause: BaseException | None, name: str, activity: str | None = None
) -> ActivityInterrupted | ActivityFailed:
    """What to raise for the failure of the activity ``name`` with an id, by the cause that Temporal gives."""
    if isinstance(cause, CancelledError):
        return ActivityInterrupted(activity)
    if isinstance(cause, ActivityTimeout):
        return ActivityFailed.of(CallTimeout(f"{name} took too long: {cause.message}"))
    if isinstance(cause, ApplicationError) and cause.type:
        family = str(cause.details[0] if cause.details else FAMILIES[name])
        attempts = next((each for each in cause.details[1:] if isinstance(each, int)), None)
        failure = Failure(family=family, type=cause.type, message=cause.message, attempts=attempts)
        more = [each for each in cause.details[1:] if isinstance(each, dict)]
        if dialect := next((each["dialect"] for each in more if "dialect" in each), None):
            return ActivityFailed(failure.model_copy(update={"dialect": dialect}))
        reached = next(iter(more), None)
        if cause.type == CircuitOpen.__name__:
            return ActivityFailed(failure.model_copy(update={"family": FAMILIES[name], **(reached or {})}))
        update = {"budget": BudgetReached.model_validate(reached), "attempts": None} if reached else {}
        return ActivityFailed(failure.model_copy(update=update))
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
