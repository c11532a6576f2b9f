"""What is one message? Who said it, what it says, which tools it calls for, and what it cost."""

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from ...resources.base import JsonModel
from ..text import MAX_MESSAGE, Text, byte_size, truncate

MAX_RECENT = 16_000
"""Bytes of what was said before a team's latest turn that its status and its result hold; a run that goes on holds
them twice more."""


class TokenUsage(JsonModel):
    """What was spent: tokens as the model's server counted them, and calls (seed 003, Token Usage Metrics)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(**{name: getattr(self, name) + getattr(other, name) for name in TokenUsage.model_fields})


class ToolCall(JsonModel):
    """A model's wish to use a tool. ``arguments`` is JSON text as the model wrote it, which may be no JSON at all."""

    id: Text
    name: Text
    arguments: Text = "{}"

    def result_message(self, text: str) -> "Message":
        """What the model is told of the call where no tool has answered."""
        return Message(role="tool", content=text, name=self.name, tool_call_id=self.id)


class SecretPlaceholder(JsonModel):
    """A place in a text that a secret parameter fills in, on the worker and at the moment of use."""

    at: int
    length: int
    name: str


PanelMessageKind = Literal["contribution", "critique", "decision", "verdict", "deliverable"]


class Message(JsonModel):
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
    blanks: tuple[SecretPlaceholder, ...] = ()
    model: Text | None = None
    usage: TokenUsage | None = None
    part: PanelMessageKind | None = None
    round: int | None = None

    @property
    def byte_size(self) -> int:
        """Bytes of the texts in the message."""
        return byte_size(self.content) + sum(byte_size(call.arguments) for call in self.tool_calls)

    def truncated(self, limit: int = MAX_MESSAGE) -> "Message":
        """The message with its texts cut, evenly and with a marker, where it weighs more than ``limit`` bytes."""
        if self.byte_size <= limit:
            return self
        share = limit // (1 + len(self.tool_calls))
        calls = tuple(
            call.model_copy(update={"arguments": truncate(call.arguments, share)}) for call in self.tool_calls
        )
        return self.model_copy(update={"content": truncate(self.content, share), "tool_calls": calls})


class Head(JsonModel):
    """A place in a conversation: the id of its last row in the journal, and how many rows lead to it."""

    id: str = ""
    depth: int = Field(0, ge=0)


class Quote(JsonModel):
    """What stands in the row ``row``, said again under a ``name`` as a ``part`` of a panel's conversation."""

    row: str
    name: str
    part: PanelMessageKind
    round: int

    def quoted(self, message: Message) -> Message:
        """The message as it is said again: its text, and nothing that it took to come to it."""
        return Message(role="assistant", content=message.content, name=self.name, part=self.part, round=self.round)


class Span(JsonModel):
    """The rows after one head up to another."""

    after: Head
    to: Head


MESSAGE_OVERHEAD = 300
"""Bytes that a message takes beside its texts, at most: short ones count, too, where there are many."""


def latest_within(messages: Iterable[Message], limit: int = MAX_MESSAGE) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``limit`` bytes; at least the last one, cut to fit."""
    kept: list[Message] = []
    for message in reversed(tuple(messages)):
        if kept and limit < message.byte_size:
            break
        kept.append(message.truncated(limit))
        limit -= message.byte_size + MESSAGE_OVERHEAD
    return tuple(reversed(kept))


def recent_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``MAX_TAIL`` bytes; at least the last one, whole."""
    return latest_within(messages, max(MAX_RECENT, messages[-1].byte_size)) if messages else ()


def last_spoken(messages: Iterable[Message]) -> Message | None:
    """What counts as the answer: the last text that somebody said; a tool's answer is nobody's word."""
    spoken = [message for message in messages if message.role == "assistant" and message.content]
    return spoken[-1] if spoken else None
