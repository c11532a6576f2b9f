"""Builds the events of one run from its run events: its start and end, its turns, and its calls."""

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
from .event_data import CALL_EVENTS, ended_data, failure_data, round_data, started_data, usage_data
from .run_events import ActivityCall, CallEnded, CallScheduled, RunEnded, RunEvent, RunInfo, RunStarted, token_usage

NamedEvent = tuple[str, JsonObject]
"""The name of an event, and its data."""

RUN_EVENTS = {
    "query": "Query",
    "team": "TeamExecution",
    "agent": "AgentExecution",
    "model": "ModelExecution",
    "tool": "ToolExecution",
}
"""The kinds of runs that have events, and how the names of these begin."""

TurnKey = tuple[int, str]
"""The number of a turn, and in a panel the part of the speaker if it is no member; else empty."""


@dataclass
class _AgentTurn:
    """An agent's turn that is not over; ``unanswered`` is the number of tool calls whose results are missing."""

    data: JsonObject
    key: TurnKey
    usage: TokenUsage = field(default_factory=TokenUsage)
    unanswered: int = 0
    ends_team: bool = False
    failure: Failure | None = None


@dataclass
class EventBuilder:
    """Builds the events of ``run``; keeps the turns that have started, and those of agents that are not over."""

    run: RunInfo
    usage: TokenUsage = field(default_factory=TokenUsage)
    max_turns: int | None = None
    max_rounds: int | None = None
    started: set[TurnKey] = field(default_factory=set)
    selected: bool = False
    open_turns: dict[TurnKey, _AgentTurn] = field(default_factory=dict)
    turn_of_reply: dict[str, TurnKey] = field(default_factory=dict)
    ended_by: str | None = None
    end_message: str | None = None

    def add_usage(self, event: RunEvent) -> None:
        """Adds the usage of an event of the run or of a child run."""
        usage = token_usage(event)
        self.usage += usage
        if turn := self._open_turn(event):
            turn.usage += usage

    def build(self, event: RunEvent) -> Iterator[NamedEvent]:
        """The events that stand for a run event of the run itself."""
        match event:
            case RunStarted() if self.run.kind in RUN_EVENTS:
                yield f"{RUN_EVENTS[self.run.kind]}{'Received' if self.run.kind == 'query' else 'Started'}", self._data
            case CallScheduled(call=call):
                yield from self._call_started(call)
            case CallEnded():
                yield from self._call_ended(event)
            case RunEnded():
                yield from self._run_ended(event)

    def start_turn(self, member: str, number: int = 0, in_round: int = 0) -> Iterator[NamedEvent]:
        """A member's turn starts; events count turns from 0. A selector's only candidate is selected here."""
        number = number or 1 + sum(not part for _, part in self.started)
        if self.run.type == "selector" and not self.selected:
            yield "ParticipantSelected", {**self._data, "member": member, "reason": "only_candidate"}
        self.selected = False
        self.started.add((number, ""))
        bound: JsonObject = {"maxTurns": self.max_turns}
        if in_round:
            bound = {"round": in_round, "maxRounds": self.max_rounds}
        yield "TeamTurn", {"type": "Start", **self._data, "turn": number - 1, **bound}

    @property
    def _data(self) -> JsonObject:
        """The data that all events of the run itself have."""
        run = self.run
        if run.kind == "team":
            return {"team": run.name, "namespace": run.namespace, "strategy": run.type}
        return {run.kind: run.name, "namespace": run.namespace}

    def _open_turn(self, event: RunEvent) -> _AgentTurn | None:
        """The open turn to which a call belongs; in a parallel team, several are open at a time."""
        if not isinstance(event, CallScheduled | CallEnded) or event.run.first_run_id != self.run.first_run_id:
            return None
        match event.call.request:
            case AskModelRequest() as request:
                return self.open_turns.get(_turn_key(request))
            case UseToolRequest(reply=str(reply)) if reply in self.turn_of_reply:
                return self.open_turns.get(self.turn_of_reply[reply])
        return None

    def _call_started(self, call: ActivityCall) -> Iterator[NamedEvent]:
        if call.activity_type == "pin" and self.run.kind == "query":
            yield "QueryStarted", self._data
        match call.request:
            case AskModelRequest() as request if self.run.kind == "team" and _turn_key(request) not in self.started:
                yield from self._agent_started(call, request)
            case PerformRequest(name=name, brief=brief) if brief.seat is not None:
                yield from self.start_turn(name, in_round=brief.round)
        if call.activity_type in CALL_EVENTS:
            yield f"{CALL_EVENTS[call.activity_type]}Started", started_data(call)

    def _agent_started(self, call: ActivityCall, request: AskModelRequest) -> Iterator[NamedEvent]:
        """An agent starts its turn, as a member or in another part of a panel."""
        key = _turn_key(request)
        if not key[1]:
            yield from self.start_turn(call.agent, request.turn, call.brief.round if call.brief else 0)
        self.started.add(key)
        names: JsonObject = {"agent": call.agent, "namespace": request.speaker.split("/")[1], "team": self.run.name}
        turn = self.open_turns[key] = _AgentTurn({**names, "turn": request.turn - 1, **round_data(call)}, key)
        yield "AgentExecutionStarted", turn.data

    def _call_ended(self, ended: CallEnded) -> Iterator[NamedEvent]:
        call = ended.call
        if call.activity_type == "pin":
            yield from self._pinned(ended)
        if call.activity_type in CALL_EVENTS:
            end = "Failed" if ended.failure else "Completed" if ended.result else "Canceled"
            yield f"{CALL_EVENTS[call.activity_type]}{end}", ended_data(ended)
        if isinstance(ended.result, SelectResult):
            self.selected = True
            yield "ParticipantSelected", {**self._data, "member": ended.result.member, "reason": ended.result.how}
        if turn := self._open_turn(ended):
            yield from self._go_on(turn, ended)

    def _go_on(self, turn: _AgentTurn, ended: CallEnded) -> Iterator[NamedEvent]:
        """A turn ends with an answer without tool calls, or with the results of tool calls that end the team."""
        result, turn.failure = ended.result, ended.failure
        if isinstance(result, AskModelResult):
            turn.unanswered = len(result.message.tool_calls)
            self.turn_of_reply[result.head.id] = turn.key
        elif isinstance(ended.call.request, UseToolRequest):
            turn.unanswered -= 1
        if isinstance(result, UseToolResult) and result.ends:
            turn.ends_team = True
            self.ended_by, self.end_message = ended.call.agent, result.message.content
        if turn.unanswered == 0 and (turn.ends_team or (isinstance(result, AskModelResult) and not result.wrong)):
            yield self._end_turn(turn, "Completed")

    def _end_turn(self, turn: _AgentTurn, end: str, failure: Failure | None = None) -> NamedEvent:
        del self.open_turns[turn.key]
        return f"AgentExecution{end}", {**turn.data, **failure_data(failure), **usage_data(turn.usage)}

    def _pinned(self, ended: CallEnded) -> Iterator[NamedEvent]:
        """The context of the run is loaded; only a root run has an event for it, since it passes it to its children."""
        match ended.result:
            case Pinned(plan=TeamPlan(max_turns=max_turns, panel=panel)):
                self.max_turns, self.max_rounds = max_turns, panel.max_rounds if panel else None
        if self.run.parent is None and ended.failure:
            yield "ContextLoadFailed", {**self._data, **failure_data(ended.failure)}
        elif self.run.parent is None and isinstance(ended.result, Pinned):
            yield "ContextLoaded", {**self._data, "messages": ended.result.thread.head.depth}

    def _run_ended(self, ended: RunEnded) -> Iterator[NamedEvent]:
        turns = [*self.open_turns.values()]
        for turn in turns:
            failure = ended.failure if len(turns) == 1 and not turn.failure else turn.failure
            yield self._end_turn(turn, "Failed" if failure else "Canceled", failure)
        if self.run.kind == "team" and ended.stop_reason == "max_turns":
            number = len(self.started) if ended.turns is None else ended.turns
            yield "TeamTurn", {"type": "MaxTurns", **self._data, "turn": number, "maxTurns": self.max_turns}
        if self.run.kind == "team" and ended.stop_reason == "terminated":
            reason = ended.note if self.ended_by is None else self.end_message
            yield "TeamTerminated", {**self._data, "member": self.ended_by, "reason": reason}
        if self.run.kind in RUN_EVENTS:
            end = {"turns": ended.turns, "stopReason": ended.stop_reason, "note": ended.note}
            data = {**self._data, **end, **failure_data(ended.failure), **usage_data(self.usage)}
            yield f"{RUN_EVENTS[self.run.kind]}{ended.phase}", data


def _turn_key(request: AskModelRequest) -> TurnKey:
    brief = request.brief
    return request.turn, brief.part if brief and brief.seat is None else ""
