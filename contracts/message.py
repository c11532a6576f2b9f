"""Messages of a conversation: text, tool calls, token usage; places in a conversation; the latest messages."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from ..resources.base import JsonModel, JsonObject
from .attachment import Attachment
from .text import MAX_MESSAGE, Count, Text, byte_size, truncate

SCRIPTED = "scripted:"
"""The prefix of the model's name in answers of the scripted model: they can't be mistaken for a language model's."""


class ServerContent(JsonModel):
    """Content that a server expects back: ``extra_content`` of a tool call, or the reasoning before an answer.

    ``model`` is the model that added it, with its server: it is sent to no other model. ``content`` is JSON as text: of
    a tool call an object, of a reasoning a list of objects, exactly as the server sent them.
    """

    model: Text
    content: Text


class PersonDecision(JsonModel):
    """A decision: whether a call is executed, or what a person replied to a question, by whom and when.

    ``how``: by a ``person``, by a ``timeout``, or ``remembered`` from an earlier decision of ``by``. ``arguments`` is
    JSON text, set if the person changed the arguments. ``remember``: the decision applies to all later calls of that
    tool in the run. ``text`` is a reply; a question without a reply in time is not ``approved``. ``text`` is also the
    result of a client's tool, which then has a ``digest``. ``verified``: a gateway has verified ``by``, and the
    ``groups``. Where several people have to approve, ``earlier`` are those who did before, and ``missing`` is how many
    have to after this one. ``as_requester``: the person has started the run, or may have, so that the decision does not
    count for rules with ``notRequester``.
    """

    approved: bool
    at: datetime
    by: Text | None = None
    how: Literal["person", "timeout", "remembered"] = "person"
    reason: Text = ""
    arguments: Text | None = None
    remember: bool = False
    text: Text | None = None
    digest: str | None = None
    verified: bool = False
    groups: tuple[Text, ...] = ()
    earlier: tuple[Text, ...] = ()
    missing: int = 0
    as_requester: bool = False

    def verified_as(self, name: str, groups: tuple[str, ...], *, as_requester: bool = False) -> "PersonDecision":
        """The decision of a person with a verified name."""
        verified = {"by": name, "groups": groups, "verified": True, "as_requester": as_requester}
        return self.model_copy(update=verified)

    def after(self, earlier: Iterable[str], missing: int) -> "PersonDecision":
        """The decision after those of others; so many are ``missing`` still."""
        return self.model_copy(update={"earlier": tuple(earlier), "missing": missing})

    def to_remember(self) -> "PersonDecision":
        """Who decided what and when, without long fields; the text of a reply is stored in its message."""
        text = None if self.text is None else ""
        return self.model_copy(update={"arguments": None, "text": text})

    def for_others(self) -> "PersonDecision":
        """The same decision for other calls, with their own arguments."""
        return self.model_copy(update={"how": "remembered", "arguments": None})

    def taken_at(self, at: datetime) -> "PersonDecision":
        """The same decision, applied again at that time."""
        return self.model_copy(update={"at": at})

    def with_arguments(self, arguments: str) -> "PersonDecision":
        """The same decision with other arguments, as JSON text."""
        return self.model_copy(update={"arguments": arguments})

    def with_text(self, text: str) -> "PersonDecision":
        """The same decision with the text of a reply."""
        return self.model_copy(update={"text": text})


MAX_RECENT = 16_000
"""Bytes of messages from before a team's latest turn in its status and its result.

At continue-as-new they are copied twice more into the input of the next run. 4,000 would save 108 bytes of history per
turn, but clients read the conversation of a short team in its result.
"""


MAX_PREVIEW = 500
"""Bytes of a tool's result, and of the arguments of a call, that a workflow's history holds."""

MAX_STEP = 2_000
"""Bytes of the text of an answer that calls tools, and of the arguments of all its calls, that a history holds."""


