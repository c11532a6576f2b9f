"""Builds the events of one run from its run events: its start and end, its turns, and its calls."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...conversation.contracts.panel_requests import PerformRequest
from ...conversation.contracts.requests import AskModelRequest, AskModelResult, Pinned, SelectResult
from ...conversation.contracts.tool_requests import UseToolRequest, UseToolResult
from ...conversation.failure import Failure
from ...conversation.messages.message import TokenUsage
from ...resources.base import JsonObject
from .event_data import CALL_EVENTS, RUN_EVENTS, NamedEvent, ended_data, failure_data, started_data, usage_data
from .event_usage import is_deferred, token_usage
from .run_events import ActivityCall, CallEnded, CallScheduled, RunEnded, RunEvent, RunInfo, RunStarted
from .target_turn import TargetTurn
from .team_turns import TeamTurns

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
    started: set[TurnKey] = field(default_factory=set)
    selected: bool = False
    open_turns: dict[TurnKey, _AgentTurn] = field(default_factory=dict)
    turn_of_reply: dict[str, TurnKey] = field(default_factory=dict)
    ended_by: str | None = None
    end_message: str | None = None

    def __post_init__(self) -> None:
        self.team_turns, self.target_turn = TeamTurns(self.run), TargetTurn()

    def add_usage(self, event: RunEvent) -> None:
        """Adds the usage of an event of the run or of a child run."""
        usage = token_usage(event)
        self.usage += usage
        if turn := self._open_turn(event):
            turn.usage += usage

    def build(self, event: RunEvent) -> Iterator[NamedEvent]:
        """The events that stand for a run event of the run itself."""
        match event:
            case RunStarted(pinned=pinned) if self.run.kind in RUN_EVENTS:
                self._take_plan(pinned)
                yield f"{RUN_EVENTS[self.run.kind]}{'Received' if self.run.kind == 'query' else 'Started'}", self._data
            case CallScheduled(call=call):
                yield from self._call_started(call)
            case CallEnded():
                yield from self._call_ended(event)
            case RunEnded():
                yield from self._run_ended(event)

    def start_turn(self, member: str, kind: str, number: int = 0, in_round: int = 0) -> Iterator[NamedEvent]:
        """A member's turn starts. A selector's only candidate is selected here."""
        number = number or 1 + self.team_turns.started
        if self.run.type == "selector" and not self.selected:
            yield "ParticipantSelected", {**self._data, "member": member, "reason": "only_candidate"}
        self.selected = False
        yield from self.team_turns.start_member(member, kind, number, in_round)

    def end_child_turn(self, ended: RunEnded, number: int, usage: TokenUsage) -> Iterator[NamedEvent]:
        """The turn of a member that is a team is over with its run; in a panel without its number, it is the last."""
        yield from self.team_turns.end_member(number or self.team_turns.started, ended.phase, ended.failure, usage)

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
                yield from self.start_turn(name, "activity", in_round=brief.round)
        if call.activity_type in CALL_EVENTS:
            yield f"{CALL_EVENTS[call.activity_type]}Started", started_data(call, self.team_turns.place_of(call))

    def _agent_started(self, call: ActivityCall, request: AskModelRequest) -> Iterator[NamedEvent]:
        """An agent starts its turn, as a member or in another part of a panel."""
        key = _turn_key(request)
        if not key[1]:
            yield from self.start_turn(call.agent, "agent", request.turn, call.brief.round if call.brief else 0)
        else:
            yield from self.team_turns.end_all()
        self.started.add(key)
        names: JsonObject = {"agent": call.agent, "namespace": request.speaker.split("/")[1], "team": self.run.name}
        turn = self.open_turns[key] = _AgentTurn({**names, **self.team_turns.place_of(call)}, key)
        yield "AgentExecutionStarted", turn.data

    def _call_ended(self, ended: CallEnded) -> Iterator[NamedEvent]:
        call = ended.call
        if call.activity_type == "pin":
            yield from self._pinned(ended)
        if call.activity_type in CALL_EVENTS:
            failed = "Deferred" if is_deferred(ended) else "Failed"
            end = failed if ended.failure else "Completed" if ended.result else "Canceled"
            yield f"{CALL_EVENTS[call.activity_type]}{end}", ended_data(ended, self.team_turns.place_of(call))
        if isinstance(ended.result, SelectResult):
            self.selected = True
            yield "ParticipantSelected", {**self._data, "member": ended.result.member, "reason": ended.result.how}
        if isinstance(call.request, PerformRequest) and call.request.brief.seat is not None:
            usage = TokenUsage(tool_calls=1)
            yield from self.team_turns.end_member(self.team_turns.started, end, ended.failure, usage)
        if (turn := self._open_turn(ended)) and not is_deferred(ended):
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
        if turn.unanswered == 0 and (turn.ends_team or (isinstance(result, AskModelResult) and _is_answer(result))):
            yield from self._end_turn(turn, "Completed")

    def _end_turn(self, turn: _AgentTurn, end: str, failure: Failure | None = None) -> Iterator[NamedEvent]:
        del self.open_turns[turn.key]
        yield f"AgentExecution{end}", {**turn.data, **failure_data(failure), **usage_data(turn.usage)}
        if not turn.key[1]:
            yield from self.team_turns.end_member(turn.key[0], end, failure, turn.usage)

    def _take_plan(self, result: object) -> None:
        self.target_turn.take_plan(result)
        self.team_turns.take_plan(result)

    def _pinned(self, ended: CallEnded) -> Iterator[NamedEvent]:
        """The context of the run is loaded; only a root run has an event for it, since it passes it to its children."""
        self._take_plan(ended.result)
        if self.run.parent is None and ended.failure:
            yield "ContextLoadFailed", {**self._data, **failure_data(ended.failure)}
        elif self.run.parent is None and isinstance(ended.result, Pinned):
            yield "ContextLoaded", {**self._data, "messages": ended.result.thread.head.depth}
            yield from (("ToolsUnavailable", {**self._data, "notice": each}) for each in ended.result.notices)
            yield from self.target_turn.start()

    def _run_ended(self, ended: RunEnded) -> Iterator[NamedEvent]:
        turns = [*self.open_turns.values()]
        for turn in turns:
            failure = ended.failure if len(turns) == 1 and not turn.failure else turn.failure
            yield from self._end_turn(turn, "Failed" if failure else "Canceled", failure)
        yield from self.team_turns.end_all(ended)
        yield from self.target_turn.end(ended, self.usage)
        if self.run.kind == "team" and ended.stop_reason == "max_turns":
            yield self.team_turns.reach_limit(ended.turns)
        if self.run.kind == "team" and ended.stop_reason == "terminated":
            reason = ended.note if self.ended_by is None else self.end_message
            yield "TeamTerminated", {**self._data, "member": self.ended_by, "reason": reason}
        if self.run.kind in RUN_EVENTS:
            end = {"turns": ended.turns, "stopReason": ended.stop_reason, "note": ended.note}
            data = {**self._data, **end, **failure_data(ended.failure), **usage_data(self.usage)}
            yield f"{RUN_EVENTS[self.run.kind]}{ended.phase}", data


def _is_answer(result: AskModelResult) -> bool:
    """Whether an answer without tool calls ends the turn."""
    return not (result.wrong or result.question)


def _turn_key(request: AskModelRequest) -> TurnKey:
    brief = request.brief
    return request.turn, brief.part if brief and brief.seat is None else ""
