"""The events of a run that clients receive: one type for everything that happens in a run and its child runs."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter

from ...contracts.errors import Failure
from ...contracts.message import FinishReason, PanelMessageKind, TokenUsage
from ...contracts.status import Phase
from ...contracts.turn import StopReason
from ...resources.base import JsonModel, JsonObject
from ..text import assignments

HIDDEN_IN_LINES = ("id", "cursor", "at", "type", "run", "namespace", "parent")
"""Fields that are in a place of their own in an event's line of text, or only in its JSON."""


class BaseEvent(JsonModel):
    """What all events have.

    ``id`` identifies the event: it is the same for every reader. From ``cursor`` any reader continues after this event.
    ``run`` is the path of the run in which it happened: the id of the root run, and for a child run what leads to it,
    as in ``ID/turn-2/NAME``. ``team`` is the team whose run that is, or in which that run takes a turn. ``at`` is the
    time at which it happened.
    """

    id: str = ""
    cursor: str = ""
    run: str
    team: str | None = None
    at: datetime

    @property
    def line(self) -> str:
        """The event as a line of text, without what only programs need."""
        data = self.model_dump(mode="json")
        time = f"{self.at:%H:%M:%S.%f}"[:-3]
        kind = data["type"]
        usage = data.pop("usage", None)
        shown = {key: value for key, value in data.items() if key not in HIDDEN_IN_LINES and value not in ([], False)}
        if usage:
            shown["tokens"] = usage["totalTokens"]
        return f"{time}  {kind:<20} {self.run}  {assignments(shown)}".rstrip()

    def placed(self, id_: str, cursor: str) -> Self:
        """The event with its id and its cursor."""
        return self.model_copy(update={"id": id_, "cursor": cursor})


class RunStartedEvent(BaseEvent):
    """A run has started: of a query, or as a child run of a team, an agent, a model or a tool.

    ``strategy`` is that of a team. ``parent`` is the run that started it.
    """

    type: Literal["run.started"] = "run.started"
    kind: str
    name: str
    namespace: str
    strategy: str | None = None
    parent: str | None = None


class RunEndedEvent(BaseEvent):
    """A run has ended; for the root run it is the last event.

    ``usage`` is that of the run and its child runs, with the cost in US dollars of models whose price is known.
    ``turns`` is the number of turns that members of a team have taken. ``notices`` are remarks, such as about missing
    tools. ``member_failures`` are failures of members that did not fail their team, as in a status.
    """

    type: Literal["run.ended"] = "run.ended"
    phase: Phase
    stop_reason: StopReason | None = None
    note: str | None = None
    error: str | None = None
    error_type: str | None = None
    turns: int | None = None
    usage: TokenUsage
    notices: tuple[str, ...] = ()
    member_failures: tuple[Failure, ...] = ()


class RunRetriedEvent(BaseEvent):
    """The run retries a failed one. It begins with the ``usage`` of the calls that it keeps."""

    type: Literal["run.retried"] = "run.retried"
    usage: TokenUsage


class RunForkedEvent(BaseEvent):
    """The run continues from a place in another one, ``forked_from``. It begins with the ``usage`` up to there.

    ``place`` is the name of that place. A child run has neither name.
    """

    type: Literal["run.forked"] = "run.forked"
    forked_from: str | None = None
    place: str | None = None
    usage: TokenUsage


class RunResetEvent(BaseEvent):
    """The run was reset in Temporal: what happened after ``since`` is void, and the run continues from there."""

    type: Literal["run.reset"] = "run.reset"
    since: datetime


class NoticeEvent(BaseEvent):
    """A remark about the run as it starts, such as about agents that continue without the tools of an MCP server."""

    type: Literal["notice"] = "notice"
    text: str


class RoundStartedEvent(BaseEvent):
    """A round of a panel, a debate or a round-robin has started; ``round`` counts from 1."""

    type: Literal["round.started"] = "round.started"
    round: int
    max_rounds: int | None = None


