"""Makes the events of one run, which clients receive, from its run events."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NotRequired, TypedDict

from ...contracts.decisions import AskPersonRequest
from ...contracts.errors import Failure
from ...contracts.inputs import FailedRun, ForkedRun
from ...contracts.message import PersonDecision, TokenUsage
from ...contracts.panel import PerformRequest, PerformResult, SpeakerBrief
from ...contracts.plan import TeamPlan
from ...contracts.requests import (
    AskModelRequest,
    AskModelResult,
    EvaluateRequest,
    EvaluateResult,
    Pinned,
    RecallRequest,
    RememberRequest,
    SelectRequest,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...resources.approval import who_decides
from ...resources.tool import OWN_ACTIVITIES
from .decoder import is_from_person
from .events import (
    CalledTool,
    ConditionsEvaluatedEvent,
    Event,
    HandoffEvent,
    MemoryReadEvent,
    MemoryWrittenEvent,
    MessageEvent,
    ModelAnsweredEvent,
    ModelCalledEvent,
    ModelFailedEvent,
    NoticeEvent,
    RoundEndedEvent,
    RoundStartedEvent,
    RunEndedEvent,
    RunForkedEvent,
    RunResetEvent,
    RunRetriedEvent,
    RunStartedEvent,
    SelectionKind,
    SessionChangedEvent,
    SpeakerSelectedEvent,
    SteeredEvent,
    StopRequestedEvent,
    ToolCalledEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
    WaitEndedEvent,
    WaitKind,
    WaitStartedEvent,
)
from .run_events import (
    ActivityCall,
    CallEnded,
    CallScheduled,
    ChildEnded,
    ChildStarted,
    DecisionMade,
    DecisionRequested,
    RequestReceived,
    RunContinued,
    RunEnded,
    RunEvent,
    RunInfo,
    RunReset,
    RunStarted,
    may_be_repeated,
    token_usage,
)

TurnKind = Literal["agent", "model", "team", "function", "human"]
TurnOutcome = Literal["completed", "failed", "canceled"]


class _Base(TypedDict):
    """The fields of all events."""

    run: str
    team: str | None
    at: datetime


class _Error(TypedDict):
    """The fields of a failure."""

    error: NotRequired[str]
    error_type: NotRequired[str]


class _Callee(TypedDict):
    """The fields of a tool call."""

    call: str
    tool_call: str | None
    speaker: str
    tool: str


@dataclass
class _Turn:
    """An open turn; ``unanswered`` is the number of tool calls without a result."""

    started: TurnStartedEvent
    usage: TokenUsage = field(default_factory=TokenUsage)
    unanswered: int = 0
    is_over: bool = False
    failure: Failure | None = None


class EventTranslator:
    """Makes the events of a run from its own run events alone, so that they are the same for every reader.

    Turns are known by the speaker's key: the number of the turn, or the round and the role; or the id of a child run.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._plan: TeamPlan | None = None
        self._usage = TokenUsage()
        self._turns: dict[str, _Turn] = {}
        self._turn_of_reply: dict[str, str] = {}
        self._waits: dict[str, WaitStartedEvent] = {}
        self._round = 0
        self._round_is_open = False

    def translate(self, event: RunEvent) -> Iterator[Event]:  # noqa: C901  # one case for each kind
        """The events for the next run event."""
        self._run = event.run
        match event:
            case RunStarted():
                yield from self._run_started(event)
            case RunContinued(carried=carried):
                self._take_plan(carried.pinned)
                self._usage = carried.usage
            case RequestReceived():
                yield from self._requested(event)
            case DecisionRequested():
                yield from self._decision_requested(event)
            case DecisionMade():
                yield from self._decision_made(event)
            case CallScheduled():
                yield from self._call_scheduled(event)
            case CallEnded():
                yield from self._call_ended(event)
            case ChildStarted():
                yield from self._child_started(event)
            case ChildEnded():
                yield from self._child_ended(event)
            case RunReset():
                yield RunResetEvent(**self._base(event.at), since=event.since)
            case RunEnded():
                yield from self._run_ended(event)

    def _base(self, at: datetime) -> _Base:
        return {"run": self._run.id, "team": self._run.team.name if self._run.team else None, "at": at}

    def _run_started(self, event: RunStarted) -> Iterator[Event]:
        run = event.run
        if event.pinned:
            self._take_plan(event.pinned)
        yield RunStartedEvent(
            **self._base(event.at),
            kind=run.kind,
            name=run.name,
            namespace=run.namespace,
            strategy=run.type if run.kind == "team" else None,
            parent=run.parent.id if run.parent else None,
        )

    def _take_plan(self, result: object) -> None:
        if isinstance(result, FailedRun):
            result = result.pinned
        if isinstance(result, Pinned) and isinstance(result.plan, TeamPlan):
            self._plan = result.plan

    def _requested(self, event: RequestReceived) -> Iterator[Event]:
        base = self._base(event.at)
        reason = event.data.get("reason")
        match event.kind:
            case "steer":
                yield SteeredEvent(**base, by=event.by, text=str(event.data["text"]))
            case "session":
                changes = event.data["changes"]
                yield SessionChangedEvent(**base, by=event.by, changes=changes if isinstance(changes, dict) else {})
            case "pause":
                if "pause" not in self._waits:
                    yield self._wait("pause", WaitStartedEvent(**base, wait="pause", kind="pause", text=event.by))
            case "resume":
                yield from self._end_wait("pause", event.at, "over", by=event.by)
            case "terminate_team" | "cancel":
                yield StopRequestedEvent(
                    **base,
                    kind="cancel" if event.kind == "cancel" else "terminate",
                    by=event.by,
                    reason=str(reason) if reason else None,
                    now=event.kind == "cancel" or bool(event.data.get("now")),
                )

    def _wait(self, key: str, started: WaitStartedEvent) -> WaitStartedEvent:
        self._waits[key] = started
        return started

    def _end_wait(
        self,
        key: str,
        at: datetime,
        outcome: Literal["approved", "rejected", "replied", "declined", "timeout", "over"],
        *,
        by: str | None = None,
        reason: str | None = None,
        text: str | None = None,
        digest: str | None = None,
        approved: bool | None = None,
        remembered: bool = False,
        verified: bool = False,
        earlier: tuple[str, ...] = (),
    ) -> Iterator[Event]:
        if started := self._waits.pop(key, None):
            yield WaitEndedEvent(
                **self._base(at),
                wait=started.wait,
                kind=started.kind,
                outcome=outcome,
                by=by,
                reason=reason,
                text=text,
                digest=digest,
                approved=approved,
                remembered=remembered,
                verified=verified,
                earlier=earlier,
            )

    def _decision_requested(self, event: DecisionRequested) -> Iterator[Event]:
        request = event.call.request
        if isinstance(request, AskPersonRequest):
            yield from self._start_turn(
                event.at,
                _person_key(event.id),
                event.who,
                "human",
                request.turn,
                request.brief,
                hidden=event.call.hidden,
            )
        yield self._wait(
            event.id,
            WaitStartedEvent(
                **self._base(event.at),
                wait=event.id,
                kind=event.kind,
                speaker=event.who or event.call.agent or None,
                tool=event.call.name if event.kind in ("approval", "client_tool") else None,
                text=None if event.call.hidden else event.arguments,
                authorizes=event.authorizes,
                approvers=who_decides(event.approvers) or None,
            ),
        )

    def _decision_made(self, event: DecisionMade) -> Iterator[Event]:
        decision = event.decision
        pending = event.pending
        hidden = pending.call.hidden
        text = decision.text if pending.kind == "question" else decision.arguments
        yield from self._end_wait(
            pending.id,
            event.at,
            _outcome(pending, decision),
            by=decision.by,
            reason=decision.reason or None,
            text=None if hidden else text,
            digest=decision.digest,
            approved=decision.approved,
            remembered=decision.how == "remembered",
            verified=decision.verified,
            earlier=decision.earlier,
        )
        if isinstance(pending.call.request, AskPersonRequest):
            yield from self._end_turn(event.at, _person_key(pending.id), "completed")

    def _call_scheduled(self, event: CallScheduled) -> Iterator[Event]:
        call = event.call
        base = self._base(event.at)
        yield from self._end_wait(_outage_key(call), event.at, "over")
        match call.request:
            case AskModelRequest() as request:
                key = _turn_key(request)
                if self._run.kind in ("team", "query") and key not in self._turns:
                    kind: TurnKind = "agent" if call.agent else "model"
                    yield from self._start_turn(
                        event.at, key, call.speaker, kind, request.turn, request.brief, hidden=call.hidden
                    )
                yield ModelCalledEvent(
                    **base,
                    call=call.id,
                    speaker=call.speaker,
                    model=call.name,
                    turn=None if request.brief else request.turn,
                    round=request.brief.round if request.brief else None,
                    part=_role(request.brief),
                    turns=None if request.brief else request.turns,
                    hidden=call.hidden,
                )
            case SelectRequest() as choice:
                yield ModelCalledEvent(
                    **base,
                    call=call.id,
                    speaker=call.speaker,
                    model=call.name,
                    turn=choice.turn,
                    hidden=call.hidden,
                )
            case PerformRequest(name=name, brief=brief, turn=turn) if call.id not in self._turns:
                yield from self._start_turn(
                    event.at,
                    call.id,
                    name,
                    "function",
                    turn or 0,
                    None if turn else brief,
                    function=call.name,
                    hidden=call.hidden,
                )
            case UseToolRequest() if call.activity_type == "use_tool":
                yield ToolCalledEvent(**base, **_callee(call), arguments=None if call.hidden else call.arguments)

    def _call_ended(self, event: CallEnded) -> Iterator[Event]:  # noqa: C901  # one case for each kind of call
        call = event.call
        base = self._base(event.at)
        usage = token_usage(event)
        self._usage += usage
        if isinstance(event.result, FailedRun | Pinned):
            yield from self._pinned(event.result, base)
        if event.failure and event.failure.wait is not None:
            yield from self._deferred(event, event.failure)
            return
        error = _error(event.failure)
        match call.request:
            case AskModelRequest() as request:
                yield self._model_ended(event, usage)
                yield from self._messages(event)
                yield from self._continue_turn(_turn_key(request), event, usage)
            case SelectRequest():
                yield self._model_ended(event, usage)
                if isinstance(event.result, SelectResult):
                    yield SpeakerSelectedEvent(**base, speaker=event.result.member, how=event.result.how)
            case UseToolRequest(reply=reply):
                yield self._tool_ended(event)
                if isinstance(event.result, UseToolResult) and (handoff := event.result.message.handoff):
                    yield HandoffEvent(**base, speaker=call.speaker, receiver=handoff.member)
                yield from self._continue_turn(self._turn_of_reply.get(reply or "", ""), event, usage)
            case PerformRequest():
                yield from self._messages(event)
                if turn := self._turns.get(call.id):
                    turn.usage += usage
                    turn.failure = event.failure
                    if may_be_repeated(event, self._plan):
                        return
                returned = event.result.message.content if isinstance(event.result, PerformResult) else None
                yield from self._end_turn(
                    event.at,
                    call.id,
                    _outcome_of(event),
                    event.failure,
                    text=None if call.hidden else returned,
                    attempts=event.attempts,
                )
            case RecallRequest(conversation=plan):
                memory = plan.memory or None
                yield MemoryReadEvent(**base, memory=memory, conversation=plan.id, error=error.get("error"))
            case RememberRequest(conversation=plan):
                memory = plan.memory or None
                yield MemoryWrittenEvent(**base, memory=memory, conversation=plan.id, error=error.get("error"))
            case None if event.failure and call.activity_type not in OWN_ACTIVITIES:
                yield self._application_failed(event, event.failure)
            case _:
                if isinstance(event.result, EvaluateResult) and _is_choice(call.request):
                    chosen = event.result.member
                    names = [member.name for member in self._plan.members] if self._plan else []
                    speaker = None if chosen is None else names[chosen]
                    how: SelectionKind = "terminated" if chosen is None else "chosen"
                    yield SpeakerSelectedEvent(**base, speaker=speaker, how=how)
                elif isinstance(event.result, EvaluateResult):
                    yield ConditionsEvaluatedEvent(**base, ends=event.result.ends, edge=event.result.edge)
                yield from self._messages(event)

    def _pinned(self, result: Pinned | FailedRun, base: _Base) -> Iterator[Event]:
        self._take_plan(result)
        if isinstance(result, ForkedRun):
            source = result.pinned.forked_from if result.pinned else None
            yield RunForkedEvent(
                **base,
                forked_from=source.run if source else None,
                place=source.at if source else None,
                usage=result.usage,
            )
            return
        if isinstance(result, FailedRun):
            yield RunRetriedEvent(**base, usage=result.usage)
            return
        for notice in result.notices:
            yield NoticeEvent(**base, text=notice)

    def _deferred(self, event: CallEnded, failure: Failure) -> Iterator[Event]:
        """A call waits for the end of an outage, a circuit breaker or a Quota; then it is made again."""
        if _outage_key(event.call) in self._waits:
            return
        kinds: dict[str, WaitKind] = {"CircuitOpen": "circuit", "QuotaReached": "quota"}
        yield self._wait(
            _outage_key(event.call),
            WaitStartedEvent(
                **self._base(event.at),
                wait=f"{event.run.id}/{event.call.id}",
                kind=kinds.get(failure.type, "outage"),
                speaker=event.call.speaker or None,
                tool=event.call.name if isinstance(event.call.request, UseToolRequest) else None,
                text=failure.message,
                attempts=event.attempts,
            ),
        )

    def _messages(self, event: CallEnded) -> Iterator[Event]:
        for number, message in zip(event.numbers, event.messages, strict=True):
            yield MessageEvent(
                **self._base(event.at),
                number=number,
                name=message.name or message.role,
                text=message.content,
                round=message.round,
                part=message.part,
                finish_reason=message.finish_reason,
                from_person=is_from_person(message),
            )

    def _model_ended(self, event: CallEnded, usage: TokenUsage) -> Event:
        call = event.call
        seconds = (event.at - call.scheduled_at).total_seconds()
        base = self._base(event.at)
        draft = call.earlier + event.attempts
        match event.result:
            case AskModelResult(message=message, wrong=wrong, earlier=earlier, restated=restated):
                tools = tuple(
                    CalledTool(id=tool.id, name=tool.name, arguments=tool.arguments) for tool in message.tool_calls
                )
                return ModelAnsweredEvent(
                    **base,
                    call=call.id,
                    speaker=call.speaker,
                    model=message.model,
                    text=None if call.hidden else message.content,
                    tool_calls=() if call.hidden else tools,
                    wrong=wrong,
                    finish_reason=message.finish_reason,
                    usage=usage,
                    attempts=event.attempts,
                    draft=draft + restated,
                    seconds=seconds,
                    earlier=() if call.hidden else tuple(message.content for message in earlier),
                )
            case SelectResult():
                return ModelAnsweredEvent(
                    **base,
                    call=call.id,
                    speaker=call.speaker,
                    usage=usage,
                    attempts=event.attempts,
                    draft=draft,
                    seconds=seconds,
                )
        return ModelFailedEvent(
            **base,
            **_error(event.failure),
            call=call.id,
            speaker=call.speaker,
            attempts=event.attempts,
            draft=draft,
            seconds=seconds,
        )

    def _tool_ended(self, event: CallEnded) -> Event:
        call = event.call
        seconds = (event.at - call.scheduled_at).total_seconds()
        if isinstance(event.result, UseToolResult):
            return ToolReturnedEvent(
                **self._base(event.at),
                **_callee(call),
                text=None if call.hidden else event.result.message.content,
                ends=event.result.ends,
                attempts=event.attempts,
                seconds=seconds,
            )
        return ToolFailedEvent(
            **self._base(event.at),
            **_callee(call),
            **_error(event.failure),
            attempts=event.attempts,
            seconds=seconds,
        )

    def _application_failed(self, event: CallEnded, failure: Failure) -> Event:
        """The failure of an application's activity: only after its success Baton's own call of the tool follows."""
        speakers = [turn.started.speaker for turn in self._turns.values()]
        return ToolFailedEvent(
            **self._base(event.at),
            **_error(failure),
            call=event.call.id,
            speaker=speakers[0] if len(speakers) == 1 else self._run.name,
            tool=event.call.activity_type,
            attempts=event.attempts,
            seconds=(event.at - event.call.scheduled_at).total_seconds(),
        )

    def _start_turn(
        self,
        at: datetime,
        key: str,
        speaker: str,
        kind: TurnKind,
        number: int,
        brief: SpeakerBrief | None = None,
        in_round: int = 0,
        part: str | None = None,
        function: str | None = None,
        hidden: bool = False,
    ) -> Iterator[Event]:
        """The start of a turn, and of its round if that begins with it. Others than members end no turn in parallel."""
        if brief:
            in_round = brief.round
            part = _role(brief)
            number = 0
        elif number and self._run.type == "round-robin" and self._plan:
            in_round = 1 + (number - 1) // len(self._plan.members)
        if self._run.type != "parallel":
            yield from self._end_turns(at, "completed")
        if in_round > self._round:
            yield from self._end_round(at)
            self._round = in_round
            self._round_is_open = True
            yield RoundStartedEvent(**self._base(at), round=in_round, max_rounds=self._max_rounds)
        panel = self._plan.panel if self._plan else None
        is_panelist = panel is not None and part is None and speaker in panel.roster
        started = TurnStartedEvent(
            **self._base(at),
            speaker=speaker,
            kind=kind,
            turn=number or None,
            round=in_round or None,
            part=part,
            function=function,
            hidden=hidden,
            collection=(panel.audit or self._plan.name) if is_panelist and self._plan and panel else None,
            stance=panel.stances[panel.roster.index(speaker)] if is_panelist and panel and panel.stances else None,
        )
        self._turns[key] = _Turn(started)
        yield started

    @property
    def _max_rounds(self) -> int | None:
        if self._plan is None:
            return None
        return self._plan.panel.max_rounds if self._plan.panel else self._plan.max_turns

    def _end_round(self, at: datetime) -> Iterator[Event]:
        if self._round_is_open:
            self._round_is_open = False
            yield RoundEndedEvent(**self._base(at), round=self._round)

    def _continue_turn(self, key: str, event: CallEnded, usage: TokenUsage) -> Iterator[Event]:
        """Updates a turn, which ends with an answer without tool calls, or with the results of calls that end it."""
        turn = self._turns.get(key)
        if turn is None:
            return
        result = event.result
        turn.usage += usage
        turn.failure = event.failure
        if isinstance(result, AskModelResult):
            turn.unanswered = len(result.message.tool_calls)
            self._turn_of_reply[result.head.id] = key
        elif isinstance(event.call.request, UseToolRequest):
            turn.unanswered -= 1
        if isinstance(result, UseToolResult) and (result.ends or result.message.handoff):
            turn.is_over = True
        is_answer = isinstance(result, AskModelResult) and not (result.wrong or result.question)
        if turn.unanswered == 0 and (turn.is_over or is_answer):
            yield from self._end_turn(event.at, key, "completed")

    def _end_turn(
        self,
        at: datetime,
        key: str,
        outcome: TurnOutcome,
        failure: Failure | None = None,
        text: str | None = None,
        attempts: int | None = None,
    ) -> Iterator[Event]:
        if turn := self._turns.pop(key, None):
            started = turn.started
            yield TurnEndedEvent(
                **self._base(at),
                **_error(failure),
                speaker=started.speaker,
                turn=started.turn,
                round=started.round,
                part=started.part,
                outcome=outcome,
                seconds=(at - started.at).total_seconds(),
                usage=turn.usage,
                text=text,
                attempts=attempts,
            )

    def _end_turns(self, at: datetime, outcome: TurnOutcome, failure: Failure | None = None) -> Iterator[Event]:
        """Ends all open turns; those whose last call has failed as failed."""
        for key, turn in [*self._turns.items()]:
            failed = turn.failure or (failure if len(self._turns) == 1 else None)
            yield from self._end_turn(at, key, "failed" if failed else outcome, failed)

    def _child_started(self, event: ChildStarted) -> Iterator[Event]:
        child = event.child
        place = re.search(r"/(?:turn-(\d+)|round-(\d+)/([^/]+))/([^/]*)$", child.id)
        if self._run.kind != "team" or place is None:
            return
        number, in_round, part, name = place.groups()
        kind: TurnKind = "agent" if child.type == "agent" else "model" if child.type == "model" else "team"
        role = None if part is None or part.isdigit() else part
        if part and part.isdigit() and self._plan and self._plan.panel:
            name = self._plan.panel.roster[int(part) - 1]
        yield from self._start_turn(
            event.at,
            child.id,
            name,
            kind,
            int(number or 0),
            in_round=int(in_round or 0),
            part=role,
            hidden=child.hidden,
        )

    def _child_ended(self, event: ChildEnded) -> Iterator[Event]:
        result = event.result
        failure = result.failure if result else event.failure
        if result:
            self._usage += result.usage
            if turn := self._turns.get(event.child.id):
                turn.usage += result.usage
        outcome: TurnOutcome = "completed"
        if failure:
            outcome = "failed"
        elif result is None or result.stop_reason == "canceled":
            outcome = "canceled"
        yield from self._end_turn(event.at, event.child.id, outcome, failure)

    def _run_ended(self, event: RunEnded) -> Iterator[Event]:
        failure = event.failure if event.stop_reason != "max_turns" else None
        yield from self._end_turns(event.at, "failed" if failure else "canceled", failure)
        yield from self._end_round(event.at)
        for key in [*self._waits]:
            yield from self._end_wait(key, event.at, "over")
        yield RunEndedEvent(
            **self._base(event.at),
            **_error(event.failure),
            phase=event.phase,
            stop_reason=event.stop_reason,
            note=event.note,
            turns=event.turns,
            usage=event.usage or self._usage,
            notices=event.notices,
            member_failures=event.member_failures,
        )


