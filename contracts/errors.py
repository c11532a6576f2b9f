"""The errors of a run, by family (ARK: queries, common error types).

    BatonError
    ├── ValidationError      InvalidInput · InvalidManifest · UnknownResource · NotCarriedOut · UnknownDecision
    │                        ConditionFailed · FunctionFailed* · ProgramMissing · WrongPart · SchemaNotChecked
    ├── AuthenticationError  KeyMissing · KeyRefused · RightMissing · AuthorizationRequired
    ├── ModelError           ModelUnavailable* · ModelRejected · QuotaSpent · ContextTooLong · ContentFiltered
    │                        EmptyReply* · BrokenReply* · AnswerTooLong · OutputRejected · CircuitOpen
    │                        AgentUnavailable* · AgentRejected · AgentFailed
    ├── ToolError            UnknownTool · BadArguments · ToolFailed · OutcomeUnknown · FilterFailed · LeaseLost*
    ├── TimeoutError     MaxTurnsReached · MaxIterationsReached · QueryTimeout · ReplyOverdue · CallTimeout* · RunClosed
    ├── BudgetError          BudgetExceeded · QuotaReached
    └── MemoryError          JournalLost · JournalUnavailable* · MemoryUnavailable* · MemoryRejected · NotRecorded
                         NotRedacted

Temporal retries the errors with a *; all others are final. The names are stored in histories: never rename them."""

from datetime import datetime, timedelta
from typing import ClassVar

from temporalio.exceptions import ApplicationError

from ..resources.base import Dialect, JsonModel, JsonObject
from ..resources.budget import Budget, OnExceeded
from ..resources.query import Target
from .message import TokenUsage
from .text import truncate

MAX_ERROR_TEXT = 2_000


class Cause(JsonModel):
    """An error; ``attempts`` is how often a call was tried, where that is known."""

    family: str
    type: str
    message: str
    attempts: int | None = None


class BudgetReached(JsonModel):
    """A budget that is used up: the id of its owner, the limit that was reached, such as ``tokens``, and the action.

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


class Outage(JsonModel):
    """An outage of a server for which a call waits, or a Quota of the run's tenant (``type: QuotaReached``).

    ``call`` says what is called, as Temporal's UI does, ``type`` and ``error`` are those of the latest failure, and
    ``since`` is the time of the first one. ``attempts`` counts the requests so far; the next one follows at ``until``.
    """

    call: str
    type: str
    error: str
    since: datetime
    until: datetime
    attempts: int

    @property
    def is_quota(self) -> bool:
        """Whether the run waits for a Quota of its tenant, and not for a server."""
        return self.type == QuotaReached.__name__


class Refusal(JsonModel):
    """A run that could not be pinned: its dialect, if it is not Baton's own, and the targets of its query."""

    dialect: Dialect | None = None
    targets: tuple[Target, ...] = ()


class Failure(Cause):
    """An error in a status: where it happened and, for a query's timeout, its probable cause.

    ``budget`` is the reached budget, if it is an enclosing one, whose owner fails as well. ``wait`` is the minimum
    number of seconds before the next attempt of a call that an open circuit breaker has prevented, or that waits for
    the end of an outage. ``refusal`` describes a run that could not be pinned.
    """

    target: str | None = None
    member: str | None = None
    turn: int | None = None
    cause: Cause | None = None
    budget: BudgetReached | None = None
    wait: float | None = None
    refusal: Refusal | None = None

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
        """The failure of a query at its timeout, with its probable cause."""
        return self.model_copy(update={"cause": cause})

    def waiting(self, seconds: float) -> "Failure":
        """The failure of a call that is made again after that time."""
        return self.model_copy(update={"wait": seconds})

    def without_wait(self) -> "Failure":
        """The failure of a call that is not retried."""
        return self.model_copy(update={"wait": None})

    def declined(self, reason: str) -> "Failure":
        """The failure of a call after a person has refused to raise its budget."""
        text = f"{self.message}; the budget was not raised. {reason}".rstrip()
        stopped = self.budget.model_copy(update={"on_exceeded": "stop"}) if self.budget else None
        return self.model_copy(update={"budget": stopped, "message": text})


class BatonError(ApplicationError):
    """The base class of all errors of a run. The message is shown to people and never contains a secret."""

    family: ClassVar[str] = "BatonError"
    retryable: ClassVar[bool] = False
    outage: bool = False
    """Whether the server failed: it is unreachable, gave no answer in time, or reported a failure of its own."""
    unsent: bool = False
    """Whether the request did not reach the server, or was refused there: it had no effect and costs nothing."""
    usage: TokenUsage | None
    """The usage of the failed call, if the server reports it."""

    def __init__(
        self,
        message: str,
        *more: JsonObject,
        retryable: bool | None = None,
        retry_after: timedelta | None = None,
        outage: bool | None = None,
        unsent: bool | None = None,
        usage: TokenUsage | None = None,
    ) -> None:
        self.outage = type(self).outage if outage is None else outage
        self.unsent = type(self).unsent if unsent is None else unsent
        self.usage = usage
        super().__init__(
            truncate(message, 10 * MAX_ERROR_TEXT),  # truncated further when it is stored, after secrets are removed
            self.family,
            *more,
            type=type(self).__name__,
            non_retryable=not (self.retryable if retryable is None else retryable),
            next_retry_delay=retry_after,
        )

    @property
    def paid(self) -> TokenUsage:
        """What the failed call adds to the usage of its run: nothing, if the server reports no usage."""
        return self.usage + TokenUsage(model_calls=1) if self.usage else TokenUsage()

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
    unsent = True


