"""Assembles a streamed answer of any provider, and determines how it ended."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ...contracts.errors import AnswerTooLong, BatonError, BrokenReply, ContentFiltered, ContextTooLong, EmptyReply
from ...contracts.message import Message, ServerContent, TokenUsage, ToolCall
from ...contracts.text import parse_json
from ...observability.spans import note_call, note_content
from ...resources.base import JsonObject
from .call_attributes import answer_content

LONGEST_NAME = 64
"""Characters of a tool's name, and of a tool call's id."""

MAX_TOOL_CALLS = 128
"""Tool calls of one message that are executed; further ones are dropped."""

LONGEST_EXTRA = 100_000
"""Characters of a server's extra content in a tool call; longer content is dropped."""

LONGEST_REASONING = 1_000_000
"""Characters of the reasoning before an answer that are kept; longer reasoning is dropped."""

MAX_ANSWER = 16_000_000
"""Characters of one answer, including its tool calls. A longer one raises AnswerTooLong."""

End = Literal["complete", "length", "filtered", "context"]
"""How an answer ended: normally, at its token limit, by a content filter, or at the end of the context window."""


@dataclass
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: str = ""


class StreamedAnswer:
    """An answer that is built from chunks; ``on_text`` is called with every chunk of text.

    ``source`` is the answering model and its server, if the server may add content that it expects back.
    ``end`` is None until the server reports how the answer ended.
    """

    def __init__(self, on_text: Callable[[str], None], source: str = "") -> None:
        self._on_text = on_text
        self._source = source
        self._text: list[str] = []
        self._size = 0
        self._calls: list[_PartialCall] = []
        self._latest: dict[int, _PartialCall] = {}
        self._reasoning: dict[int, dict[str, list[str]]] = {}
        self._reasoning_items: list[JsonObject] = []
        self._is_thinking_first = True
        self.begun = False
        self.end: End | None = None
        self.model: str | None = None
        self.id: str | None = None
        self.usage = TokenUsage()

    def add_text(self, text: str) -> None:
        """Adds a chunk of text."""
        self._grow(text)
        if text:
            self._text.append(text)
            self._on_text(text)

    def add_call(self, index: int, call_id: str | None = None, name: str = "", arguments: str = "") -> None:
        """Adds a chunk of the latest tool call with this index: its id, a part of its name, a part of its arguments.

        Another id with a name starts a new call: some servers send the same index, or none, for all calls of an answer.
        Another id without a name does not: some servers send a different id with every chunk of a call.
        """
        self._grow(name + arguments)
        if call := self._call_at(index, (call_id or "")[:LONGEST_NAME], name):
            call.name = (call.name + name)[:LONGEST_NAME]
            call.arguments += arguments

    def has_call(self, index: int) -> bool:
        """Whether a tool call with this index has begun."""
        return index in self._latest

    def add_extra(self, index: int, extra: JsonObject) -> None:
        """Adds content that the server expects back with the latest tool call with this index."""
        text = json.dumps(extra, ensure_ascii=False)
        self._grow(text)
        if (call := self._latest.get(index)) and len(text) <= LONGEST_EXTRA:
            call.extra = text

    def add_reasoning(self, index: int, **pieces: str) -> None:
        """Adds pieces of text to the fields of the reasoning with this index, such as ``thinking``."""
        self._grow("".join(pieces.values()))
        fields = self._reasoning.setdefault(index, {})
        for name, piece in pieces.items():
            fields.setdefault(name, []).append(piece)

    def add_thinking(self, index: int, **pieces: str) -> None:
        """Adds pieces to the reasoning of an API that expects it back at its place among the texts and calls."""
        if index not in self._reasoning and (self._text or self._calls):
            self._is_thinking_first = False
        self.add_reasoning(index, **pieces)

    def add_reasoning_item(self, item: JsonObject) -> None:
        """Adds a whole reasoning."""
        self._grow(json.dumps(item))
        self._reasoning_items.append(item)

    def _call_at(self, index: int, call_id: str, name: str) -> _PartialCall | None:
        """The call that a chunk belongs to; None if the call is dropped."""
        call = self._latest.get(index)
        if call is None or (name and call_id and call.id not in ("", call_id)):
            if len(self._calls) == MAX_TOOL_CALLS:
                self._latest.pop(index, None)
                return None
            call = self._latest[index] = _PartialCall()
            self._calls.append(call)
        call.id = call.id or call_id
        return call

    def message(self) -> Message:
        """The complete answer.

        Raises:
            EmptyReply: the stream had no answer.
            BrokenReply: the stream ended before the answer.
            ContentFiltered: a content filter ended the answer.
            ContextTooLong: the context window ended it.
            AnswerTooLong: the token limit ended it before any text, or within a tool call.
        """
        if not self.begun:
            raise EmptyReply("the model returned no answer")
        if self.end is None:
            raise BrokenReply("the model's answer is incomplete: the stream ended early")
        if self.end == "filtered":
            raise ContentFiltered("the answer was stopped by the server's content filter or refused by the model")
        if self.end == "context":
            raise ContextTooLong("the conversation and its answer exceed the model's context window")
        calls = tuple(self._tool_call(call, number) for number, call in enumerate(self._calls))
        if self.end == "length" and not (all(map(_is_complete, calls)) if calls else self._text):
            raise AnswerTooLong("the model's answer was cut off at its token limit: raise max_tokens, or ask for less")
        message = Message(
            role="assistant",
            content="".join(self._text),
            tool_calls=calls,
            model=self.model,
            usage=self.usage.without_defaults,
            reasoning=self._kept_reasoning() if calls else None,
            finish_reason="length" if self.end == "length" else None,
        )
        self._note(message)
        return message.without_defaults

    def failed(self, error: BatonError) -> BatonError:
        """The error of the call, with what it has cost: an answer of which a part has arrived is paid for."""
        error.unsent = error.unsent and not self.begun
        error.usage = self.usage if self.end and self.usage.total_tokens else None
        return error

    def _kept_reasoning(self) -> ServerContent | None:
        """The reasoning, which servers expect back with the tool calls that follow it.

        Nothing is kept of thinking that belongs after a text or a call: its place would be another one.
        """
        streamed = [{name: "".join(parts) for name, parts in fields.items()} for fields in self._reasoning.values()]
        items = [*streamed, *self._reasoning_items]
        text = json.dumps(items, ensure_ascii=False)
        if not (items and self._is_thinking_first) or len(text) > LONGEST_REASONING:
            return None
        return ServerContent(model=self._source, content=text)

    def _tool_call(self, call: _PartialCall, number: int) -> ToolCall:
        extra = ServerContent(model=self._source, content=call.extra) if call.extra else None
        return ToolCall(id=call.id or f"call_{number}", name=call.name, arguments=call.arguments, extra=extra)

    def _note(self, message: Message) -> None:
        """Adds the finish reason and the answer to the span."""
        complete = "tool_calls" if message.tool_calls else "stop"
        reason = "length" if self.end == "length" else complete
        attributes: JsonObject = {"gen_ai.response.finish_reasons": [reason]}
        note_call(lambda: attributes | ({"gen_ai.response.id": self.id} if self.id else {}))
        note_content(partial(answer_content, message, reason))

    def _grow(self, piece: str) -> None:
        self.begun = True
        self._size += len(piece)
        if self._size > MAX_ANSWER:
            raise AnswerTooLong(f"the model's answer is longer than {MAX_ANSWER:,} characters")


def reasoning_of(message: Message, source: str) -> list[JsonObject]:
    """The reasoning of a message that this model has sent; empty if another one has, or if it is invalid."""
    if message.reasoning is None or message.reasoning.model != source:
        return []
    try:
        items = parse_json(message.reasoning.content)
    except ValueError:
        return []
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _is_complete(call: ToolCall) -> bool:
    """Whether a call at the token limit has all of its arguments; one without any may have been cut before them."""
    try:
        parse_json(call.arguments)
    except ValueError:
        return False
    return True


def has_open_objects(schema: Any) -> bool:
    """Whether objects may have properties that the schema does not define: servers can't enforce such a schema."""
    if isinstance(schema, list):
        return any(map(has_open_objects, schema))
    if not isinstance(schema, dict):
        return False
    unnamed = schema.get("type") == "object" and not schema.get("properties")
    return unnamed or bool(schema.get("additionalProperties")) or any(map(has_open_objects, schema.values()))
