"""Reads an answer of Converse: the events of a stream, or the whole."""

import json
from typing import Any

from ....conversation.messages.message import TokenUsage
from ..answer import End, StreamedAnswer

ENDS: dict[str, End | None] = {
    "max_tokens": "length",
    "content_filtered": "filtered",
    "guardrail_intervened": "filtered",
    "model_context_window_exceeded": "context",
    "malformed_model_output": None,
    "malformed_tool_use": None,
}
"""Stop reasons that are no proper end of an answer; None for those that count as broken off."""


def add_event(answer: StreamedAnswer, event: dict[str, Any]) -> None:
    """Adds an event, which has one key: its kind."""
    match event:
        case {"messageStart": _}:
            answer.begun = True
        case {"contentBlockStart": {"start": {"toolUse": use}, "contentBlockIndex": index}}:
            answer.add_call(index, use["toolUseId"], use["name"])
        case {"contentBlockDelta": {"delta": {"toolUse": use}, "contentBlockIndex": index}}:
            answer.add_call(index, arguments=use["input"])
        case {"contentBlockDelta": {"delta": {"text": text}}}:
            answer.add_text(text)
        case {"messageStop": {"stopReason": reason}}:
            answer.end = ENDS.get(reason, "complete")
        case {"metadata": {"usage": counts}}:
            answer.usage = _usage(counts)


def add_whole(answer: StreamedAnswer, reply: dict[str, Any]) -> None:
    """Adds an answer that was asked for without a stream."""
    add_event(answer, {"messageStart": {}})
    for index, block in enumerate(reply["output"]["message"]["content"]):
        match block:
            case {"toolUse": use}:
                answer.add_call(index, use["toolUseId"], use["name"], json.dumps(use["input"]))
            case {"text": text}:
                answer.add_text(text)
    add_event(answer, {"messageStop": reply})
    add_event(answer, {"metadata": reply})


def _usage(counts: dict[str, int]) -> TokenUsage:
    """The counts of tokens; ``inputTokens`` has neither those read from the cache nor those written to it."""
    cached = counts.get("cacheReadInputTokens", 0)
    prompt = counts.get("inputTokens", 0) + cached + counts.get("cacheWriteInputTokens", 0)
    completion = counts.get("outputTokens", 0)
    return TokenUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion, cached_tokens=cached
    )
