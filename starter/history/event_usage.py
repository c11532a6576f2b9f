"""The token usage that a run event adds to its run."""

from ...conversation.contracts.panel_requests import PerformRequest
from ...conversation.contracts.requests import AskModelResult, SelectResult
from ...conversation.contracts.tool_requests import UseToolRequest
from ...conversation.messages.message import TokenUsage
from .run_events import ActivityCall, CallEnded, RunEvent


def token_usage(event: RunEvent) -> TokenUsage:
    """The usage that an event adds: a model call counts when it is answered, a tool call also when it has failed."""
    match event:
        case CallEnded(call=ActivityCall(request=UseToolRequest() | PerformRequest())) if event.result or (
            event.failure and not is_deferred(event)
        ):
            return TokenUsage(tool_calls=1)
        case CallEnded(result=AskModelResult(message=message)):
            return (message.usage or TokenUsage()) + TokenUsage(model_calls=1)
        case CallEnded(result=SelectResult(usage=usage)):
            return usage
    return TokenUsage()


def is_deferred(ended: CallEnded) -> bool:
    """Whether a call did not begin because of an open circuit breaker, or of a budget for which a person is asked."""
    failure = ended.failure
    return failure is not None and (failure.wait is not None or bool(failure.budget and failure.budget.asks))