class AuthenticationFault(BatonError):
    """A key is missing or was rejected."""

    family = "AuthenticationError"
    unsent = True


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
    unsent = True


class MemoryFault(BatonError):
    """The journal can't be read or written."""

    family = "MemoryError"


class InvalidInput(ValidationFault):
    """The input of a run does not match its workflow's input type."""


class InvalidManifest(ValidationFault):
    """A manifest that came with a run is invalid."""


class UnknownResource(ValidationFault):
    """A run needs a resource that is neither in its input nor among the worker's manifests."""


class UnknownDecision(ValidationFault):
    """No decision with that id is or was pending in the run."""


class NotCarriedOut(ValidationFault):
    """A manifest uses a field that is valid but not supported yet."""


class ConditionFailed(ValidationFault):
    """A condition can't be evaluated, or its result is not a boolean."""


class FunctionFailed(ValidationFault):
    """A registered function failed, or returned a wrong value."""

    unsent = False


class ProgramMissing(ValidationFault):
    """The program with the functions and keys of a run is not running, or has not attached to it. The run waits."""


class WrongPart(ValidationFault):
    """The output of a referee, a moderator or a judge does not have the required form."""


class SchemaNotChecked(ValidationFault):
    """The worker can't run the process that validates values against schemas, or it has crashed."""


class KeyMissing(AuthenticationFault):
    """The worker has no key for a model or a tool."""


class KeyRefused(AuthenticationFault):
    """A server rejected the worker's key."""


class RightMissing(AuthenticationFault):
    """The ServiceAccount of a run lacks a right that the run needs."""


class AuthorizationRequired(AuthenticationFault):
    """An agent of an A2AServer waits for an authorization."""

    unsent = False


class ModelRejected(ModelFault):
    """The model's server rejected the request."""

    unsent = True


class ModelUnavailable(ModelFault):
    """The model's server can't be reached, is overloaded or failed."""

    retryable = outage = True


class QuotaSpent(ModelFault):
    """The quota of the key's account is used up."""

    unsent = True


class ContextTooLong(ModelFault):
    """The conversation doesn't fit into the model's context."""

    unsent = True


class ContentFiltered(ModelFault):
    """The model, or a content filter of its server, refused to answer."""

    unsent = True


class AnswerTooLong(ModelFault):
    """The model's answer was cut off at its token limit and is unusable, or it is endless."""


class CircuitOpen(ModelFault):
    """A call was not started because the circuit breaker of a model or a server is open."""

    unsent = True


class EmptyReply(ModelFault):
    """The model's reply is empty."""

    retryable = True


class BrokenReply(ModelFault):
    """The model's reply is incomplete or malformed."""

    retryable = True


class OutputRejected(ModelFault):
    """The answer does not fit the output schema."""


class AgentUnavailable(ModelFault):
    """The server that executes an agent is unreachable or overloaded."""

    retryable = outage = True


class AgentRejected(ModelFault):
    """The server that executes an agent rejected the request."""

    unsent = True


class AgentFailed(ModelFault):
    """An agent that is executed elsewhere has failed, was canceled there, or returned an unreadable answer."""


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
    """A tool answered, but one of its functions can't be applied to the answer."""


class OutcomeUnknown(ToolFault):
    """A call that must not be repeated was interrupted, such as by a worker crash; it may have been executed."""


class LeaseLost(ToolFault):
    """A request was not sent because another worker has taken over the call: this one did not renew its lease."""

    retryable = True


class MaxTurnsReached(TimeoutFault):
    """A team has reached ``maxTurns``."""


class MaxIterationsReached(TimeoutFault):
    """An agent has reached ``maxIterations`` in one turn."""


class QueryTimeout(TimeoutFault):
    """A query took longer than its ``timeout``."""


class RunClosed(TimeoutFault):
    """A child workflow was closed from outside before it had a result."""


class RunStillOpen(TimeoutFault):
    """A child workflow can't be started yet, as a run with the same id is still open."""


class ReplyOverdue(TimeoutFault):
    """A person has not replied in time."""


class CallTimeout(TimeoutFault):
    """A call of a model or a tool took too long."""

    retryable = outage = True


class BudgetExceeded(BudgetFault):
    """A call was not started because it could exceed a budget."""


class QuotaReached(BudgetFault):
    """A call or a run was not started because of a Quota of its tenant: it waits, or fails if the Quota says so."""


class JournalUnavailable(MemoryFault):
    """The journal is unreachable; or, without a retry, its database rejects a statement."""

    retryable = True


class MemoryUnavailable(MemoryFault):
    """The service of a Memory is unreachable, overloaded or failed."""

    retryable = True


class MemoryRejected(MemoryFault):
    """The service of a Memory rejected a request, or returned something other than a conversation."""

    unsent = True


OUTAGES = ModelUnavailable, AgentUnavailable, ToolFailed, MemoryUnavailable, CallTimeout
"""The errors after which, where they are retryable, a call can wait for the end of an outage."""


class JournalLost(MemoryFault):
    """The journal lacks rows that a run has written: it is another journal, or was restored from an older backup."""


class JournalDamaged(JournalLost):
    """The journal has rows that can't be read: they were modified."""


class NotRecorded(MemoryFault):
    """A call in a test has no recording. It fails the run, and no fallback is called."""


class NotRedacted(MemoryFault):
    """Personal data could not be redacted, so nothing was stored.

    The hook of BATON_REDACT has failed, or there are images or files (``has_files``), which no hook can redact.
    """

    def __init__(self, message: str, *, has_files: bool = False) -> None:
        self.has_files = has_files
        super().__init__(message)