class TokenUsage(JsonModel):
    """Tokens as counted by the model's server, and calls of models and tools (ARK: queries, token usage metrics).

    ``cached_tokens`` are prompt tokens served from the provider's cache; ``prompt_tokens`` includes them.
    ``cost`` is in US dollars, for models whose price is known.
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
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return TokenUsage(**total, **({"cost": round(sum(costs), 9)} if costs else {}))

    def __sub__(self, earlier: "TokenUsage") -> "TokenUsage":
        """What was used since an ``earlier`` time."""
        since = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTED}
        cost = {} if self.cost is None else {"cost": round(self.cost - (earlier.cost or 0.0), 9)}
        return TokenUsage(**since, **cost)

    @property
    def whole(self) -> JsonObject:
        """All counts as JSON, also those that are 0; the cost, if the price of a model is known."""
        return (TokenUsage() + self).model_dump(mode="json")

    def with_cost(self, cost: float) -> "TokenUsage":
        """The same counts with their cost in US dollars."""
        return self.model_copy(update={"cost": cost})


_COUNTED = tuple(name for name in TokenUsage.model_fields if name != "cost")


class ToolCall(JsonModel):
    """A tool call. ``arguments`` is the model's JSON text, possibly invalid; ``extra`` is sent to its model only."""

    id: Text
    name: Text
    arguments: Text = "{}"
    extra: ServerContent | None = None

    def with_arguments(self, arguments: str) -> "ToolCall":
        """The call with other arguments, such as those changed by a person."""
        return self.model_copy(update={"arguments": arguments})

    def preview(self, limit: int) -> "ToolCall":
        """The call without its extra, and with at most ``limit`` bytes of its arguments."""
        return self.model_copy(update={"arguments": truncate(self.arguments, limit), "extra": None})

    def result_message(self, text: str, decision: PersonDecision | None = None, fence: str | None = None) -> "Message":
        """A tool message with a result that no tool has returned, such as an error."""
        return Message(
            role="tool", content=text, name=self.name, tool_call_id=self.id, decision=decision, fence=fence
        ).without_defaults


class SecretPlaceholder(JsonModel):
    """A placeholder for a secret parameter in a text; the worker inserts the value just before the text is used."""

    at: int
    length: int
    name: str


