"""The errors of a run, by family (ARK: queries, common error types).

    BatonError
    ├── ValidationError      InvalidInput · InvalidManifest · UnknownResource · NotCarriedOut
    │                        ConditionFailed · FunctionFailed* · WrongPart
    ├── AuthenticationError  KeyMissing · KeyRefused · RightMissing · AuthorizationRequired
    ├── ModelError           ModelUnavailable* · ModelRejected · QuotaSpent · ContextTooLong · ContentFiltered
    │                        EmptyReply* · BrokenReply* · AnswerTooLong · OutputRejected · CircuitOpen
    │                        AgentUnavailable* · AgentRejected · AgentFailed
    ├── ToolError            UnknownTool · BadArguments · ToolFailed · OutcomeUnknown · FilterFailed
    ├── TimeoutError     MaxTurnsReached · MaxIterationsReached · QueryTimeout · ReplyOverdue · CallTimeout* · RunClosed
    ├── BudgetError          BudgetExceeded
    └── MemoryError          JournalLost · JournalUnavailable* · MemoryUnavailable* · MemoryRejected

Temporal retries the errors with a *; all others are final. The names are stored in histories: never rename them."""

from datetime import timedelta
from typing import ClassVar

from temporalio.exceptions import ApplicationError

from ..resources.base import Dialect, JsonModel, JsonObject
from ..resources.budget import Budget, OnExceeded
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

    With ``onExceeded: ask``: the ``account`` to which an approval grants ``more``, and its ``grants`` so far.
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

    ``budget`` is the one that was reached, if it is an enclosing budget, whose owner fails as well. ``wait`` are the
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

    def in_turn(self, member: str, turn: int) -> "Failure":
        """The failure with the member of a team, and its turn, in which it happened."""
        return self.model_copy(update={"member": member, "turn": turn})

    def of_member(self, member: str) -> "Failure":
        """The failure with the member of a team, or the role in a panel, that has failed."""
        return self.model_copy(update={"member": member})

    def of_target(self, target: str) -> "Failure":
        """The failure with the target of a query, such as ``team/NAME``."""
        return self.model_copy(update={"target": target})

    def caused_by(self, cause: Cause) -> "Failure":
        """The failure of a query at its timeout, with what went wrong before."""
        return self.model_copy(update={"cause": cause})

    def without_wait(self) -> "Failure":
        """The failure of a call that is not tried again."""
        return self.model_copy(update={"wait": None})

    def declined(self, reason: str) -> "Failure":
        """The failure of a call after a person has refused to raise the budget that asks."""
        text = f"{self.message}; the budget was not raised. {reason}".rstrip()
        stopped = self.budget.model_copy(update={"on_exceeded": "stop"}) if self.budget else None
        return self.model_copy(update={"budget": stopped, "message": text})


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


class InvalidInput(ValidationFault):
    """The input of a run is not what its workflow takes."""


class InvalidManifest(ValidationFault):
    """A manifest that came with a run is invalid."""


class UnknownResource(ValidationFault):
    """A run needs a resource that is neither in its input nor among the worker's manifests."""


class NotCarriedOut(ValidationFault):
    """A manifest uses a field that is valid but not supported yet."""


class ConditionFailed(ValidationFault):
    """A condition can't be evaluated, or gives neither true nor false."""


class FunctionFailed(ValidationFault):
    """A registered function failed, or returned a wrong value."""


class WrongPart(ValidationFault):
    """The output of a referee, a moderator or a judge does not have the required form."""


class KeyMissing(AuthenticationFault):
    """The worker has no key for a model or a tool."""


class KeyRefused(AuthenticationFault):
    """A server rejected the worker's key."""


class RightMissing(AuthenticationFault):
    """The ServiceAccount of a run has no right to what it needs."""


class AuthorizationRequired(AuthenticationFault):
    """An agent of an A2AServer waits for an authorization."""


class ModelRejected(ModelFault):
    """The model's server rejected the request."""


class ModelUnavailable(ModelFault):
    """The model's server can't be reached, is overloaded or failed."""

    retryable = outage = True


class QuotaSpent(ModelFault):
    """The quota of the key's account is used up."""


class ContextTooLong(ModelFault):
    """The conversation doesn't fit into the model's context."""


class ContentFiltered(ModelFault):
    """The model, or a content filter of its server, refused to answer."""


class AnswerTooLong(ModelFault):
    """The model's answer was cut at its limit of tokens, and what is there is of no use; or it never ends."""


class CircuitOpen(ModelFault):
    """A call did not begin, because the circuit breaker of a model or a server is open."""


class EmptyReply(ModelFault):
    """The model's reply is empty."""

    retryable = True


class BrokenReply(ModelFault):
    """The model's reply is incomplete or malformed."""

    retryable = True


class OutputRejected(ModelFault):
    """The answer does not fit the output schema."""


class AgentUnavailable(ModelFault):
    """What executes an agent elsewhere can't be reached, or is overloaded."""

    retryable = outage = True


class AgentRejected(ModelFault):
    """What executes an agent elsewhere refuses the request."""


class AgentFailed(ModelFault):
    """An agent that is executed elsewhere has failed, was canceled there, or gave what can't be read."""


class ToolFailed(ToolFault):
    """A tool call failed."""


class UnknownTool(ToolFault):
    """A model called a tool that the agent doesn't have."""


class BadArguments(ToolFault):
    """A model called a tool with invalid arguments."""


class CallRejected(ToolFault):
    """A tool call was rejected by a person, or not approved in time."""


class NotApproved(ToolFault):
    """A tool call that needs human approval was about to be executed without it."""


class FilterFailed(ToolFault):
    """A tool has answered, and one of its functions can't be applied to the answer."""


class OutcomeUnknown(ToolFault):
    """A call that must not be repeated was interrupted, as by the end of a worker; it may have been carried out."""


class MaxTurnsReached(TimeoutFault):
    """A team has reached ``maxTurns``."""


class MaxIterationsReached(TimeoutFault):
    """An agent has reached ``maxIterations`` in one turn."""


class QueryTimeout(TimeoutFault):
    """A query took longer than its ``timeout``."""


class RunClosed(TimeoutFault):
    """A child workflow was closed from outside before it had a result."""


class ReplyOverdue(TimeoutFault):
    """A person has not replied in time."""


class CallTimeout(TimeoutFault):
    """A call of a model or a tool took too long."""

    retryable = outage = True


class BudgetExceeded(BudgetFault):
    """A call was not begun, because it could exceed a budget."""


class JournalUnavailable(MemoryFault):
    """The journal can't be reached; or, without a retry, its database refuses a statement."""

    retryable = True


class MemoryUnavailable(MemoryFault):
    """The service of a Memory can't be reached, is overloaded or failed."""

    retryable = True


class MemoryRejected(MemoryFault):
    """The service of a Memory refuses a request, or gives what is no conversation."""


class JournalLost(MemoryFault):
    """The journal has lost rows that a run has written."""
