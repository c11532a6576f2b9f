"""Which events does one run have? Its own beginning and end, its members' turns, and their calls."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...conversation.contracts.panel_requests import PerformRequest
from ...conversation.contracts.plan import TeamPlan
from ...conversation.contracts.requests import (
    AskModelRequest,
    AskModelResult,
    Pinned,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...conversation.failure import Failure
from ...conversation.messages.message import TokenUsage
from ...resources.base import JsonObject
from .event_data import call_data, round_data, failure_data, reply_data, usage_data
from .run_events import ActivityCall, CallScheduled, CallEnded, RunEvent, RunInfo, RunStarted, RunEnded, token_usage

NamedEvent = tuple[str, JsonObject]
"""The name of an event, and its data."""

SUBJECTS = {
    "query": "Query",
    "team": "TeamExecution",
    "agent": "AgentExecution",
    "model": "ModelExecution",
    "tool": "ToolExecution",
}
CALLS = {"ask_model": "LLMCall", "use_tool": "ToolCall", "select": "SelectorCall", "perform": "FunctionCall"}

Place = tuple[int, str]
"""When somebody speaks: the number of the turn, and in a panel the part, if it is no member's."""


@dataclass
class _Speaker:
    """An agent that has not ended its turn; ``unanswered`` counts the tool calls of its last words."""

    about: JsonObject
    place: Place
    usage: TokenUsage = field(default_factory=TokenUsage)
    unanswered: int = 0
    ends: bool = False
    failure: Failure | None = None


