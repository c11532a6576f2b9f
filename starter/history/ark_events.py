"""The events of a run and its child runs, with ARK's names (ARK: queries)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import JsonValue

from ...contracts.errors import Failure
from ...contracts.inputs import FailedRun
from ...contracts.message import TokenUsage
from ...contracts.panel import PerformRequest, PerformResult
from ...contracts.plan import QueryPlan, TargetPlan, TeamPlan
from ...contracts.requests import (
    AskModelRequest,
    AskModelResult,
    Pinned,
    RecallRequest,
    RecallResult,
    RememberRequest,
    SelectRequest,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...contracts.text import format_time
from ...contracts.turn import Thread
from ...resources.base import JsonObject
from ...resources.strategies import STRATEGIES
from ..text import assignments
from .run_events import (
    PINNING,
    ActivityCall,
    CallEnded,
    CallScheduled,
    DecisionMade,
    DecisionRequested,
    RequestKind,
    RequestReceived,
    RunEnded,
    RunEvent,
    RunInfo,
    RunStarted,
    is_deferred,
    may_be_repeated,
    token_usage,
)

NamedEvent = tuple[str, JsonObject]
"""The name of an event, and its data."""

RUN_EVENTS = {
    "query": "Query",
    "team": "TeamExecution",
    "agent": "AgentExecution",
    "model": "ModelExecution",
    "tool": "ToolExecution",
}
"""The kinds of runs that have events, and the prefixes of the events' names."""

CALL_EVENTS = {
    "ask_model": "LLMCall",
    "execute_agent": "ExecutorCall",
    "use_tool": "ToolCall",
    "select": "SelectorCall",
    "perform": "FunctionCall",
    "recall": "MemoryGetMessages",
    "remember": "MemoryAddMessages",
}
"""The activity types whose calls have events, and the prefixes of the events' names, as in ``LLMCallStarted``."""


_REQUEST_EVENTS: dict[RequestKind, str] = {
    "pause": "PauseRequested",
    "resume": "ResumeRequested",
    "steer": "MessageReceived",
    "session": "SessionChanged",
    "terminate_team": "TerminationRequested",
    "cancel": "CancellationRequested",
}
"""The names of the events of clients' requests. Their data are the sender (``by``) and the request's own data."""


def decision_event(event: DecisionRequested | DecisionMade) -> NamedEvent:
    """The event of a pending decision, or of its outcome: by whom, how, and with which arguments."""
    pending = event.pending if isinstance(event, DecisionMade) else event
    if pending.kind == "question":
        return _question_event(event, pending)
    if pending.kind == "budget":
        return _budget_event(event, pending)
    about: JsonObject = {"call": pending.id, "agent": pending.call.agent or None, "tool": pending.call.name}
    shown = not pending.call.hidden
    if pending.kind == "client_tool":
        if isinstance(event, DecisionRequested):
            return "ToolResultRequested", {**about, "arguments": pending.arguments if shown else None}
        return "ToolResultGiven", {**about, "by": event.decision.by, "at": format_time(event.decision.at)}
    if isinstance(event, DecisionRequested):
        return "ApprovalRequested", {**about, "arguments": pending.arguments if shown else None}
    decision = event.decision
    return "CallApproved" if decision.approved else "CallRejected", {
        **about,
        "by": decision.by,
        "how": decision.how,
        "at": format_time(decision.at),
        "reason": decision.reason or None,
        "arguments": decision.arguments if shown else None,
    }


def _budget_event(event: DecisionRequested | DecisionMade, pending: DecisionRequested) -> NamedEvent:
    about: JsonObject = {"budget": pending.who, "call": pending.call.id}
    if isinstance(event, DecisionRequested):
        return "GrantRequested", {**about, "text": pending.arguments}
    decision = event.decision
    return "GrantApproved" if decision.approved else "GrantRejected", {
        **about,
        "by": decision.by,
        "at": format_time(decision.at),
        "reason": decision.reason or None,
        "more": decision.arguments if decision.approved else None,
    }


