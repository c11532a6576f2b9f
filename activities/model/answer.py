"""Puts a model's answer together from the pieces in which any provider streams it, and says how it has ended."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ...contracts.errors import AnswerTooLong, BrokenReply, ContentFiltered, ContextTooLong, EmptyReply
from ...contracts.message import CallExtra, Message, TokenUsage, ToolCall
from ...contracts.text import parse_json
from ...observability.spans import note_call, note_content
from ...resources.base import JsonObject
from .call_attributes import answer_content

LONGEST_NAME = 64
"""Characters of a tool's name, and of a tool call's id."""

MAX_TOOL_CALLS = 128
"""Tool calls of one message that are executed; the rest is dropped."""

LONGEST_EXTRA = 100_000
"""Characters of what a server adds to a tool call; a longer one is dropped."""

MAX_ANSWER = 16_000_000
"""Characters of one answer, its tool calls included. Reading ends there."""

End = Literal["complete", "length", "filtered", "context"]
"""How an answer has ended: at its end, at its limit of tokens, by a content filter, or at the end of the context."""


@dataclass
class _GrowingCall:
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: str = ""


class StreamedAnswer:
    """An answer that grows piece by piece; ``on_text`` gets each new piece of its text.

    ``asked`` is the model that answers, with its server, if it may add something to its tool calls.
    ``end`` stays None until the server says how the answer has ended.
    """

    def __init__(self, on_text: Callable[[str], None], asked: str = "") -> None:
        self._on_text = on_text
        self._asked = asked
        self._text: list[str] = []
        self._size = 0
        self._calls: list[_GrowingCall] = []
        self._latest: dict[int, _GrowingCall] = {}
        self.begun = False
        self.end: End | None = None
        self.model: str | None = None
        self.id: str | None = None
        self.usage = TokenUsage()

    def add_text(self, text: str) -> None:
        """Adds a piece of text."""
        self._grow(text)
        if text:
            self._text.append(text)
            self._on_text(text)

    def add_call(self, index: int, call_id: str | None = None, name: str = "", arguments: str = "") -> None:
        """Adds a piece of the latest tool call with this index: its id, a part of its name, a part of its arguments.

        Another id with a name begins another call: some servers give all calls of an answer the same index, or none.
        An id without a name does not: some servers give each piece of a call an id of its own.
        """
        self._grow(name + arguments)
        if call := self._call_at(index, (call_id or "")[:LONGEST_NAME], name):
            call.name = (call.name + name)[:LONGEST_NAME]
            call.arguments += arguments

    def add_extra(self, index: int, extra: JsonObject) -> None:
        """Adds what the server wants back with the latest tool call with this index."""
        text = json.dumps(extra, ensure_ascii=False)
        self._grow(text)
        if (call := self._latest.get(index)) and len(text) <= LONGEST_EXTRA:
            call.extra = text

    def _call_at(self, index: int, call_id: str, name: str) -> _GrowingCall | None:
        """The call that a piece belongs to; None for one that is dropped."""
        call = self._latest.get(index)
        if call is None or (name and call_id and call.id not in ("", call_id)):
            if len(self._calls) == MAX_TOOL_CALLS:
                self._latest.pop(index, None)
                return None
            call = self._latest[index] = _GrowingCall()
            self._calls.append(call)
        call.id = call.id or call_id
        return call

    def message(self) -> Message:
        """The whole answer.

        Raises EmptyReply or BrokenReply where the stream held none, ContentFiltered, ContextTooLong, and AnswerTooLong
        where the answer was cut at its limit of tokens and what is there is of no use.
        """
        if not self.begun:
            raise EmptyReply("the model answered nothing at all")
        if self.end is None:
            raise BrokenReply("the model's answer broke off before its end")
        if self.end == "filtered":
            raise ContentFiltered("the model's server stopped the answer: its content filter, or the model, refused")
        if self.end == "context":
            raise ContextTooLong("the conversation and its answer don't fit into the model's context")
        calls = tuple(self._tool_call(call, place) for place, call in enumerate(self._calls))
        if self.end == "length" and not (all(map(_is_complete, calls)) if calls else self._text):
            raise AnswerTooLong("the model's answer was cut at its limit of tokens: allow more, or ask for less")
        message = Message(
            role="assistant",
            content="".join(self._text),
            tool_calls=calls,
            model=self.model,
            usage=self.usage.without_defaults,
        )
        self._note(message)
        return message.without_defaults

    def _tool_call(self, call: _GrowingCall, place: int) -> ToolCall:
        extra = CallExtra(model=self._asked, content=call.extra) if call.extra else None
        return ToolCall(id=call.id or f"call_{place}", name=call.name, arguments=call.arguments, extra=extra)

    def _note(self, message: Message) -> None:
        """Tells the trace how the answer has ended, and what it is."""
        complete = "tool_calls" if message.tool_calls else "stop"
        reason = "length" if self.end == "length" else complete
        ended: JsonObject = {"gen_ai.response.finish_reasons": [reason]}
        note_call(lambda: ended | ({"gen_ai.response.id": self.id} if self.id else {}))
        note_content(partial(answer_content, message, reason))

    def _grow(self, piece: str) -> None:
        self.begun = True
        self._size += len(piece)
        if self._size > MAX_ANSWER:
            raise AnswerTooLong(f"the model's answer is longer than {MAX_ANSWER:,} characters")


def _is_complete(call: ToolCall) -> bool:
    try:
        parse_json(call.arguments or "{}")
    except ValueError:
        return False
    return True


def has_open_objects(schema: Any) -> bool:
    """Whether an object may have properties that the schema does not name: no server can enforce such a schema."""
    if isinstance(schema, list):
        return any(map(has_open_objects, schema))
    if not isinstance(schema, dict):
        return False
    unnamed = schema.get("type") == "object" and not schema.get("properties")
    return unnamed or bool(schema.get("additionalProperties")) or any(map(has_open_objects, schema.values()))
