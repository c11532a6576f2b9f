"""What is one message? Who said it, what it says, which tools it calls for, and what it cost."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import to_json

from ...resources.base import Plain

MAX_RESULT = 64_000
"""Bytes of one message, as JSON, that a history holds; the journal holds all of it."""


def whole(text: str) -> str:
    """Halves of a character, which JSON can hold but no database, are joined, or marked where one is missing."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(whole)]
"""A text as a model or a tool gave it."""


MAX_TAIL = 16_000
"""Bytes of what was said before a team's latest turn that its status and its result hold; a run that goes on holds
them twice more."""


class TokenUsage(Plain):
    """What was spent: tokens as the model's server counted them, and calls (seed 003, Token Usage Metrics)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(**{name: getattr(self, name) + getattr(other, name) for name in TokenUsage.model_fields})


class ToolCall(Plain):
    """A model's wish to use a tool. ``arguments`` is JSON text as the model wrote it, which may be no JSON at all."""

    id: Text
    name: Text
    arguments: Text = "{}"

    def answer(self, text: str) -> "Message":
        """What the model is told of the call where no tool has answered."""
        return Message(role="tool", content=text, name=self.name, tool_call_id=self.id)


class Blank(Plain):
    """A place in a text that a secret parameter fills in, on the worker and at the moment of use."""

    at: int
    length: int
    name: str


Part = Literal["contribution", "critique", "decision", "verdict", "deliverable"]


class Message(Plain):
    """One message of a conversation, in the roles of OpenAI's chat completions.

    ``name`` is the agent that speaks (role ``assistant``) or the tool that answers (role ``tool``); ``model`` is what
    the server called the model that wrote it. ``blanks`` are the places in ``content`` for secrets. ``part`` is what it
    is in a panel or a debate, and ``round`` the round, from 1, to which it belongs.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    name: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: Text | None = None
    blanks: tuple[Blank, ...] = ()
    model: Text | None = None
    usage: TokenUsage | None = None
    part: Part | None = None
    round: int | None = None

    @property
    def weight(self) -> int:
        """Bytes of the texts in the message."""
        return weight(self.content) + sum(weight(call.arguments) for call in self.tool_calls)

    def cut(self, limit: int = MAX_RESULT) -> "Message":
        """The message with its texts cut, evenly and with a marker, where it weighs more than ``limit`` bytes."""
        if self.weight <= limit:
            return self
        share = limit // (1 + len(self.tool_calls))
        calls = tuple(call.model_copy(update={"arguments": cut(call.arguments, share)}) for call in self.tool_calls)
        return self.model_copy(update={"content": cut(self.content, share), "tool_calls": calls})


class Head(Plain):
    """A place in a conversation: the id of its last row in the journal, and how many rows lead to it."""

    id: str = ""
    depth: int = Field(0, ge=0)


class Quote(Plain):
    """What stands in the row ``row``, said again under a ``name`` as a ``part`` of a panel's conversation."""

    row: str
    name: str
    part: Part
    round: int

    def of(self, message: Message) -> Message:
        """The message as it is said again: its text, and nothing that it took to come to it."""
        return Message(role="assistant", content=message.content, name=self.name, part=self.part, round=self.round)


class Span(Plain):
    """The rows after one head up to another."""

    after: Head
    to: Head


def weight(text: str) -> int:
    """Bytes of a text as JSON."""
    return len(to_json(text))


def cut(text: str, limit: int = MAX_RESULT) -> str:
    """The text, or as much of its beginning as ``limit`` bytes hold, and a marker that says how long it was."""
    kept = text
    while (heavy := weight(kept)) > limit + 2:
        kept = kept[: len(kept) * limit // heavy]
    return text if kept == text else f"{kept}… [cut here: {len(text):,} characters in all]"


AROUND = 300
"""Bytes that a message takes beside its texts, at most: short ones count, too, where there are many."""


def latest(messages: Iterable[Message], limit: int = MAX_RESULT) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``limit`` bytes; at least the last one, cut to fit."""
    kept: list[Message] = []
    for message in reversed(tuple(messages)):
        if kept and limit < message.weight:
            break
        kept.append(message.cut(limit))
        limit -= message.weight + AROUND
    return tuple(reversed(kept))


def tail(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``MAX_TAIL`` bytes; at least the last one, whole."""
    return latest(messages, max(MAX_TAIL, messages[-1].weight)) if messages else ()


def last_word(messages: Iterable[Message]) -> Message | None:
    """What counts as the answer: the last text that somebody said; a tool's answer is nobody's word."""
    spoken = [message for message in messages if message.role == "assistant" and message.content]
    return spoken[-1] if spoken else None