class RoundEndedEvent(BaseEvent):
    """A round has ended, or the run in it."""

    type: Literal["round.ended"] = "round.ended"
    round: int


class TurnStartedEvent(BaseEvent):
    """A speaker has started its turn: an ``agent``, a ``model``, a ``team``, a ``function`` or a ``human``.

    ``turn`` is its number in the team, where turns are numbered, from 1. In a panel, ``part`` is the role of a speaker
    that is not a member, such as ``referee``; a turn of a member has a ``collection``, which is the panel's name for
    the audit, and in a debate a ``stance``. ``function`` is the name of the called function. The text of a ``hidden``
    turn is not shown to clients.
    """

    type: Literal["turn.started"] = "turn.started"
    speaker: str
    kind: Literal["agent", "model", "team", "function", "human"]
    turn: int | None = None
    round: int | None = None
    part: str | None = None
    function: str | None = None
    hidden: bool = False
    collection: str | None = None
    stance: str | None = None


class TurnEndedEvent(BaseEvent):
    """A turn has ended. ``seconds`` is its duration, ``usage`` that of all calls in it.

    ``text`` is what a function returned, at the ``attempts``-th attempt; None if it is not shown to clients.
    """

    type: Literal["turn.ended"] = "turn.ended"
    speaker: str
    turn: int | None = None
    round: int | None = None
    part: str | None = None
    outcome: Literal["completed", "failed", "canceled"]
    error: str | None = None
    error_type: str | None = None
    seconds: float
    usage: TokenUsage
    text: str | None = None
    attempts: int | None = None


class ModelCalledEvent(BaseEvent):
    """A model, or the engine of an agent that is executed elsewhere, was called.

    ``call`` is the id of the call in its run. The selector of a team is a ``speaker`` as well. ``turns`` is the
    largest number of turns, if they are limited. The answer of a ``hidden`` call is not shown to clients.
    """

    type: Literal["model.called"] = "model.called"
    call: str
    speaker: str
    model: str
    turn: int | None = None
    round: int | None = None
    part: str | None = None
    turns: int | None = None
    hidden: bool = False


class CalledTool(JsonModel):
    """A tool call in a model's answer; ``arguments`` is its JSON text, of long ones the beginning."""

    id: str
    name: str
    arguments: str


class ModelAnsweredEvent(BaseEvent):
    """A model has answered, at the ``attempts``-th attempt.

    ``text`` is the answer, or the beginning of a very long one; it is None if the answer is not shown to clients.
    ``draft`` is its number, as in ``text.delta``; the text of an earlier draft was retracted. ``model`` is the name
    that the server reports. ``wrong`` says why the answer does not match its schema: then the model is asked again.
    ``finish_reason`` is ``length`` if the model's token limit has cut the answer off. ``earlier`` are the messages
    before the answer of an agent that is executed elsewhere.
    """

    type: Literal["model.answered"] = "model.answered"
    call: str
    speaker: str
    model: str | None = None
    text: str | None = None
    tool_calls: tuple[CalledTool, ...] = ()
    wrong: str | None = None
    finish_reason: FinishReason | None = None
    usage: TokenUsage
    attempts: int
    draft: int = 1
    seconds: float
    earlier: tuple[str, ...] = ()


class ModelFailedEvent(BaseEvent):
    """A call of a model has failed for good, or was canceled: then there is no ``error``.

    ``draft`` is the number of its last draft, as in ``text.delta``.
    """

    type: Literal["model.failed"] = "model.failed"
    call: str
    speaker: str
    error: str | None = None
    error_type: str | None = None
    attempts: int
    draft: int = 1
    seconds: float