@dataclass
class EventBuilder:
    """What has been seen of a run. ``begun`` are its members' turns, of which several may go on at once, and parts."""

    run: RunInfo
    usage: TokenUsage = field(default_factory=TokenUsage)
    max_turns: int | None = None
    max_rounds: int | None = None
    begun: set[Place] = field(default_factory=set)
    selected: bool = False
    speakers: dict[Place, _Speaker] = field(default_factory=dict)
    asked_in: dict[str, Place] = field(default_factory=dict)
    ended_by: str | None = None
    last_words: str | None = None

    def add_usage(self, happening: RunEvent) -> None:
        """Adds what was spent in the run, or in a child run."""
        usage = token_usage(happening)
        self.usage += usage
        if speaker := self._speaker(happening):
            speaker.usage += usage

    def build(self, happening: RunEvent) -> Iterator[NamedEvent]:
        """The events that stand for what has happened in the run itself."""
        match happening:
            case RunStarted() if self.run.kind in SUBJECTS:
                yield f"{SUBJECTS[self.run.kind]}{'Received' if self.run.kind == 'query' else 'Started'}", self._about
            case CallScheduled(call=call):
                yield from self._call_began(call)
            case CallEnded():
                yield from self._call_ended(happening)
            case RunEnded():
                yield from self._ended(happening)

    def _speaker(self, happening: RunEvent) -> _Speaker | None:
        """Whose turn a call belongs to; several speak at once in a parallel team."""
        if not isinstance(happening, CallScheduled | CallEnded) or happening.run.first_run_id != self.run.first_run_id:
            return None
        match happening.call.request:
            case AskModelRequest() as request:
                return self.speakers.get(_place(request))
            case UseToolRequest(reply=str(reply)) if reply in self.asked_in:
                return self.speakers.get(self.asked_in[reply])
        return None

    def start_turn(self, member: str, number: int = 0, in_round: int = 0) -> Iterator[NamedEvent]:
        """A member's turn begins; events count turns from 0. Where nobody had to choose the member, it says so."""
        number = number or 1 + sum(not part for _, part in self.begun)
        if self.run.type == "selector" and not self.selected:
            yield "ParticipantSelected", {**self._about, "member": member, "reason": "only_candidate"}
        self.selected = False
        self.begun.add((number, ""))
        bound: JsonObject = {"maxTurns": self.max_turns}
        if in_round:
            bound = {"round": in_round, "maxRounds": self.max_rounds}
        yield "TeamTurn", {"type": "Start", **self._about, "turn": number - 1, **bound}

    @property
    def _about(self) -> JsonObject:
        run = self.run
        if run.kind == "team":
            return {"team": run.name, "namespace": run.namespace, "strategy": run.type}
        return {run.kind: run.name, "namespace": run.namespace}

    def _call_began(self, call: ActivityCall) -> Iterator[NamedEvent]:
        if call.activity_type == "pin" and self.run.kind == "query":
            yield "QueryStarted", self._about
        match call.request:
            case AskModelRequest() as request if self.run.kind == "team" and _place(request) not in self.begun:
                yield from self._agent_begins(call, request)
            case PerformRequest(name=name, brief=brief) if brief.seat is not None:
                yield from self.start_turn(name, in_round=brief.round)
        if call.activity_type in CALLS:
            shown = call.activity_type == "use_tool" and not call.hidden
            arguments: JsonObject = {"arguments": call.arguments} if shown else {}
            yield f"{CALLS[call.activity_type]}Started", {**call_data(call), **arguments}

    def _agent_begins(self, call: ActivityCall, request: AskModelRequest) -> Iterator[NamedEvent]:
        """An agent begins to speak, as a member or in another part of a panel."""
        place = _place(request)
        if not place[1]:
            yield from self.start_turn(call.agent, request.turn, call.brief.round if call.brief else 0)
        self.begun.add(place)
        names: JsonObject = {"agent": call.agent, "namespace": request.speaker.split("/")[1], "team": self.run.name}
        speaker = self.speakers[place] = _Speaker({**names, "turn": request.turn - 1, **round_data(call)}, place)
        yield "AgentExecutionStarted", speaker.about

    def _call_ended(self, ended: CallEnded) -> Iterator[NamedEvent]:
        call = ended.call
        if call.activity_type == "pin":
            yield from self._pinned(ended)
        if call.activity_type in CALLS:
            end = "Failed" if ended.failure else "Completed" if ended.reply else "Canceled"
            yield f"{CALLS[call.activity_type]}{end}", {**call_data(call), "attempts": ended.attempts, **reply_data(ended)}
        if isinstance(ended.reply, SelectResult):
            self.selected = True
            yield "ParticipantSelected", {**self._about, "member": ended.reply.member, "reason": ended.reply.how}
        if speaker := self._speaker(ended):
            yield from self._answered(speaker, ended)

    def _answered(self, speaker: _Speaker, ended: CallEnded) -> Iterator[NamedEvent]:
        """A member's turn is over with words that call for no tool, or with the answers to those that end its team."""
        call, reply, speaker.failure = ended.call, ended.reply, ended.failure
        match reply:
            case AskModelResult(message=message, head=head):
                speaker.unanswered = len(message.tool_calls)
                self.asked_in[head.id] = speaker.place
            case _ if isinstance(call.request, UseToolRequest):
                speaker.unanswered -= 1
        if isinstance(reply, UseToolResult) and reply.ends:
            speaker.ends = True
            self.ended_by, self.last_words = call.agent, reply.message.content
        if speaker.unanswered == 0 and (speaker.ends or (isinstance(reply, AskModelResult) and not reply.wrong)):
            yield self._fall_silent(speaker, "Completed")

    def _fall_silent(self, speaker: _Speaker, outcome: str, failure: Failure | None = None) -> NamedEvent:
        del self.speakers[speaker.place]
        return f"AgentExecution{outcome}", {**speaker.about, **failure_data(failure), **usage_data(speaker.usage)}

    def _pinned(self, ended: CallEnded) -> Iterator[NamedEvent]:
        """A run that was started from outside finds its context; a child run is given its own."""
        match ended.reply:
            case Pinned(plan=TeamPlan(max_turns=bound, panel=panel)):
                self.max_turns, self.max_rounds = bound, panel.max_rounds if panel else None
        if self.run.parent is None and ended.failure:
            yield "ContextLoadFailed", {**self._about, **failure_data(ended.failure)}
        elif self.run.parent is None and isinstance(ended.reply, Pinned):
            yield "ContextLoaded", {**self._about, "messages": ended.reply.thread.head.depth}

    def _ended(self, ended: RunEnded) -> Iterator[NamedEvent]:
        silent = [*self.speakers.values()]
        for speaker in silent:
            failure = ended.failure if len(silent) == 1 and not speaker.failure else speaker.failure
            yield self._fall_silent(speaker, "Failed" if failure else "Canceled", failure)
        if self.run.kind == "team" and ended.stop_reason == "max_turns":
            turn = len(self.begun) if ended.turns is None else ended.turns
            yield "TeamTurn", {"type": "MaxTurns", **self._about, "turn": turn, "maxTurns": self.max_turns}
        if self.run.kind == "team" and ended.stop_reason == "terminated":
            reason = ended.note if self.ended_by is None else self.last_words
            yield "TeamTerminated", {**self._about, "member": self.ended_by, "reason": reason}
        if self.run.kind in SUBJECTS:
            how = {"turns": ended.turns, "stopReason": ended.stop_reason, "note": ended.note}
            about = {**self._about, **how, **failure_data(ended.failure), **usage_data(self.usage)}
            yield f"{SUBJECTS[self.run.kind]}{ended.phase}", about


def _place(request: AskModelRequest) -> Place:
    brief = request.brief
    return request.turn, brief.part if brief and brief.seat is None else ""
