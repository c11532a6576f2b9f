"""What can go wrong in a run? Six families (seed 003, Common Error Types), each with its own finer types.

    BatonError
    ├── ValidationError      InvalidInput · InvalidManifest · UnknownResource · NotCarriedOut
    │                        ConditionFailed · FunctionFailed* · WrongPart
    ├── AuthenticationError  KeyMissing · KeyRefused
    ├── ModelError           ModelUnavailable* · ModelRejected · QuotaSpent · ContextTooLong
    │                        EmptyReply* · BrokenReply* · OutputRejected
    ├── ToolError            UnknownTool · BadArguments · ToolFailed · OutcomeUnknown
    ├── TimeoutError         MaxTurnsReached · MaxIterationsReached · QueryTimeout · CallTimeout* · RunClosed
    └── MemoryError          JournalLost · JournalUnavailable*

Temporal tries again what has a *; all others are final. The names stand in histories and are never renamed.
"""

from .failure import AuthenticationFault, MemoryFault, ModelFault, TimeoutFault, ToolFault, ValidationFault


class InvalidInput(ValidationFault):
    """The input of a run is not what its workflow takes."""


class InvalidManifest(ValidationFault):
    """A manifest that came with a run is refused by the loader."""


class UnknownResource(ValidationFault):
    """A run needs a resource that neither it nor its worker knows."""


class NotCarriedOut(ValidationFault):
    """A manifest uses what is valid but not carried out yet."""


class ConditionFailed(ValidationFault):
    """A condition can't be judged: it gives no yes or no in this very case."""


class FunctionFailed(ValidationFault):
    """A registered function failed, or gave what it should not."""


class WrongPart(ValidationFault):
    """A referee, a moderator or a judge has not given what its part asks for."""


class KeyMissing(AuthenticationFault):
    """The worker has no key for a model or a tool."""


class KeyRefused(AuthenticationFault):
    """A server refused the worker's key."""


class ModelRejected(ModelFault):
    """The model's server refused the request."""


class ModelUnavailable(ModelFault):
    """The model's server can't be reached, is overloaded or failed."""

    retryable = True


class QuotaSpent(ModelFault):
    """The account behind the key has nothing left."""


class ContextTooLong(ModelFault):
    """The conversation doesn't fit into the model's context."""


class EmptyReply(ModelFault):
    """The model answered nothing at all."""

    retryable = True


class BrokenReply(ModelFault):
    """The answer broke off or made no sense."""

    retryable = True


class OutputRejected(ModelFault):
    """The answer has not the form that it was asked for in."""


class ToolFailed(ToolFault):
    """A tool was used and failed."""


class UnknownTool(ToolFault):
    """A model called for a tool that the agent doesn't have."""


class BadArguments(ToolFault):
    """A model called for a tool with arguments that don't fit it."""


class OutcomeUnknown(ToolFault):
    """A tool that may be used only once was begun by a worker that died; nobody knows whether it was carried out."""


class MaxTurnsReached(TimeoutFault):
    """A team has spoken as many turns as it may."""


class MaxIterationsReached(TimeoutFault):
    """An agent has asked its model as often as it may in one turn."""


class QueryTimeout(TimeoutFault):
    """A query took longer than its ``timeout``."""


class RunClosed(TimeoutFault):
    """A child run was closed from outside before it had its say."""


class CallTimeout(TimeoutFault):
    """A call of a model or a tool took too long."""

    retryable = True


class JournalUnavailable(MemoryFault):
    """The journal can't be reached or written."""

    retryable = True


class JournalLost(MemoryFault):
    """The journal doesn't hold what a run has written to it."""
