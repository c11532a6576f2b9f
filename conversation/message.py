"""What is one message? Who said it, what it says, which tools it calls for, and what it cost."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from resources.base import Plain

MAX_RESULT = 64_000
"""Characters of one message that a history holds; the journal holds all of it."""


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

    id: str
    name: str
    arguments: str = "{}"


class Message(Plain):
    """One message of a conversation, in the roles of OpenAI's chat completions.

    ``name`` is the agent that speaks (role ``assistant``) or the tool that answers (role ``tool``); ``model`` is what
    the server called the model that wrote it.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    model: str | None = None
    usage: TokenUsage | None = None

    def cut(self, limit: int = MAX_RESULT) -> "Message":
        """The message with every text in it at most ``limit`` characters long, and a marker where it was cut."""
        calls = tuple(call.model_copy(update={"arguments": cut(call.arguments, limit)}) for call in self.tool_calls)
        short = all(len(call.arguments) <= limit for call in self.tool_calls) and len(self.content) <= limit
        return self if short else self.model_copy(update={"content": cut(self.content, limit), "tool_calls": calls})


class Head(Plain):
    """A place in a conversation: the id of its last row in the journal, and how many rows lead to it."""

    id: str = ""
    depth: int = Field(0, ge=0)


class Span(Plain):
    """The rows after one head up to another."""

    after: Head
    to: Head


def cut(text: str, limit: int = MAX_RESULT) -> str:
    """The text, or its beginning and a marker that says how long it was."""
    return text if len(text) <= limit else f"{text[:limit]}… [cut here: {len(text):,} characters in all]"


def latest(messages: Iterable[Message], limit: int = MAX_RESULT) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``limit`` characters, at least one."""
    kept: list[Message] = []
    for message in reversed(tuple(messages)):
        limit -= len(message.content) + sum(len(call.arguments) for call in message.tool_calls)
        if kept and limit < 0:
            break
        kept.append(message)
    return tuple(reversed(kept))


def last_word(messages: Iterable[Message]) -> Message | None:
    """What counts as the answer: the last text an agent said, or the final words of ``terminate``."""
    spoken = [message for message in messages if message.role in ("assistant", "tool") and message.content]
    return spoken[-1] if spoken else None