def _question_event(event: DecisionRequested | DecisionMade, pending: DecisionRequested) -> NamedEvent:
    about: JsonObject = {"question": pending.id, "member": pending.who}
    if isinstance(event, DecisionRequested):
        return "ReplyRequested", {**about, "text": None if pending.call.hidden else pending.arguments}
    if event.decision.how == "timeout":
        return "ReplyMissed", {**about, "at": format_time(event.decision.at)}
    return "ReplyGiven", {**about, "by": event.decision.by, "at": format_time(event.decision.at)}


def started_data(call: ActivityCall, place: JsonObject) -> JsonObject:
    """The data of the event for a started call, in the turn ``place``; with the arguments of a tool."""
    data = _call_data(call, place)
    if call.activity_type == "use_tool" and not call.hidden:
        data["arguments"] = call.arguments
    return data


def ended_data(ended: CallEnded, place: JsonObject) -> JsonObject:
    """The data of the event for an ended call: attempts, result or error, and usage."""
    return {**_call_data(ended.call, place), "attempts": ended.attempts, **_result_data(ended)}


def failure_data(failure: Failure | None) -> JsonObject:
    """The error, and the member and the target that failed."""
    if failure is None:
        return {}
    error: JsonObject = {"error": failure.message, "errorType": failure.type, "wait": failure.wait}
    return {**error, "member": failure.member, "target": failure.target}


def usage_data(usage: TokenUsage) -> JsonObject:
    """The token usage."""
    return {"tokenUsage": usage.model_dump(mode="json")}


def _call_data(call: ActivityCall, place: JsonObject) -> JsonObject:
    """The caller, the turn, and the called model, tool or function."""
    caller: JsonObject = {"call": call.id}
    if call.agent:
        caller["agent"] = call.agent
    match call.request:
        case AskModelRequest():
            callee = "engine" if call.activity_type == "execute_agent" else "model"
            return {**caller, **place, callee: call.name}
        case SelectRequest():
            return {**caller, **place, "model": call.name}
        case RecallRequest(conversation=plan) | RememberRequest(conversation=plan):
            return {**caller, "memory": plan.memory or None, "conversation": plan.id}
        case PerformRequest(name=name):
            return {**caller, "member": name, **place, "function": call.name}
    return {**caller, **place, "tool": call.name}


def _result_data(ended: CallEnded) -> JsonObject:
    """The result or the error of a call; without content if the call is hidden."""
    match ended.result:
        case AskModelResult(message=message, wrong=wrong):
            usage = usage_data(token_usage(ended))
            if ended.call.hidden:
                return usage
            names: list[JsonValue] = [tool_call.name for tool_call in message.tool_calls]
            return {"content": message.content, "toolCalls": names or None, "wrong": wrong, **usage}
        case UseToolResult(message=message) | PerformResult(message=message):
            return {} if ended.call.hidden else {"content": message.content}
        case SelectResult():
            return usage_data(token_usage(ended))
    return failure_data(ended.failure)


TURN_CALLS = ("ask_model", "execute_agent", "review", "use_tool", "delegate", "check_arguments")
"""The activity types that start the turn of a query's only target."""


@dataclass
class TargetTurn:
    """The turn of a query's only target; ``target`` is None if there is no such turn."""

    target: TargetPlan | None = None
    has_begun: bool = False

    def start(self) -> Iterator[NamedEvent]:
        """The event for the start of the turn, with its first call: a query may fail or be stopped before it."""
        if self.target and not self.has_begun:
            self.has_begun = True
            yield f"{RUN_EVENTS[self.target.type]}Started", self._data(self.target)

    def end(self, ended: RunEnded, usage: TokenUsage) -> Iterator[NamedEvent]:
        """The event for the end of the turn, together with the query."""
        if self.target and self.has_begun:
            data = {
                **self._data(self.target),
                "stopReason": ended.stop_reason,
                "note": ended.note,
                **failure_data(ended.failure),
                **usage_data(usage),
            }
            yield f"{RUN_EVENTS[self.target.type]}{ended.phase}", data

    @staticmethod
    def _data(target: TargetPlan) -> JsonObject:
        return {target.type: target.name, "namespace": target.namespace}


