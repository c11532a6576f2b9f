"""Messages of a conversation: text, tool calls, token usage; places in a conversation; the last of many messages."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from ..resources.base import JsonModel, JsonObject
from .text import MAX_MESSAGE, Count, Text, byte_size, truncate


class CallExtra(JsonModel):
    """The field ``extra_content`` of a tool call, such as Gemini's thought signature.

    ``model`` is the model that has added it, with its server: no other model gets it. ``content`` is a JSON object as
    text, as the server wrote it.
    """

    model: Text
    content: Text


class PersonDecision(JsonModel):
    """A decision: whether a call is carried out, or what a person has replied to a question, by whom and when.

    ``how``: by a ``person``, by a ``timeout``, or as ``remembered`` from an earlier decision of ``by``. ``arguments``
    is JSON text, where the person has changed the arguments. ``remember``: it holds for all calls of that tool in the
    run from then on. ``text`` is a reply; a question that nobody has replied to in time is not ``approved``.
    """

    approved: bool
    at: datetime
    by: Text | None = None
    how: Literal["person", "timeout", "remembered"] = "person"
    reason: Text = ""
    arguments: Text | None = None
    remember: bool = False
    text: Text | None = None

    def to_remember(self) -> "PersonDecision":
        """Who has decided what and when, without what may be long; the text of a reply stands in its message."""
        text = None if self.text is None else ""
        return self.model_copy(update={"arguments": None, "text": text})

    def for_others(self) -> "PersonDecision":
        """The same decision about other calls, whose arguments nobody has changed."""
        return self.model_copy(update={"how": "remembered", "arguments": None})

    def taken_at(self, at: datetime) -> "PersonDecision":
        """The same decision, which is applied again at that time."""
        return self.model_copy(update={"at": at})

    def with_arguments(self, arguments: str) -> "PersonDecision":
        """The same decision with other arguments, as JSON text."""
        return self.model_copy(update={"arguments": arguments})

    def with_text(self, text: str) -> "PersonDecision":
        """The same decision with the text of a reply."""
        return self.model_copy(update={"text": text})


MAX_RECENT = 16_000
"""Bytes of older messages, from before a team's latest turn, in its status and its result.