class RemoteTask(JsonModel):
    """An agent server's ids for the place of a message, needed for the next message to ``agent`` (the id of an Agent).

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


class Handoff(JsonModel):
    """A member of the ``team`` (an id) has transferred the conversation to another ``member``, by its name there."""

    team: str
    member: str


PanelMessageKind = Literal["contribution", "critique", "decision", "verdict", "deliverable"]

FinishReason = Literal["length"]
"""Why an answer ended early, as in chat completions."""


class Message(JsonModel):
    """One message of a conversation, with the roles of OpenAI's chat completions.

    ``name`` is the agent (role ``assistant``) or the tool (role ``tool``) that the message is from; ``model`` is the
    model's name as reported by the server. ``blanks`` are the placeholders for secrets in ``content``. ``part`` is the
    message's kind in a panel or a debate, and ``round`` its round, from 1. ``remote`` is for agents of A2AServers.
    ``fence`` marks an untrusted tool result: a model reads it between two lines with this mark; people read ``content``
    unchanged. ``decision`` is the decision about the tool call that it answers. ``summarizes`` marks a summary of the
    conversation from its beginning up to that depth: only agents whose context window uses summaries read it, in place
    of those messages. ``handoff`` is the transfer that a tool result confirms. ``reasoning`` is what the model has
    thought before its tool calls: it is never shown, and sent back to the same model. ``attachments`` are images and
    files, which have stand-ins in ``content``: only models and agents that accept them read more than these.
    ``finish_reason`` is ``length`` for an answer that the model's token limit has cut off.
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
    handoff: Handoff | None = None
    reasoning: ServerContent | None = None
    attachments: tuple[Attachment, ...] = ()
    finish_reason: FinishReason | None = None

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
        if not (self.tool_calls or self.reasoning):  # most messages; a team's status measures many after each turn
            return (self.content,)
        extras = [call.extra.content for call in self.tool_calls if call.extra]
        extras += [self.reasoning.content] if self.reasoning else []
        return (self.content, *(call.arguments for call in self.tool_calls), *extras)

    @property
    def without_placeholders(self) -> "Message":
        """The message as people read it: with the names of secrets, whose values are never inserted."""
        return self.model_copy(update={"blanks": ()}) if self.blanks else self

    @property
    def without_fence(self) -> "Message":
        """The message for any reader but a model."""
        return self.model_copy(update={"fence": None})

    def named(self, name: str) -> "Message":
        """The message under the name of an agent or a tool."""
        return self.model_copy(update={"name": name})

    def with_usage(self, usage: TokenUsage | None) -> "Message":
        """The message with the usage of the call that it answers."""
        return self.model_copy(update={"usage": usage})

    def with_attachments(self, attachments: Iterable[Attachment]) -> "Message":
        """The message with other attachments; its text stays as it is."""
        return self.model_copy(update={"attachments": tuple(attachments)})

    def with_content(self, content: str) -> "Message":
        """The message with another text."""
        return self.model_copy(update={"content": content})

    @property
    def in_history(self) -> "Message":
        """The message as the history of a workflow holds it; the journal has all of it.

        An answer is truncated to ``MAX_MESSAGE`` bytes: people read it there, and it is the last one of its turn. Of
        what a turn has any number of, tools' results and answers that call tools, there is a preview.
        """
        if self.role == "tool":
            return self.truncated(MAX_PREVIEW)
        if not self.tool_calls:
            return self.truncated()
        share = min(MAX_PREVIEW, MAX_STEP // len(self.tool_calls))
        calls = tuple(call.preview(share) for call in self.tool_calls)
        changed = {"content": truncate(self.content, MAX_STEP), "tool_calls": calls, "reasoning": None}
        return self.model_copy(update=changed)

    def truncated(self, limit: int = MAX_MESSAGE) -> "Message":
        """The message as text: without what only its server reads, and without attachments, but with their stand-ins.

        Its texts are truncated to equal shares of ``limit`` bytes.
        """
        if self._has_more_than_text:
            bare = tuple(call.model_copy(update={"extra": None}) for call in self.tool_calls)
            changed = {"tool_calls": bare, "reasoning": None, "attachments": ()}
            return self.model_copy(update=changed).truncated(limit)
        if self.length <= limit and self.byte_size <= limit:
            return self
        share = limit // (1 + len(self.tool_calls))
        calls = tuple(call.preview(share) for call in self.tool_calls)
        return self.model_copy(update={"content": truncate(self.content, share), "tool_calls": calls})

    @property
    def _has_more_than_text(self) -> bool:
        """Whether it has what only its server reads, or attachments."""
        return bool(self.reasoning or self.attachments or any(call.extra for call in self.tool_calls))

    def within(self, limit: int, size: int) -> "Message":
        """The message truncated to ``limit`` bytes; ``size`` is its ``byte_size``."""
        return self if size <= limit and not self._has_more_than_text else self.truncated(limit)


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
        copy = Message(
            role="assistant",
            content=message.content,
            name=self.name,
            part=self.part,
            round=self.round,
            finish_reason=message.finish_reason,
        )
        return copy.model_copy(update={"remote": message.remote}) if message.remote else copy


class RowRange(JsonModel):
    """The rows after one head up to and including another."""

    after: Head
    to: Head


MESSAGE_OVERHEAD = 300
"""Bytes of a message besides its texts, at most; it limits the number of short messages."""


def latest_within(messages: Iterable[Message], limit: int = MAX_MESSAGE) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``limit`` bytes; at least the last one, truncated to fit."""
    fitting: list[Message] = []
    for message in reversed(tuple(messages)):
        size = message.byte_size
        if fitting and limit < size:
            break
        fitting.append(message.within(limit, size))
        limit -= size + MESSAGE_OVERHEAD
    return tuple(reversed(fitting))


def recent_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The last messages, as many as fit into ``MAX_RECENT`` bytes; at least the last one, in full."""
    return latest_within(messages, max(MAX_RECENT, messages[-1].byte_size)) if messages else ()


def last_spoken(messages: Iterable[Message]) -> Message | None:
    """The answer among the messages: the last one with a text from an assistant, not from a tool."""
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
