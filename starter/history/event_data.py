"""The names and the data of the events of calls: the caller, the callee, the result and the usage (ARK: queries)."""

from ...conversation.contracts.memory_requests import RecallRequest, RememberRequest
from ...conversation.contracts.panel_requests import PerformRequest, PerformResult
from ...conversation.contracts.requests import AskModelRequest, AskModelResult, SelectRequest, SelectResult
from ...conversation.contracts.status import format_time
from ...conversation.contracts.tool_requests import UseToolResult
from ...conversation.failure import Failure
from ...conversation.messages.message import TokenUsage
from ...resources.base import JsonObject
from .event_usage import token_usage
from .run_events import ActivityCall, CallEnded, DecisionAsked, DecisionMade, RequestKind, RequestReceived

NamedEvent = tuple[str, JsonObject]
"""The name of an event, and its data."""

RUN_EVENTS = {
    "query": "Query",
    "team": "TeamExecution",
    "agent": "AgentExecution",
    "model": "ModelExecution",
    "tool": "ToolExecution",
}
"""The kinds of runs that have events, and how the names of these begin."""

CALL_EVENTS = {
    "ask_model": "LLMCall",
    "execute_agent": "ExecutorCall",
    "use_tool": "ToolCall",
    "select": "SelectorCall",
    "perform": "FunctionCall",
    "recall": "MemoryGetMessages",
    "remember": "MemoryAddMessages",
}
"""The activity types whose calls have events, and how the names of these begin; they end as in ``LLMCallStarted``."""


_REQUEST_EVENTS: dict[RequestKind, str] = {
    "pause": "PauseRequested",
    "resume": "ResumeRequested",
    "steer": "MessageReceived",
    "session": "SessionChanged",
    "terminate_team": "TerminationRequested",
    "cancel": "CancellationRequested",
}
"""The names of the events of what clients ask of a run."""


def request_event(received: RequestReceived) -> tuple[str, JsonObject]:
    """The event of a client's request: its name, who has asked, and what the request says."""
    return _REQUEST_EVENTS[received.kind], {"by": received.by, **received.data}


def decision_event(event: DecisionAsked | DecisionMade) -> NamedEvent:
    """The event that a call waits for a person's yes, or that it was decided: by whom, how, and what was changed."""
    asked = event.asked if isinstance(event, DecisionMade) else event
    if asked.kind == "question":
        return _question_event(event, asked)
    if asked.kind == "budget":
        return _budget_event(event, asked)
    about: JsonObject = {"call": asked.id, "agent": asked.call.agent or None, "tool": asked.call.name}
    shown = not asked.call.hidden
    if isinstance(event, DecisionAsked):
        return "ApprovalRequested", {**about, "arguments": asked.arguments if shown else None}
    made = event.decision
    how: JsonObject = {"by": made.by, "how": made.how, "at": format_time(made.at), "reason": made.reason or None}
    changed = made.arguments if shown else None
    return "CallApproved" if made.approved else "CallRejected", {**about, **how, "arguments": changed}


def _budget_event(event: DecisionAsked | DecisionMade, asked: DecisionAsked) -> NamedEvent:
    about: JsonObject = {"budget": asked.who, "call": asked.call.id}
    if isinstance(event, DecisionAsked):
        return "GrantRequested", {**about, "text": asked.arguments}
    made = event.decision
    how: JsonObject = {"by": made.by, "at": format_time(made.at), "reason": made.reason or None}
    name = "GrantApproved" if made.approved else "GrantRejected"
    return name, {**about, **how, "more": made.arguments if made.approved else None}


def _question_event(event: DecisionAsked | DecisionMade, asked: DecisionAsked) -> NamedEvent:
    about: JsonObject = {"question": asked.id, "member": asked.who}
    if isinstance(event, DecisionAsked):
        return "ReplyRequested", {**about, "text": None if asked.call.hidden else asked.arguments}
    if event.decision.how == "timeout":
        return "ReplyMissed", {**about, "at": format_time(event.decision.at)}
    return "ReplyGiven", {**about, "by": event.decision.by, "at": format_time(event.decision.at)}


def started_data(call: ActivityCall, place: JsonObject) -> JsonObject:
    """The data of the event that a call has started, in the turn that ``place`` says; with the arguments of a tool."""
    shown = call.activity_type == "use_tool" and not call.hidden
    return {**_call_data(call, place), **({"arguments": call.arguments} if shown else {})}


def ended_data(ended: CallEnded, place: JsonObject) -> JsonObject:
    """The data of the event that a call has ended: with its attempts, its result or its error, and its usage."""
    return {**_call_data(ended.call, place), "attempts": ended.attempts, **_result_data(ended)}


def failure_data(failure: Failure | None) -> JsonObject:
    """The error, and the member and the target that have failed."""
    if failure is None:
        return {}
    what: JsonObject = {"error": failure.message, "errorType": failure.type, "wait": failure.wait}
    return {**what, "member": failure.member, "target": failure.target}


def usage_data(usage: TokenUsage) -> JsonObject:
    """The token usage."""
    return {"tokenUsage": usage.model_dump(mode="json")}


def _call_data(call: ActivityCall, place: JsonObject) -> JsonObject:
    """Who made a call, when, and the model, tool or function."""
    caller: JsonObject = {"call": call.id, **({"agent": call.agent} if call.agent else {})}
    match call.request:
        case AskModelRequest():
            callee = "engine" if call.activity_type == "execute_agent" else "model"
            return {**caller, **place, callee: call.name}
        case SelectRequest():
            return {**caller, **place, "model": call.name}
        case RecallRequest(conversation=plan) | RememberRequest(conversation=plan):
            return {**caller, "memory": plan.memory or None, "conversation": plan.id}
        case PerformRequest(name=name):
            return {**caller, "member": name, **place, "function": call.name}
    return {**caller, **place, "tool": call.name}


def _result_data(ended: CallEnded) -> JsonObject:
    """The result or the error of a call; without content if the call is hidden."""
    match ended.result:
        case AskModelResult(message=message, wrong=wrong):
            names = [tool_call.name for tool_call in message.tool_calls]
            content: JsonObject = {"content": message.content, "toolCalls": [*names] or None, "wrong": wrong}
            return {**({} if ended.call.hidden else content), **usage_data(token_usage(ended))}
        case UseToolResult(message=message) | PerformResult(message=message):
            return {} if ended.call.hidden else {"content": message.content}
        case SelectResult():
            return usage_data(token_usage(ended))
    return failure_data(ended.failure)