At continue-as-new they are copied twice more into the input of the next run. 4,000 would save 108 bytes of history a
turn, but clients read the conversation of a short team in its result.
"""


class TokenUsage(JsonModel):
    """Tokens as counted by the model's server, and calls of models and tools (ARK: queries, token usage metrics).

    ``cached_tokens`` are prompt tokens served from the provider's cache; ``prompt_tokens`` includes them.
    ``cost`` is in US dollars, of those models whose price is known.
    """

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    total_tokens: Count = 0
    model_calls: Count = 0
    tool_calls: Count = 0
    cached_tokens: Count = 0
    cost: float | None = None

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        total = {name: getattr(self, name) + getattr(other, name) for name in _COUNTED}
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return TokenUsage(**total, **({"cost": round(sum(costs), 9)} if costs else {}))

    def with_cost(self, cost: float) -> "TokenUsage":
        """The same counts with what they have cost, in US dollars."""
        return self.model_copy(update={"cost": cost})


_COUNTED = tuple(name for name in TokenUsage.model_fields if name != "cost")


class ToolCall(JsonModel):
    """A tool call. ``arguments`` is JSON text as the model wrote it, maybe invalid; ``extra`` is for its model only."""

    id: Text
    name: Text
    arguments: Text = "{}"
    extra: CallExtra | None = None

    def with_arguments(self, arguments: str) -> "ToolCall":
        """The call with other arguments, such as those that a person has changed."""
        return self.model_copy(update={"arguments": arguments})

    def result_message(self, text: str, decision: PersonDecision | None = None, fence: str | None = None) -> "Message":
        """A tool message with a result that was not made by a tool, such as an error."""
        return Message(
            role="tool", content=text, name=self.name, tool_call_id=self.id, decision=decision, fence=fence
        ).without_defaults


class SecretPlaceholder(JsonModel):
    """A place in a text for a secret parameter; the worker inserts its value just before the text is used."""

    at: int
    length: int
    name: str


class RemoteTask(JsonModel):
    """What a server of agents calls the place of a message: for the next message of ``agent`` (the id of an Agent).

    ``context`` is A2A's contextId, ``task`` its taskId, if there is a task, and ``state`` the state of that task, such
    as ``completed`` or ``input-required``.
    """

    agent: str
    context: Text | None = None
    task: Text | None = None
    state: Text | None = None

    @property
    def waits(self) -> bool:
        """Whether the task waits for an answer or an authorization."""
        return self.state in ("input-required", "auth-required")


PanelMessageKind = Literal["contribution", "critique", "decision", "verdict", "deliverable"]


class Message(JsonModel):
    """One message of a conversation, with the roles of OpenAI's chat completions.

    ``name`` is the agent (role ``assistant``) or the tool (role ``tool``) that the message is from; ``model`` is what
    the server called the model. ``blanks`` are the places in ``content`` for secrets. ``part`` tells what the
    message is in a panel or a debate, and ``round``, from 1, in which round. ``remote`` is for agents of A2AServers.
    ``fence`` marks a tool's answer that is untrusted: a model reads it between two lines with this mark; people read
    ``content`` as it is. ``decision`` is what was decided about the tool call that it answers. ``summarizes`` marks a
    summary of the conversation from its beginning up to that depth: it is read in place of those messages by those
    whose context window says so, and by nobody else.
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
    remote: RemoteTask | None = None
    fence: Text | None = None
    decision: PersonDecision | None = None
    summarizes: int | None = None

    @property
    def length(self) -> int:
        """Characters of the texts in the message, at most ``byte_size``."""
        return sum(map(len, self._texts))

    @property
    def byte_size(self) -> int:
        """Bytes of the texts in the message."""
        return sum(map(byte_size, self._texts))

    @property
    def _texts(self) -> tuple[str, ...]:
        extras = (call.extra.content for call in self.tool_calls if call.extra)
        return (self.content, *(call.arguments for call in self.tool_calls), *extras)

    @property
    def without_placeholders(self) -> "Message":
        """The message as people read it: with the names of secrets, which nobody fills in any more."""
        return self.model_copy(update={"blanks": ()}) if self.blanks else self

    @property
    def without_fence(self) -> "Message":
        """The message for anybody but a model."""
        return self.model_copy(update={"fence": None})

    def named(self, name: str) -> "Message":
        """The message as that of an agent or a tool with this name."""
        return self.model_copy(update={"name": name})

    def with_usage(self, usage: TokenUsage | None) -> "Message":
        """The message with the usage of the call that it answers."""
        return self.model_copy(update={"usage": usage})

    def with_content(self, content: str) -> "Message":
        """The message with another text."""
        return self.model_copy(update={"content": content})

    def truncated(self, limit: int = MAX_MESSAGE) -> "Message":
        """The message without extras of calls, its texts truncated to equal shares of ``limit`` bytes if larger."""
        if any(call.extra for call in self.tool_calls):
            bare = tuple(call.model_copy(update={"extra": None}) for call in self.tool_calls)
            return self.model_copy(update={"tool_calls": bare}).truncated(limit)
        if self.length <= limit and self.byte_size <= limit:
            return self
        share = limit // (1 + len(self.tool_calls))
        calls = tuple(
            call.model_copy(update={"arguments": truncate(call.arguments, share)}) for call in self.tool_calls
        )
        return self.model_copy(update={"content": truncate(self.content, share), "tool_calls": calls})


class Head(JsonModel):
    """A place in a conversation: the id of the last row in the journal, and the number of rows up to it."""

    id: str = ""
    depth: int = Field(0, ge=0)


class Quote(JsonModel):
    """A copy of the message in the row ``row``, under another ``name``, as a ``part`` of a panel's conversation."""

    row: str
    name: str
    part: PanelMessageKind
    round: int

    def quoted(self, message: Message) -> Message:
        """The copy of the message: its text, without tool calls, usage and model."""
        copy = Message(role="assistant", content=message.content, name=self.name, part=self.part, round=self.round)
        return copy.model_copy(update={"remote": message.remote}) if message.remote else copy


class RowRange(JsonModel):
    """The rows after one head up to and including another."""

    after: Head
    to: Head


MESSAGE_OVERHEAD = 300
"""Bytes of a message besides its texts, at most; it limits the number of short messages."""


def latest_within(messages: Iterable[Message], limit: int = MAX_MESSAGE) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``limit`` bytes; at least the last one, truncated to fit."""
    kept: list[Message] = []
    for message in reversed(tuple(messages)):
        if kept and limit < message.byte_size:
            break
        kept.append(message.truncated(limit))
        limit -= message.byte_size + MESSAGE_OVERHEAD
    return tuple(reversed(kept))


def recent_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``MAX_RECENT`` bytes; at least the last one, in full."""
    return latest_within(messages, max(MAX_RECENT, messages[-1].byte_size)) if messages else ()


def last_spoken(messages: Iterable[Message]) -> Message | None:
    """The message that counts as the answer: the last one with a text from an assistant, not from a tool."""
    spoken = [message for message in messages if message.role == "assistant" and message.content]
    return spoken[-1] if spoken else None


def openai_form(message: Message) -> JsonObject:
    """A message with the keys of chat completions: role, content, name, tool_calls, tool_call_id."""
    data: JsonObject = {"role": message.role, "content": message.content}
    if message.name:
        data["name"] = message.name
    if message.role == "tool":
        data["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return data
