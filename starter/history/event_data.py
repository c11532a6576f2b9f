"""The names and the data of the events of calls: the caller, the callee, the result and the usage (ARK: queries)."""

from ...conversation.contracts.panel_requests import PerformRequest, PerformResult
from ...conversation.contracts.requests import (
    AskModelRequest,
    AskModelResult,
    SelectRequest,
    SelectResult,
    UseToolResult,
)
from ...conversation.failure import Failure
from ...conversation.messages.message import TokenUsage
from ...resources.base import JsonObject
from .run_events import ActivityCall, CallEnded, token_usage

CALL_EVENTS = {
    "ask_model": "LLMCall",
    "execute_agent": "ExecutorCall",
    "use_tool": "ToolCall",
    "select": "SelectorCall",
    "perform": "FunctionCall",
}
"""The activity types whose calls have events, and how the names of these begin; they end as in ``LLMCallStarted``."""


def started_data(call: ActivityCall) -> JsonObject:
    """The data of the event that a call has started: with the arguments of a tool."""
    shown = call.activity_type == "use_tool" and not call.hidden
    return {**_call_data(call), **({"arguments": call.arguments} if shown else {})}


def ended_data(ended: CallEnded) -> JsonObject:
    """The data of the event that a call has ended: with its attempts, its result or its error, and its usage."""
    return {**_call_data(ended.call), "attempts": ended.attempts, **_result_data(ended)}


def round_data(call: ActivityCall) -> JsonObject:
    """The round of a panel in which a call was made, and the role in it of a speaker that is no member."""
    if call.brief is None:
        return {}
    return {"round": call.brief.round, **({"part": call.brief.part} if call.brief.seat is None else {})}


def failure_data(failure: Failure | None) -> JsonObject:
    """The error, and the member and the target that have failed."""
    if failure is None:
        return {}
    return {"error": failure.message, "errorType": failure.type, "member": failure.member, "target": failure.target}


def usage_data(usage: TokenUsage) -> JsonObject:
    """The token usage."""
    return {"tokenUsage": usage.model_dump(mode="json")}


def _call_data(call: ActivityCall) -> JsonObject:
    """Who made a call, and the model, tool or function."""
    caller: JsonObject = {"call": call.id, **({"agent": call.agent} if call.agent else {})}
    match call.request:
        case AskModelRequest(turn=turn):
            callee = "engine" if call.activity_type == "execute_agent" else "model"
            return {**caller, "turn": turn - 1, **round_data(call), callee: call.name}
        case SelectRequest(turn=turn):
            return {**caller, "turn": turn - 1, "model": call.name}
        case PerformRequest(name=name):
            return {**caller, "member": name, **round_data(call), "function": call.name}
    return {**caller, **round_data(call), "tool": call.name}


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
