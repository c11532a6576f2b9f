"""The base class of a run's errors, and their seven families. An error says whether Temporal retries it."""

from datetime import timedelta
from typing import ClassVar

from temporalio.exceptions import ApplicationError

from ..resources.base import JsonModel, JsonObject
from ..resources.budget import Budget, OnExceeded
from ..resources.dialect import Dialect
from .text import truncate

MAX_ERROR_TEXT = 2_000


class Cause(JsonModel):
    """An error; ``attempts`` is how often a call was tried, where that is known."""

    family: str
    type: str
    message: str
    attempts: int | None = None


class BudgetReached(JsonModel):
    """A budget that lets no further call begin: the id of its owner, the limit such as ``tokens``, what follows.

    If a person is asked: the ``account`` to which a yes grants ``more``, and how many ``grants`` it had before.
    """

    owner: str
    limit: str
    on_exceeded: OnExceeded = "stop"
    account: str | None = None
    grants: int | None = None
    more: Budget | None = None

    @property
    def asks(self) -> bool:
        """Whether the call waits for a person, who may grant more."""
        return bool(self.on_exceeded == "ask" and self.account and self.more)


class Failure(Cause):
    """An error in a status: where it happened and, for a query's timeout, what went wrong before.

    ``budget`` is the one that was reached, if it is the budget of somebody around, who fails as well. ``wait`` are the
    seconds after which the call is tried, which has not begun because a circuit breaker is open.
    ``dialect`` is that of a run that could not be pinned.
    """

    target: str | None = None
    member: str | None = None
    turn: int | None = None
    cause: Cause | None = None
    budget: BudgetReached | None = None
    wait: float | None = None
    dialect: Dialect | None = None


class BatonError(ApplicationError):
    """The base class of all errors of a run. The message is shown to people and never contains a secret."""

    family: ClassVar[str] = "BatonError"
    retryable: ClassVar[bool] = False
    outage: bool = False
    """Whether the other side has failed: it can't be reached, gives no answer in time, or says that it has failed."""

    def __init__(
        self,
        message: str,
        *more: JsonObject,
        retryable: bool | None = None,
        retry_after: timedelta | None = None,
        outage: bool | None = None,
    ) -> None:
        self.outage = type(self).outage if outage is None else outage
        super().__init__(
            truncate(message, 10 * MAX_ERROR_TEXT),  # truncated further when it is stored, after secrets are removed
            self.family,
            *more,
            type=type(self).__name__,
            non_retryable=not (self.retryable if retryable is None else retryable),
            next_retry_delay=retry_after,
        )

    def with_details(self, *more: JsonObject) -> ApplicationError:
        """The same error as Temporal stores it, with more details."""
        return ApplicationError(
            self.message,
            *self.details,
            *more,
            type=self.type,
            non_retryable=self.non_retryable,
            next_retry_delay=self.next_retry_delay,
        )

    def as_failure(self) -> Failure:
        """This error as a value."""
        return Failure(family=self.family, type=type(self).__name__, message=truncate(self.message, MAX_ERROR_TEXT))


class ValidationFault(BatonError):
    """The input or a manifest is wrong."""

    family = "ValidationError"


class AuthenticationFault(BatonError):
    """A key is missing or was rejected."""

    family = "AuthenticationError"


class ModelFault(BatonError):
    """A model call failed."""

    family = "ModelError"


class ToolFault(BatonError):
    """A tool call failed."""

    family = "ToolError"


class TimeoutFault(BatonError):
    """A limit of time, turns or calls was reached."""

    family = "TimeoutError"


class BudgetFault(BatonError):
    """A budget is used up."""

    family = "BudgetError"


class MemoryFault(BatonError):
    """The journal can't be read or written."""

    family = "MemoryError"