class TextDeltaEvent(BaseEvent):
    """The next piece of the text that a model is sending; ``offset`` is the number of characters before it.

    With a ``tool`` it is what that tool reports of its progress, which is no part of an answer.

    Only a reader that is connected during the call receives it. Once it has received a piece, it receives all of the
    text, unless ``text.retracted`` retracts it. A reader that goes on from a cursor within the text receives another
    piece when the call ends: an empty one if nothing remains. ``attempt`` is the attempt of the call, from 1.
    ``draft`` is the number of the text among those that the call has begun, from 1, the same for every reader. Each
    attempt is another draft, also after the call has waited; an answer that differs from what its attempt has sent is
    one more.
    """

    type: Literal["text.delta"] = "text.delta"
    call: str
    speaker: str
    tool: str | None = None
    attempt: int = 1
    draft: int = 1
    offset: int
    text: str


class TextRetractedEvent(BaseEvent):
    """The text of a call so far is retracted; the next piece begins at offset 0.

    Its ``attempt`` has failed, or the answer differs from it. ``tool`` and ``draft`` are those of its pieces.
    """

    type: Literal["text.retracted"] = "text.retracted"
    call: str
    speaker: str
    tool: str | None = None
    attempt: int = 1
    draft: int = 1
    characters: int


class AttemptFailedEvent(BaseEvent):
    """An attempt of a call of a model or a tool has failed, and the call is retried at ``next_at``.

    Only a reader that is connected during the call receives it.
    """

    type: Literal["attempt.failed"] = "attempt.failed"
    call: str
    speaker: str
    attempt: int
    error: str
    next_at: datetime | None = None


class ToolCalledEvent(BaseEvent):
    """A tool was called; ``tool_call`` is the model's id of the call. Arguments that clients may not see are None."""

    type: Literal["tool.called"] = "tool.called"
    call: str
    tool_call: str | None = None
    speaker: str
    tool: str
    arguments: str | None = None


class ToolReturnedEvent(BaseEvent):
    """A tool has returned its result, or the beginning of a long one; ``ends``: it ended the turn and the team."""

    type: Literal["tool.returned"] = "tool.returned"
    call: str
    tool_call: str | None = None
    speaker: str
    tool: str
    text: str | None = None
    ends: bool = False
    attempts: int
    seconds: float


class ToolFailedEvent(BaseEvent):
    """A tool call has failed, or was canceled: then there is no ``error``."""

    type: Literal["tool.failed"] = "tool.failed"
    call: str
    tool_call: str | None = None
    speaker: str
    tool: str
    error: str | None = None
    error_type: str | None = None
    attempts: int
    seconds: float


SelectionKind = Literal["chosen", "matched", "fallback", "only_candidate", "terminated"]


class SpeakerSelectedEvent(BaseEvent):
    """The selector of a team chose the next ``speaker``; without one it ended the team."""

    type: Literal["speaker.selected"] = "speaker.selected"
    speaker: str | None = None
    how: SelectionKind


class HandoffEvent(BaseEvent):
    """The ``speaker`` has transferred the conversation to another member, the ``receiver``, by its name in the team."""

    type: Literal["handoff"] = "handoff"
    speaker: str
    receiver: str


class ConditionsEvaluatedEvent(BaseEvent):
    """The conditions of a team were evaluated after a turn: whether it ends, or the index of the edge to follow."""

    type: Literal["conditions.evaluated"] = "conditions.evaluated"
    ends: bool
    edge: int | None = None


class MessageEvent(BaseEvent):
    """A message was added to the conversation of a run.

    ``number`` is its place in that conversation, from 1: the same for every reader. ``name`` is that of its author. In
    a panel it has a ``round`` and a ``part``. ``finish_reason`` is that of its model, as in ``model.answered``.
    ``from_person``: it is not of a member, but of a person who has steered the run or has answered a tool's question.
    """

    type: Literal["message"] = "message"
    number: int | None = None
    name: str
    text: str
    round: int | None = None
    part: PanelMessageKind | None = None
    finish_reason: FinishReason | None = None
    from_person: bool = False


WaitKind = Literal["approval", "question", "budget", "client_tool", "circuit", "outage", "pause", "quota"]


