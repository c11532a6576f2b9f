"""Reads an answer of Anthropic's Messages API: the events of a stream, or the whole."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from ....conversation.messages.message import TokenUsage
from ..answer import End, StreamedAnswer

ENDS: dict[str, End] = {
    "max_tokens": "length",
    "refusal": "filtered",
    "model_context_window_exceeded": "context",
}
"""Stop reasons that are no proper end of an answer."""


class _Piece(BaseModel):
    """A part of what the server sends. A validation error does not repeat its content."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _TokenCounts(_Piece):
    """Counts of tokens; ``input_tokens`` has neither those that were read from the cache nor those written to it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Start(_Piece):
    model: str | None = None
    usage: _TokenCounts | None = None


class _ContentBlock(_Piece):
    type: str = ""
    text: str = ""
    id: str | None = None
    name: str = ""
    input: Any = None


class _BlockDelta(_Piece):
    text: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class WholeMessage(_Start):
    """An answer that was asked for without a stream."""

    content: tuple[_ContentBlock, ...]
    stop_reason: str | None = None


class StreamEvent(_Piece):
    """One event of the stream. Which fields it has depends on its ``type``."""

    type: str
    index: int = 0
    message: _Start = _Start()
    content_block: _ContentBlock = _ContentBlock()
    delta: _BlockDelta = _BlockDelta()
    usage: _TokenCounts | None = None


class AnthropicStream:
    """Adds events to an answer. The counts of tokens come in several events, each of them a total so far."""

    def __init__(self, answer: StreamedAnswer) -> None:
        self._answer = answer
        self._counts: dict[str, int] = {}

    def add(self, event: StreamEvent) -> None:
        """Adds an event."""
        answer = self._answer
        if event.type == "message_start":
            answer.begun, answer.model = True, event.message.model
            self._count(event.message.usage)
        elif event.type == "content_block_start":
            self._begin(event.index, event.content_block)
        elif event.type == "content_block_delta":
            answer.add_text(event.delta.text)
            if event.delta.partial_json:
                answer.add_call(event.index, arguments=event.delta.partial_json)
        elif event.type == "message_delta":
            self._count(event.usage)
            if event.delta.stop_reason:
                answer.end = ENDS.get(event.delta.stop_reason, "complete")

    def add_whole(self, message: WholeMessage) -> None:
        """Adds a whole answer."""
        self.add(StreamEvent(type="message_start", message=message))
        for index, block in enumerate(message.content):
            self._begin(index, block)
        self.add(StreamEvent(type="message_delta", delta=_BlockDelta(stop_reason=message.stop_reason or "")))

    def _begin(self, index: int, block: _ContentBlock) -> None:
        self._answer.add_text(block.text)
        if block.type == "tool_use":
            self._answer.add_call(index, block.id, block.name, json.dumps(block.input) if block.input else "")

    def _count(self, counts: _TokenCounts | None) -> None:
        self._counts |= counts.model_dump(exclude_none=True) if counts else {}
        cached = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        prompt = self._counts.get("input_tokens", 0) + cached + written
        completion = self._counts.get("output_tokens", 0)
        self._answer.usage = TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            cached_tokens=cached,
        )