ROUND_STRATEGIES = [name for name, rules in STRATEGIES.items() if rules.turn_unit == "round"]
"""The strategies in which a turn of the team is a round of all its members; in others it is a turn of one member."""


@dataclass
class _OpenTurn:
    """An open turn of the team: its members in the order of their start, and their usage."""

    data: JsonObject
    members: list[str] = field(default_factory=list)
    ended: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass
class TeamTurns:
    """The turns of the team of ``run``. Members' turns are numbered from 1; events count turns from 0."""

    run: RunInfo
    plan: TeamPlan | None = None
    started: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)
    """Of members' turns that have failed, unless their call is repeated."""
    _turns: dict[int, _OpenTurn] = field(default_factory=dict)
    _members: dict[int, tuple[int, JsonObject]] = field(default_factory=dict)

    def place_of(self, call: ActivityCall) -> JsonObject:
        """The turn of the team in which a call is made; in panels also the round, and the role of a non-member."""
        match call.brief, call.request:
            case None, AskModelRequest(turn=number) | SelectRequest(turn=number):
                return self.place(number)
            case None, _:
                return {}
            case brief, _:
                place = self.place(0, brief.round)
                return {**place, "part": brief.part} if brief.member_index is None else place

    def place(self, number: int, in_round: int = 0) -> JsonObject:
        """The turn of the team that contains the ``number``-th turn of a member; a panel passes the round."""
        if in_round:
            return {"turn": in_round - 1, "round": in_round}
        return {"turn": (number - 1) // self._members_per_turn}

    def start_member(self, member: str, kind: str, number: int, in_round: int) -> Iterator[NamedEvent]:
        """The events for the start of a member's turn, and of the team's turn if it begins as well."""
        if self.run.type != "parallel":
            for failed, failure in [*self.failures.items()]:
                yield from self.end_member(failed, "Failed", failure)
        place = self.place(number, in_round)
        turn = in_round or 1 + (number - 1) // self._members_per_turn
        if turn not in self._turns:
            if self._in_rounds:
                yield from self.end_all()
            self._turns[turn] = _OpenTurn({**self._data, **place, **self._bound})
            yield "TeamTurn", {"type": "Start", **self._turns[turn].data}
        self.started = max(self.started, number)
        self._turns[turn].members.append(member)
        data: JsonObject = {**self._data, "member": member, "memberType": kind, **place}
        self._members[number] = turn, data
        yield "TeamMemberStarted", data

    def end_member(
        self, number: int, end: str, failure: Failure | None = None, usage: TokenUsage | None = None
    ) -> Iterator[NamedEvent]:
        """The events for the end of a member's turn, and of the team's turn if it ends as well.

        ``end`` is the suffix of the name, as in ``TeamMemberFailed``.
        """
        if number not in self._members:
            return
        key, data = self._members.pop(number)
        self.failures.pop(number, None)
        usage = usage or TokenUsage()
        turn = self._turns[key]
        turn.ended += 1
        turn.usage += usage
        yield f"TeamMember{end}", {**data, **_error(failure), **usage_data(usage)}
        if not self._in_rounds or (end == "Completed" and turn.ended == self._members_in_round):
            yield self._end(key, end, failure)

    def end_all(self, run_ended: RunEnded | None = None) -> Iterator[NamedEvent]:
        """Ends all open turns of the team: with the run, or because another role speaks."""
        failure = run_ended.failure if run_ended and run_ended.stop_reason != "max_turns" else None
        end = "Failed" if failure else "Canceled" if run_ended and run_ended.phase == "Canceled" else "Completed"
        for number in [*self._members]:
            own = self.failures.get(number) or failure
            yield from self.end_member(number, "Failed" if own else "Canceled", own)
        for key in [*self._turns]:
            yield self._end(key, end, failure)

    def reach_limit(self, turns: int | None) -> NamedEvent:
        """The event that ``maxTurns`` was reached, after so many turns of members."""
        count = (self.started if turns is None else turns) // self._members_per_turn
        return "TeamTurn", {"type": "MaxTurns", **self._data, "turn": count, **self._bound}

    def _end(self, key: int, end: str, failure: Failure | None) -> NamedEvent:
        turn = self._turns.pop(key)
        members: list[JsonValue] = [*turn.members]
        data = {**turn.data, "members": members, **failure_data(failure), **usage_data(turn.usage)}
        return "TeamTurn", {"type": end, **data}

    @property
    def _data(self) -> JsonObject:
        return {"team": self.run.name, "namespace": self.run.namespace, "strategy": self.run.type}

    @property
    def _bound(self) -> JsonObject:
        if self.plan and self.plan.panel:
            return {"maxRounds": self.plan.panel.max_rounds}
        return {"maxTurns": self.plan.max_turns if self.plan else None}

    @property
    def _in_rounds(self) -> bool:
        return self.run.type in ROUND_STRATEGIES

    @property
    def _members_per_turn(self) -> int:
        return len(self.plan.members) if self.plan and self._in_rounds else 1

    @property
    def _members_in_round(self) -> int | None:
        """The number of members that speak in a round; None if a moderator decides."""
        panel = self.plan.panel if self.plan else None
        return None if panel and "moderator" in panel.parts else self._members_per_turn


def _error(failure: Failure | None) -> JsonObject:
    return {"error": failure.message, "errorType": failure.type} if failure else {}


TurnKey = tuple[int, str]
"""The number of a turn, and the role of the speaker if it is not a member of the panel, or an empty text."""


@dataclass
class _AgentTurn:
    """An open turn of an agent; ``unanswered`` is the number of tool calls without a result."""

    data: JsonObject
    key: TurnKey
    usage: TokenUsage = field(default_factory=TokenUsage)
    unanswered: int = 0
    is_over: bool = False
    failure: Failure | None = None


@dataclass
class EventBuilder:
    """Builds the events of ``run``; tracks the started turns, and the open turns of agents."""

    run: RunInfo
    usage: TokenUsage = field(default_factory=TokenUsage)
    started: set[TurnKey] = field(default_factory=set)
    selected: bool = False
    open_turns: dict[TurnKey, _AgentTurn] = field(default_factory=dict)
    turn_of_reply: dict[str, TurnKey] = field(default_factory=dict)
    function_turns: dict[str, int] = field(default_factory=dict)
    ended_by: str | None = None
    end_message: str | None = None

    def __post_init__(self) -> None:
        self.team_turns = TeamTurns(self.run)
        self.target_turn = TargetTurn()

    def add_usage(self, event: RunEvent) -> None:
        """Adds the usage of an event of the run or of a child run."""
        usage = token_usage(event)
        self.usage += usage
        if turn := self._open_turn(event):
            turn.usage += usage

    def build(self, event: RunEvent) -> Iterator[NamedEvent]:
        """The events for a run event of the run itself."""
        match event:
            case RunStarted(pinned=pinned) if self.run.kind in RUN_EVENTS:
                self._take_plan(pinned)
                beginning = "Received" if self.run.kind == "query" else "Started"
                yield f"{RUN_EVENTS[self.run.kind]}{beginning}", self._data
            case CallScheduled(call=call):
                yield from self._call_started(call)
            case CallEnded():
                yield from self._call_ended(event)
            case RunEnded():
                yield from self._run_ended(event)

    def start_turn(self, member: str, kind: str, number: int = 0, in_round: int = 0) -> Iterator[NamedEvent]:
        """The events for the start of a member's turn. A selector's only candidate is selected here."""
        number = number or 1 + self.team_turns.started
        if self.run.type == "selector" and not self.selected:
            yield "ParticipantSelected", {**self._data, "member": member, "reason": "only_candidate"}
        self.selected = False
        yield from self.team_turns.start_member(member, kind, number, in_round)

    def end_child_turn(self, ended: RunEnded, number: int, usage: TokenUsage) -> Iterator[NamedEvent]:
        """The events for the end of a nested team's turn, together with its run; 0 is the latest turn of a panel."""
        yield from self.team_turns.end_member(number or self.team_turns.started, ended.phase, ended.failure, usage)

    def ended_by_member(self, member: "EventBuilder") -> None:
        """The team is ended if a member has ended it in a run of its own."""
        self.ended_by = member.ended_by or self.ended_by
        self.end_message = member.end_message or self.end_message

    @property
    def _data(self) -> JsonObject:
        """The data of all events of the run itself."""
        run = self.run
        if run.kind == "team":
            return {"team": run.name, "namespace": run.namespace, "strategy": run.type}
        resource: JsonObject = {run.kind: run.name, "namespace": run.namespace}
        return {**resource, "team": run.team.name, "turn": run.turn - 1} if run.team else resource

    def _open_turn(self, event: RunEvent) -> _AgentTurn | None:
        """The open turn to which a call belongs; a parallel team has several open turns."""
        if not isinstance(event, CallScheduled | CallEnded) or event.run.first_run_id != self.run.first_run_id:
            return None
        match event.call.request:
            case AskModelRequest() as request:
                return self.open_turns.get(_turn_key(request))
            case UseToolRequest(reply=str(reply)) if reply in self.turn_of_reply:
                return self.open_turns.get(self.turn_of_reply[reply])
        return None

    def _call_started(self, call: ActivityCall) -> Iterator[NamedEvent]:
        if call.activity_type in PINNING and self.run.kind == "query":
            yield "QueryStarted", self._data
        if call.activity_type in TURN_CALLS:
            yield from self.target_turn.start()
        match call.request:
            case AskModelRequest() as request if self.run.kind == "team" and _turn_key(request) not in self.started:
                yield from self._agent_started(call, request)
            case PerformRequest() as request if call.id not in self.function_turns:
                yield from self._function_started(call, request)
        if call.activity_type in CALL_EVENTS:
            yield f"{CALL_EVENTS[call.activity_type]}Started", started_data(call, self.team_turns.place_of(call))

    def _function_started(self, call: ActivityCall, request: PerformRequest) -> Iterator[NamedEvent]:
        """The events for the start of a function's turn as a member; a call that is repeated continues it."""
        if request.turn is None and request.brief.member_index is None:
            return
        number = request.turn or 1 + self.team_turns.started
        self.function_turns[call.id] = number
        yield from self.start_turn(request.name, "activity", number, 0 if request.turn else request.brief.round)

    def _agent_started(self, call: ActivityCall, request: AskModelRequest) -> Iterator[NamedEvent]:
        """The events for the start of an agent's turn, as a member or in another role of a panel."""
        key = _turn_key(request)
        if not key[1]:
            yield from self.start_turn(call.agent, "agent", request.turn, call.brief.round if call.brief else 0)
        else:
            yield from self.team_turns.end_all()
        self.started.add(key)
        data: JsonObject = {
            "agent": call.agent,
            "namespace": request.speaker.split("/")[1],
            "team": self.run.name,
            **self.team_turns.place_of(call),
        }
        self.open_turns[key] = _AgentTurn(data, key)
        yield "AgentExecutionStarted", data

    def _call_ended(self, ended: CallEnded) -> Iterator[NamedEvent]:
        call = ended.call
        if call.activity_type in PINNING:
            yield from self._pinned(ended)
        if call.activity_type in CALL_EVENTS:
            if is_deferred(ended):
                end = "Deferred"
            elif ended.failure:
                end = "Failed"
            else:
                end = "Completed" if ended.result else "Canceled"
            yield f"{CALL_EVENTS[call.activity_type]}{end}", ended_data(ended, self.team_turns.place_of(call))
        self._record_end(ended)
        if isinstance(ended.result, RecallResult):
            yield self._context_loaded(ended.result.thread)
        elif call.activity_type == "recall":
            yield "ContextLoadFailed", {**self._data, **failure_data(ended.failure)}
        yield from self._selected(ended.result)
        if number := self.function_turns.get(call.id):
            usage = TokenUsage(tool_calls=1)
            if ended.failure and may_be_repeated(ended, self.team_turns.plan):
                self.team_turns.failures[number] = ended.failure
            else:
                del self.function_turns[call.id]
                yield from self.team_turns.end_member(number, end, ended.failure, usage)
        if (turn := self._open_turn(ended)) and not is_deferred(ended):
            yield from self._continue_turn(turn, ended)

    def _selected(self, result: object) -> Iterator[NamedEvent]:
        """The event for the choice of the next member, by a selector or by a transfer of the conversation."""
        if isinstance(result, SelectResult):
            self.selected = True
            yield "ParticipantSelected", {**self._data, "member": result.member, "reason": result.how}
        if isinstance(result, UseToolResult) and (handoff := result.message.handoff):
            yield "ParticipantSelected", {**self._data, "member": handoff.member, "reason": "handoff"}

    def _record_end(self, ended: CallEnded) -> None:
        """Records who has ended the team, or the agent's turn, by a tool."""
        if isinstance(ended.result, UseToolResult) and ended.result.ends:
            self.ended_by = ended.call.agent
            self.end_message = ended.result.message.content

    def _continue_turn(self, turn: _AgentTurn, ended: CallEnded) -> Iterator[NamedEvent]:
        """Updates a turn, which ends with an answer without tool calls, or with the results of calls that end it."""
        result = ended.result
        turn.failure = ended.failure
        if isinstance(result, AskModelResult):
            turn.unanswered = len(result.message.tool_calls)
            self.turn_of_reply[result.head.id] = turn.key
        elif isinstance(ended.call.request, UseToolRequest):
            turn.unanswered -= 1
        if isinstance(result, UseToolResult) and (result.ends or result.message.handoff):
            turn.is_over = True
        is_answer = isinstance(result, AskModelResult) and not (result.wrong or result.question)
        if turn.unanswered == 0 and (turn.is_over or is_answer):
            yield from self._end_turn(turn, "Completed")

    def _end_turn(self, turn: _AgentTurn, end: str, failure: Failure | None = None) -> Iterator[NamedEvent]:
        del self.open_turns[turn.key]
        yield f"AgentExecution{end}", {**turn.data, **failure_data(failure), **usage_data(turn.usage)}
        if not turn.key[1]:
            yield from self.team_turns.end_member(turn.key[0], end, failure, turn.usage)

    def _take_plan(self, result: object) -> None:
        match result:
            case FailedRun(pinned=pinned):
                self._take_plan(pinned)
            case Pinned(plan=QueryPlan(targets=(TargetPlan() as target,))) if target.turn:
                self.target_turn.target = target
            case Pinned(plan=TeamPlan() as plan):
                self.team_turns.plan = plan

    def _pinned(self, ended: CallEnded) -> Iterator[NamedEvent]:
        """The events for a pinned run; only a root run has them, as it passes the context to its children.

        A conversation that the service of a Memory stores is read after that, by ``recall``.
        """
        self._take_plan(ended.result)
        if self.run.parent is None and ended.failure:
            yield "ContextLoadFailed", {**self._data, **failure_data(ended.failure)}
        elif self.run.parent is None and isinstance(ended.result, Pinned):
            plan = ended.result.plan
            if not (isinstance(plan, QueryPlan) and plan.conversation and plan.conversation.remote):
                yield self._context_loaded(ended.result.thread)
            for notice in ended.result.notices:
                yield "ToolsUnavailable", {**self._data, "notice": notice}

    def _context_loaded(self, thread: Thread) -> NamedEvent:
        return "ContextLoaded", {**self._data, "messages": thread.head.depth}

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
            data = {
                **self._data,
                "turns": ended.turns,
                "stopReason": ended.stop_reason,
                "note": ended.note,
                **failure_data(ended.failure),
                **usage_data(self.usage),
            }
            yield f"{RUN_EVENTS[self.run.kind]}{ended.phase}", data


def _turn_key(request: AskModelRequest) -> TurnKey:
    brief = request.brief
    return request.turn, brief.part if brief and brief.member_index is None else ""


HIDDEN_IN_LINES = ("namespace", "tokenUsage")
"""Data that are only in an event's JSON."""


@dataclass(frozen=True)
class ArkEvent:
    """An event: its time, its name, the id of its run, and its data, which depend on the name."""

    time: datetime
    name: str
    run: str
    data: JsonObject

    @property
    def value(self) -> JsonObject:
        """The event as JSON."""
        time = self.time.isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {"time": time, "event": self.name, "run": self.run, **self.data}

    @property
    def line(self) -> str:
        """The event as a line of text."""
        time, name, *_ = self.value.values()
        data = {key: value for key, value in self.data.items() if key not in HIDDEN_IN_LINES}
        usage = self.data.get("tokenUsage")
        if isinstance(usage, dict):
            data["tokens"] = usage["totalTokens"]
        return f"{time}  {name:<23} {assignments(data)}"


class EventRecorder:
    """Builds the events of a run and its child runs from run events, which are recorded in order."""

    def __init__(self) -> None:
        self._builders: dict[str, EventBuilder] = {}

    def record(self, event: RunEvent) -> Iterator[ArkEvent]:
        """The events of a run event."""
        run = event.run
        if isinstance(event, RequestReceived):
            name, data = _REQUEST_EVENTS[event.kind], {"by": event.by, **event.data}
            yield from _events(event, run, iter([(name, data)]))
            return
        if isinstance(event, DecisionRequested | DecisionMade):
            yield from _events(event, run, iter([decision_event(event)]))
            return
        builder = self._builders.get(run.first_run_id)
        if builder is None or isinstance(event, RunStarted):
            builder = self._builders[run.first_run_id] = EventBuilder(run)
            yield from self._child_started(run, event)
        above: RunInfo | None = run
        while above and above.first_run_id in self._builders:
            self._builders[above.first_run_id].add_usage(event)
            above = above.parent
        yield from _events(event, run, builder.build(event))
        if isinstance(event, RunEnded):
            yield from self._child_ended(run, event, builder.usage)

    def _child_started(self, run: RunInfo, event: RunEvent) -> Iterator[ArkEvent]:
        """The events for the start of a turn that is a child run."""
        team = self._team_above(run)
        if team and (run.turn or run.round):
            yield from _events(event, team.run, team.start_turn(run.name, run.kind, run.turn, run.round))

    def _child_ended(self, run: RunInfo, event: RunEnded, usage: TokenUsage) -> Iterator[ArkEvent]:
        """The events for the end of a turn that is a child run."""
        team = self._team_above(run)
        if team and (run.turn or run.round):
            yield from _events(event, team.run, team.end_child_turn(event, run.turn, usage))
        if team and run.team not in (None, run):
            team.ended_by_member(self._builders[run.first_run_id])

    def _team_above(self, run: RunInfo) -> EventBuilder | None:
        return self._builders.get(run.parent.first_run_id) if run.parent else None


def _events(event: RunEvent, run: RunInfo, named_events: Iterator[NamedEvent]) -> Iterator[ArkEvent]:
    """The events of a run, at the time of a run event, without empty data."""
    for name, data in named_events:
        yield ArkEvent(event.at, name, run.id, {key: value for key, value in data.items() if value is not None})