class WaitStartedEvent(BaseEvent):
    """The run waits: for a person, its client, the end of an outage or a pause, an open circuit breaker, or a Quota.

    ``wait`` is the id of the decision, by which it is approved or replied to, or by which the client gives the result
    of its ``tool``. ``text`` is the question, the arguments of the tool, or the reason. ``speaker`` is whose turn
    waits, or the owner of a budget. ``tool`` is the called tool. A question that ``authorizes`` is one of a server to
    which a person gives a permission elsewhere, such as by signing in, and replies afterwards. ``approvers`` says who
    may decide, if not anyone may. If a call waits to be made again, the end of ``wait`` is the id of the call, and
    ``attempts`` says how many attempts have failed.
    """

    type: Literal["wait.started"] = "wait.started"
    wait: str
    kind: WaitKind
    speaker: str | None = None
    tool: str | None = None
    text: str | None = None
    authorizes: bool = False
    approvers: str | None = None
    attempts: int | None = None


class WaitEndedEvent(BaseEvent):
    """A wait has ended: ``by`` whom and how. ``over``: the run has ended, or it continues by itself.

    ``approved``: whether the call is made, the budget was raised or the question was answered; a tool call may also be
    approved by its timeout. A ``remembered`` decision was made for an earlier call of the tool. ``replied`` also stands
    for the result of a client's tool, which has a ``digest``: SHA-256, the first 32 digits. ``verified``: a gateway
    has identified that person. Where several people had to approve, ``earlier`` are the others.
    """

    type: Literal["wait.ended"] = "wait.ended"
    wait: str
    kind: WaitKind
    outcome: Literal["approved", "rejected", "replied", "declined", "timeout", "over"]
    by: str | None = None
    reason: str | None = None
    text: str | None = None
    digest: str | None = None
    approved: bool | None = None
    remembered: bool = False
    verified: bool = False
    earlier: tuple[str, ...] = ()


class SteeredEvent(BaseEvent):
    """A person has sent a message to the run, which later speakers read."""

    type: Literal["steered"] = "steered"
    by: str
    text: str


class SessionChangedEvent(BaseEvent):
    """A client has changed values of the session; None removes one."""

    type: Literal["session.changed"] = "session.changed"
    by: str
    changes: JsonObject


class StopRequestedEvent(BaseEvent):
    """A client has asked the run to end after the current turn, or ``now``; or it canceled the run."""

    type: Literal["stop.requested"] = "stop.requested"
    kind: Literal["terminate", "cancel"]
    by: str
    reason: str | None = None
    now: bool = False


class MemoryReadEvent(BaseEvent):
    """The conversation of a Memory was read; ``error`` says why not."""

    type: Literal["memory.read"] = "memory.read"
    memory: str | None = None
    conversation: str
    error: str | None = None


class MemoryWrittenEvent(BaseEvent):
    """The new messages were added to the conversation of a Memory; ``error`` says why not."""

    type: Literal["memory.written"] = "memory.written"
    memory: str | None = None
    conversation: str
    error: str | None = None


Event = Annotated[
    RunStartedEvent
    | RunEndedEvent
    | RunRetriedEvent
    | RunForkedEvent
    | RunResetEvent
    | NoticeEvent
    | RoundStartedEvent
    | RoundEndedEvent
    | TurnStartedEvent
    | TurnEndedEvent
    | ModelCalledEvent
    | ModelAnsweredEvent
    | ModelFailedEvent
    | TextDeltaEvent
    | TextRetractedEvent
    | AttemptFailedEvent
    | ToolCalledEvent
    | ToolReturnedEvent
    | ToolFailedEvent
    | SpeakerSelectedEvent
    | HandoffEvent
    | ConditionsEvaluatedEvent
    | MessageEvent
    | WaitStartedEvent
    | WaitEndedEvent
    | SteeredEvent
    | SessionChangedEvent
    | StopRequestedEvent
    | MemoryReadEvent
    | MemoryWrittenEvent,
    Field(discriminator="type"),
]
"""One event of a run; ``type`` says which."""

EVENTS: TypeAdapter[Event] = TypeAdapter(Event)
"""Reads an event from its JSON."""
