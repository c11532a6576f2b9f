"""What does an event tell of a call? Who made it, what was asked or used, what came of it, and what it cost."""

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


def call_data(call: ActivityCall) -> JsonObject:
    """Who made a call, and what was asked or used."""
    who: JsonObject = {"call": call.id, **({"agent": call.agent} if call.agent else {})}
    match call.request:
        case AskModelRequest(turn=turn):
            return {**who, "turn": turn - 1, **round_data(call), "model": call.name}
        case SelectRequest(turn=turn):
            return {**who, "turn": turn - 1, "model": call.name}
        case PerformRequest(name=name):
            return {**who, "member": name, **round_data(call), "function": call.name}
    return {**who, **round_data(call), "tool": call.name}


def round_data(call: ActivityCall) -> JsonObject:
    """The round of a panel in which a call was made, and the part in it of who is no member."""
    if call.brief is None:
        return {}
    return {"round": call.brief.round, **({"part": call.brief.part} if call.brief.seat is None else {})}


def reply_data(ended: CallEnded) -> JsonObject:
    """What came of a call; the words of one that is hidden are left out."""
    match ended.reply:
        case AskModelResult(message=message, wrong=wrong):
            calls = [call.name for call in message.tool_calls]
            told: JsonObject = {"content": message.content, "toolCalls": [*calls] or None, "wrong": wrong}
            return {**({} if ended.call.hidden else told), **usage_data(token_usage(ended))}
        case UseToolResult(message=message) | PerformResult(message=message):
            return {} if ended.call.hidden else {"content": message.content}
        case SelectResult():
            return usage_data(token_usage(ended))
    return failure_data(ended.failure)


def failure_data(failure: Failure | None) -> JsonObject:
    """What went wrong."""
    if failure is None:
        return {}
    return {"error": failure.message, "errorType": failure.type, "member": failure.member, "target": failure.target}


def usage_data(usage: TokenUsage) -> JsonObject:
    """What was spent."""
    return {"tokenUsage": usage.model_dump(mode="json")}