def _error(failure: Failure | None) -> _Error:
    return {"error": failure.message, "error_type": failure.type} if failure else {}


def _callee(call: ActivityCall) -> _Callee:
    return {"call": call.id, "tool_call": call.tool_call or None, "speaker": call.speaker, "tool": call.name}


def _outcome(
    pending: DecisionRequested, decision: PersonDecision
) -> Literal["approved", "rejected", "replied", "declined", "timeout"]:
    if decision.how == "timeout":
        return "timeout"
    if pending.kind in ("question", "client_tool"):
        return "replied" if decision.approved else "declined"
    return "approved" if decision.approved else "rejected"


def _outcome_of(event: CallEnded) -> TurnOutcome:
    if event.failure:
        return "failed"
    return "completed" if event.result else "canceled"


def _role(brief: SpeakerBrief | None) -> str | None:
    """The role of a speaker of a panel that is not a member."""
    return brief.part if brief and brief.member_index is None else None


def _turn_key(request: AskModelRequest) -> str:
    """The key of the turn in which a model is called."""
    brief = request.brief
    if brief is None:
        return f"turn-{request.turn}"
    return f"round-{brief.round}/{brief.part if brief.member_index is None else brief.member_index}"


def _person_key(decision_id: str) -> str:
    return f"person/{decision_id}"


def _is_choice(request: object) -> bool:
    return isinstance(request, EvaluateRequest) and request.candidates is not None


def _outage_key(call: ActivityCall) -> str:
    return f"call/{call.id}"
