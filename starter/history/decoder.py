"""Decodes Temporal's history events of one run into run events."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar, cast, get_args

from pydantic import JsonValue
from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure as TemporalFailure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...contracts.control_messages import read_person, read_steer_request, read_terminate_request
from ...contracts.decisions import BUDGET_RULE, DECISION, ApproveRequest, AskPersonRequest, RememberedDecision
from ...contracts.errors import BatonError, BudgetExceeded, BudgetReached, Failure, RunClosed, ToolFailed
from ...contracts.inputs import AgentState, Continuation, FailedRun, TeamState
from ...contracts.message import Message, Quote, RowRange
from ...contracts.panel import BriefRequest, PerformRequest, PerformResult, SpeakerBrief
from ...contracts.plan import AgentPlan, MemberPlan, QueryPlan, TargetPlan, TeamPlan
from ...contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    ConversationItem,
    Pinned,
    SelectRequest,
    UseToolRequest,
)
from ...contracts.status import Status, phase_of
from ...contracts.turn import TurnResult
from ...resources.base import JsonObject
from ...resources.strategies import RUN_TYPES
from ...resources.tool import OWN_ACTIVITIES
from ...temporal.histories import decode_payload
from .decisions import DecisionTracker
from .run_events import (
    REQUEST_TYPES,
    RESULT_TYPES,
    ActivityCall,
    CallEnded,
    CallResult,
    CallScheduled,
    ChildEnded,
    ChildStarted,
    RequestKind,
    RequestReceived,
    RunContinued,
    RunEnded,
    RunEvent,
    RunInfo,
    RunStarted,
)


def is_from_person(message: Message) -> bool:
    """Whether a person wrote it; Baton's own requests to correct an answer have no name."""
    return message.role == "user" and message.name is not None


def _row_count(item: ConversationItem) -> int:
    """How many rows of a conversation an item becomes."""
    return item.to.depth - item.after.depth if isinstance(item, RowRange) else 1


def _numbered(first: int, items: Sequence[ConversationItem]) -> Iterator[tuple[int, ConversationItem]]:
    """Items with their places in the conversation, where the first of their rows has the place ``first``."""
    for item in items:
        yield first, item
        first += _row_count(item)


@dataclass
class CallTracker:
    """Follows the calls of one run in order; ``team`` is the plan of the run's team, if it has one.

    ``_replies`` are the answers of models and functions, and ``_briefs`` the briefs of speakers, by journal row, by
    which later calls refer to them.
    """

    team: TeamPlan | None = None
    _agents: dict[str, AgentPlan] = field(default_factory=dict)
    _replies: dict[str, Message] = field(default_factory=dict)
    _briefs: dict[str, SpeakerBrief] = field(default_factory=dict)
    _hidden_children: list[str] = field(default_factory=list)

    def child_run(self, parent: RunInfo, workflow_id: str, run_id: str) -> RunInfo:
        """A child run of ``parent``, which is the followed run."""
        hidden = any(workflow_id.startswith(f"{parent.id}/{place}/") for place in self._hidden_children)
        return RunInfo(workflow_id, run_id, parent=parent, hidden=parent.hidden or hidden)

    def complete(self, run: RunInfo, call: ActivityCall) -> ActivityCall:
        """A scheduled call with its name, brief and member."""
        call = self._with_name(call)
        brief = self._brief_of(call)
        if brief is None:
            return replace(call, hidden=run.hidden)
        if brief.hidden and isinstance(call.request, BriefRequest):
            self._hidden_children.append(f"round-{brief.round}/{brief.part}")
        return replace(call, brief=brief, member=self._member(brief), hidden=run.hidden or brief.hidden)

    def record(self, result: CallResult, brief: SpeakerBrief | None = None) -> None:
        """Stores a result to which later calls refer."""
        match result:
            case FailedRun(pinned=Pinned() as pinned, reply=reply):
                self.record(pinned)
                if reply:
                    self.record(reply)
            case AskModelResult(message=message, head=head):
                self._replies[head.id] = message
                if brief:
                    self._briefs[head.id] = brief
            case PerformResult(message=message, head=head):
                self._replies[head.id] = message
            case Pinned(plan=TeamPlan() as team):
                self.team = team
                parts = team.panel.parts.values() if team.panel else ()
                members: list[MemberPlan | None] = [*team.members, team.aggregator, *parts]
                self._agents = {member.speaker: member for member in members if isinstance(member, AgentPlan)}
            case (
                Pinned(plan=AgentPlan() as agent)
                | Pinned(plan=QueryPlan(targets=(TargetPlan(turn=AgentPlan() as agent),)))
            ):
                self._agents = {agent.speaker: agent}

    def messages(self, call: ActivityCall, result: CallResult) -> list[tuple[int, Message]]:
        """The visible messages that a completed call has added to the conversation, with their places in it."""
        if call.hidden:
            return []
        panel = self.team.panel if self.team else None
        hides_deliverable = panel is not None and not panel.visibility.client
        return [
            (number, message)
            for number, message in self._added_messages(call, result)
            if not (hides_deliverable and message.part == "deliverable")
        ]

    def _added_messages(  # noqa: C901  # one case for each kind of call
        self, call: ActivityCall, result: CallResult
    ) -> Iterator[tuple[int, Message]]:
        """The messages of agents, of people and of a panel's conversation; a panel quotes earlier replies."""
        match call.request, result:
            case AskModelRequest(brief=None, pending=pending), AskModelResult(message=message, wrong=wrong) as answer:
                first = answer.head.depth - len(answer.earlier) - sum(map(_row_count, pending))
                for number, item in _numbered(first, pending):
                    if isinstance(item, Message) and is_from_person(item):
                        yield number, item
                yield from enumerate(answer.earlier, answer.head.depth - len(answer.earlier))
                if message.content and not wrong:
                    yield answer.head.depth, message
            case PerformRequest(turn=int()), PerformResult(message=message, head=head):
                yield head.depth, message
            case AppendRequest(head=head, items=items), _:
                for number, item in _numbered(head.depth + 1, items):
                    if isinstance(item, Quote) and item.row in self._replies:
                        yield number, item.quoted(self._replies[item.row])
                    elif isinstance(item, Message):
                        is_persons_turn = item.role == "assistant" and item.decision is not None
                        if item.part or is_persons_turn or is_from_person(item):
                            yield number, item

    def _with_name(self, call: ActivityCall) -> ActivityCall:
        """The call with the name of its model, tool or function."""
        match call.request:
            case AskModelRequest(speaker=speaker, fallback=fallback) if speaker in self._agents:
                agent = self._agents[speaker]
                return replace(call, name=agent.engine or agent.models[fallback])
            case UseToolRequest(reply=reply, call=number) if reply in self._replies:
                tool_call = self._replies[reply].tool_calls[number]
                return replace(call, name=tool_call.name, arguments=tool_call.arguments, tool_call=tool_call.id)
            case SelectRequest(fallback=fallback) if self.team and self.team.selector:
                return replace(call, name=self.team.selector.models[fallback])
            case UseToolRequest(reply=None):
                return replace(call, name=call.speaker)
            case PerformRequest(function=name) | AskPersonRequest(member=name):
                return replace(call, name=name)
        return call

    def _brief_of(self, call: ActivityCall) -> SpeakerBrief | None:
        match call.request:
            case AskModelRequest(brief=brief) | BriefRequest(brief=brief) | PerformRequest(brief=brief):
                return brief
            case UseToolRequest(reply=str(reply)):
                return self._briefs.get(reply)
        return None

    def _member(self, brief: SpeakerBrief) -> str:
        """The name of the panel's member that has the brief; empty for another role."""
        panel = self.team.panel if self.team else None
        return panel.roster[brief.member_index] if panel and brief.member_index is not None else ""


REQUEST_EVENTS = (
    "workflow_execution_signaled",
    "workflow_execution_update_accepted",
    "workflow_execution_cancel_requested",
)
"""The names of the history events by which a run receives a request."""


async def decode_request(
    converter: DataConverter, run: RunInfo, at: datetime, event: str, attributes: Any
) -> RequestReceived | None:
    """The request of a client; None for requests forwarded by a parent run, and for those that a run ignores."""
    if event == "workflow_execution_update_accepted":
        request = attributes.accepted_request
        name = request.input.name
        payloads = request.input.args
        client = request.meta.identity
    elif attributes.external_workflow_execution.workflow_id:
        return None
    elif event == "workflow_execution_cancel_requested":
        return RequestReceived(run, at, "cancel", attributes.identity, {"reason": attributes.cause or None})
    else:
        name = attributes.signal_name
        payloads = attributes.input
        client = attributes.identity
    value = await _value(converter, payloads)
    if name not in get_args(RequestKind):
        return None
    kind = cast(RequestKind, name)
    data = _data(kind, value)
    if data is None:
        return None
    return RequestReceived(run, at, kind, _person(kind, value) or client, data)


async def decode_decision(
    converter: DataConverter, event: str, attributes: Any
) -> ApproveRequest | RememberedDecision | None:
    """A person's decision, from a client or forwarded by another run; None for everything else."""
    if event == "workflow_execution_update_accepted":
        update = attributes.accepted_request.input
        kind: type[ApproveRequest | RememberedDecision] | None = ApproveRequest if update.name == "approve" else None
        payloads = update.args
    elif event == "workflow_execution_signaled":
        kind = RememberedDecision if attributes.signal_name in ("remember", "remembered") else None
        payloads = attributes.input
    else:
        return None
    try:
        return kind.model_validate(await _value(converter, payloads)) if kind else None
    except ValueError:
        return None


def _person(kind: RequestKind, value: JsonValue) -> str | None:
    """The person's name in a request; a plain text is a name only if it can't be a reason or a message."""
    if kind == "steer" and (message := read_steer_request(value)):
        return message.name
    return read_person(value) if kind in ("pause", "resume") or isinstance(value, dict) else None


def _data(kind: RequestKind, value: JsonValue) -> JsonObject | None:
    """The data of a request; None if a run ignores it."""
    match kind:
        case "steer":
            message = read_steer_request(value)
            return {"text": message.text} if message else None
        case "session":
            return {"changes": value} if isinstance(value, dict) else None
        case "terminate_team" | "cancel":
            request = read_terminate_request(value)
            return {"reason": request.reason or None, "now": request.now or None}
    return {}


async def _value(converter: DataConverter, payloads: Payloads) -> JsonValue:
    """The first payload's value; None if there is none or it can't be decoded, which runs treat alike."""
    if not payloads.payloads:
        return None
    try:
        values = await converter.decode(payloads.payloads[:1])
    except BatonError:
        return None
    value: JsonValue = values[0]
    return value


T = TypeVar("T")


async def decode_failure(converter: DataConverter, failure: TemporalFailure, activity: str | None = None) -> Failure:
    """A failure of an activity of that type, or of a workflow, translated as the workflow itself does."""
    error = await converter.decode_failure(failure)
    if activity and activity not in OWN_ACTIVITIES and isinstance(error, ApplicationError):
        # The details are the application's, and mean nothing here.
        return ToolFailed(error.message or error.type or "failed").as_failure()
    match error:
        case ActivityTimeout(message=text):
            return Failure(family="TimeoutError", type="CallTimeout", message=text)
        case ApplicationError(message=text, type=kind, details=[str() as family, *more]):
            about = next((detail for detail in more if isinstance(detail, dict)), {})
            budget = BudgetReached.model_validate(about) if about and kind == BudgetExceeded.__name__ else None
            return Failure(
                family=family,
                type=kind or "ActivityError",
                message=text,
                wait=about.get("wait"),
                budget=budget,
            )
    kind = error.type if isinstance(error, ApplicationError) else None
    text = error.message if isinstance(error, FailureError) else str(error)
    return Failure(family="BatonError", type=kind or "ActivityError", message=text)


END_EVENTS = {
    f"workflow_execution_{end}": end.replace("_", " ")
    for end in ("completed", "failed", "canceled", "terminated", "timed_out")
}
"""The history events that end a run, with their descriptions."""


CHILD_ENDS = {f"child_{event}": end for event, end in END_EVENTS.items()}
"""The history events of a parent that end a child run, with their descriptions."""


async def decode_run_end(converter: DataConverter, run: RunInfo, at: datetime, event: str, attributes: Any) -> RunEnded:
    """The end of a run, from its result, or otherwise from Temporal's event."""
    result = await _result(converter, attributes)
    match result:
        case TurnResult():
            return RunEnded(
                run,
                at,
                phase_of(result.stop_reason, result.failure),
                result.stop_reason,
                result.note,
                result.failure,
                turns=result.turns,
                usage=result.usage,
                member_failures=result.member_failures,
            )
        case Status():
            return RunEnded(
                run,
                at,
                result.phase,
                result.stop_reason,
                result.note,
                result.failure,
                turns=result.turns,
                usage=result.token_usage,
                member_failures=result.all_member_failures,
                notices=tuple(result.notices or ()),
            )
    if event == "workflow_execution_canceled":
        return RunEnded(run, at, "Canceled", "canceled")
    failure = RunClosed(f"the run was closed in Temporal: {END_EVENTS[event]}").as_failure()
    if event == "workflow_execution_failed":
        failure = await decode_failure(converter, attributes.failure)
    return RunEnded(run, at, "Failed", "failed", failure=failure)


async def _result(converter: DataConverter, attributes: Any) -> TurnResult | Status | None:
    """The result of a run, also from the details of its failure; None if there is none."""
    failure = getattr(attributes, "failure", TemporalFailure())
    for payloads in (
        getattr(attributes, "result", Payloads()),
        failure.application_failure_info.details,
        failure.canceled_failure_info.details,
    ):
        if payloads.payloads:
            # A run returns a Status to a client, and a TurnResult to a parent of Baton's.
            result = await decode_payload(converter, payloads, dict[str, JsonValue])
            kind = Status if "phase" in result else TurnResult
            return await decode_payload(converter, payloads, kind)
    return None


async def _input_of(converter: DataConverter, started: Any) -> dict[str, Any]:
    """The input of the workflow; empty if it is no object, which the workflow rejects."""
    if len(started.input.payloads) != 1:
        return {}
    try:
        return await decode_payload(converter, started.input, dict[str, JsonValue])
    except BatonError:
        return {}


def _continuation(carried: object) -> Continuation:
    return Continuation.model_validate_json(json.dumps(carried))


async def carried_state(converter: DataConverter, started: Any) -> Continuation | None:
    """The state with which an execution has started, from the attributes of its start; None for the first execution."""
    carried = (await _input_of(converter, started)).get("carried")
    return _continuation(carried) if carried else None


def tells_all(carried: Continuation, later: Continuation) -> bool:
    """Whether a reader that begins with the first state knows at the later one all that it has to know.

    What was open in the first state has to be over in the later one: no decision and no pause may be pending, and
    a member has to have begun a turn in between. A turn that a query takes itself, and members that speak at the same
    time, may be as old as the run.
    """
    decisions = carried.decisions
    if decisions and (decisions.pending or any(rule.startswith(BUDGET_RULE) for rule in decisions.remembered)):
        return False
    if carried.inbox and carried.inbox.pause:
        return False
    match carried.state, later.state:
        case AgentState(), AgentState():
            return True
        case TeamState(so_far=before), TeamState(so_far=after):
            is_parallel = isinstance(carried.pinned.plan, TeamPlan) and carried.pinned.plan.strategy == "parallel"
            return not is_parallel and after.turns - before.turns >= 2
    return False


LOCAL_ACTIVITY_MARKER = "core_local_activity"
"""The marker with which Temporal's SDK records a local activity."""

CALL_ENDS = tuple(f"activity_task_{end}" for end in ("completed", "failed", "timed_out", "cancel_requested"))
"""The events after which a workflow no longer waits for an activity."""


def event_attributes(event: HistoryEvent) -> tuple[str, Any]:
    """The name of a history event, such as ``activity_task_started``, and its attributes."""
    name = event.WhichOneof("attributes") or ""
    return name.removesuffix("_event_attributes"), getattr(event, name, None)


class HistoryDecoder:
    """Decodes the events of one run in order, across all executions of its continue-as-new chain."""

    def __init__(self, run: RunInfo, converter: DataConverter) -> None:
        self.run = run
        self._converter = converter
        self.calls = CallTracker()
        self.decisions = DecisionTracker()
        self.children: dict[int, RunInfo] = {}
        """The open child runs, by the id of the event in which they started."""
        self._started = False
        self._open: dict[int, ActivityCall] = {}
        self._attempts: dict[int, int] = {}
        self._earlier: dict[str, int] = {}
        """The attempts of calls that wait, by their ids."""
        self._timers: dict[str, str] = {}

    def continue_as_new(self, run_id: str) -> None:
        """Continues with the history of another execution of the same run, whose calls have ids of their own."""
        self._earlier.clear()
        self.decisions.continue_as_new()
        self.run = replace(self.run, run_id=run_id, continued_from=self.run.first_run_id)

    async def begin_at(self, run_id: str, first: Any, carried: Continuation) -> list[RunEvent]:
        """Begins with a later execution of the run, which has ``carried`` this state.

        ``first`` are the attributes of the start of the first execution. Returns what its readers learn from these.
        """
        at = datetime.min.replace(tzinfo=UTC)
        self._started = True
        started = await self._run_started(at, first)
        self.continue_as_new(run_id)
        self.calls.record(carried.pinned)
        if carried.decisions:
            self.decisions.restore(carried.decisions)
        match carried.state:
            case AgentState(reply=reply) | TeamState(interrupted_turn=AgentState(reply=reply)) if reply:
                self.calls.record(reply)
        return [started, RunContinued(self.run, at, carried)]

    async def decode(self, event: HistoryEvent) -> list[RunEvent]:  # noqa: C901  # one case for each kind of event
        """The run events of a history event, mostly none."""
        at = event.event_time.ToDatetime(UTC)
        match event_attributes(event):
            case "workflow_execution_started", started if not self._started:
                self._started = True
                return [await self._run_started(at, started)]
            case "marker_recorded", marker if marker.marker_name == LOCAL_ACTIVITY_MARKER:
                return await self._local_activity(at, marker)
            case "activity_task_scheduled", scheduled:
                call = self._open[event.event_id] = await self._scheduled_call(at, scheduled)
                return [*self.decisions.scheduled(CallScheduled(self.run, at, call))]
            case "activity_task_started", started:
                self._attempts[started.scheduled_event_id] = started.attempt
            case name, ended if name in CALL_ENDS:
                return await self._call_ended(at, ended)
            case "timer_started" | "timer_fired", timer:
                return await self._timer(at, event, timer.timer_id)
            case name, request if name in REQUEST_EVENTS:
                return await self._request(at, name, request)
            case "child_workflow_execution_started", started if started.workflow_type.name in RUN_TYPES:
                execution = started.workflow_execution
                child = self.calls.child_run(self.run, execution.workflow_id, execution.run_id)
                child = self.children[event.event_id] = replace(child, type=started.workflow_type.name)
                return [ChildStarted(self.run, at, child)]
            case name, ended if name in CHILD_ENDS and ended.started_event_id in self.children:
                return [await self._child_ended(at, name, ended)]
            case name, ended if name in END_EVENTS:
                return [await decode_run_end(self._converter, self.run, at, name, ended)]
        return []

    async def _child_ended(self, at: datetime, name: str, ended: Any) -> ChildEnded:
        """The end of a child run; its failure only if it has no result, as it was closed in Temporal."""
        child = self.children.pop(ended.started_event_id)
        result = await _result(self._converter, ended)
        if isinstance(result, TurnResult) or name == "child_workflow_execution_canceled":
            return ChildEnded(self.run, at, child, result if isinstance(result, TurnResult) else None)
        failure = RunClosed(f"the run was closed in Temporal: {CHILD_ENDS[name]}").as_failure()
        if name == "child_workflow_execution_failed":
            failure = await decode_failure(self._converter, ended.failure)
        return ChildEnded(self.run, at, child, failure=failure)

    async def _run_started(self, at: datetime, started: Any) -> RunStarted:
        run_input = await _input_of(self._converter, started)
        workflow = started.workflow_type.name
        kind = next((field for field in ("team", "agent", "model", "tool") if field in run_input), workflow)
        self.run = replace(
            self.run,
            type=workflow,
            kind=kind,
            name=str(run_input.get("name" if kind == "query" else kind) or self.run.id),
            namespace=str(run_input.get("namespace") or "default"),
        )
        pinned: Pinned | None = None
        if carried := run_input.get("carried"):  # Temporal has deleted the first executions of this run
            pinned = _continuation(carried).pinned
        elif pinned_json := run_input.get("pinned"):
            pinned = Pinned.model_validate_json(json.dumps(pinned_json))
        if pinned:
            self.calls.record(pinned)
        return RunStarted(self.run, at, pinned)

    async def _request(self, at: datetime, name: str, attributes: Any) -> list[RunEvent]:
        """A client's request to the run, or a decision about its budgets."""
        decision = await decode_decision(self._converter, name, attributes)
        if decision:
            return [*self.decisions.decided(self.run, at, decision)]
        received = await decode_request(self._converter, self.run, at, name, attributes)
        return [received] if received else []

    async def _timer(self, at: datetime, event: HistoryEvent, timer: str) -> list[RunEvent]:
        """Handles a timer that limits the wait for a decision."""
        if event.HasField("timer_fired_event_attributes"):
            return [*self.decisions.timed_out(self.run, at, self._timers.pop(timer, ""))]
        if event.user_metadata.HasField("summary"):
            summary = await decode_payload(self._converter, Payloads(payloads=[event.user_metadata.summary]), str)
            self._timers[timer] = summary.removeprefix(DECISION)
        return []

    async def _scheduled_call(self, at: datetime, scheduled: Any) -> ActivityCall:
        activity_type = scheduled.activity_type.name
        kind = REQUEST_TYPES.get(activity_type)
        request = await decode_payload(self._converter, scheduled.input, kind) if kind else None
        earlier = self._earlier.pop(scheduled.activity_id, 0)
        call = ActivityCall(scheduled.activity_id, activity_type, at, request, earlier=earlier)
        return self.calls.complete(self.run, call)

    async def _local_activity(self, at: datetime, marker: Any) -> list[RunEvent]:
        """Decodes a local activity, unless it failed with a retryable error: then a regular activity follows."""
        details = json.loads(marker.details["data"].payloads[0].data)
        call = ActivityCall(details["activity_id"], details["activity_type"], at)
        if call.activity_type not in RESULT_TYPES or not _is_final(marker):
            return []
        result = None
        failure = None
        if not marker.HasField("failure"):
            result = await self._result(call, marker.details["result"])
        elif not marker.failure.HasField("canceled_failure_info"):
            failure = await decode_failure(self._converter, marker.failure)
        return [CallScheduled(self.run, at, call), CallEnded(self.run, at, call, result=result, failure=failure)]

    async def _call_ended(self, at: datetime, ended: Any) -> list[RunEvent]:
        number = ended.scheduled_event_id
        call = self._open.pop(number, None)
        if call is None:
            return []
        attempts = self._attempts.pop(number, 1)
        if hasattr(ended, "result") and call.activity_type in RESULT_TYPES:
            result = await self._result(call, ended.result)
            added = self.calls.messages(call, result)
            completed = CallEnded(
                self.run,
                at,
                call,
                attempts,
                result,
                messages=tuple(message for _, message in added),
                numbers=tuple(number for number, _ in added),
            )
            return [*self.decisions.ended(completed)]
        failure = None
        if hasattr(ended, "failure"):
            failure = await decode_failure(self._converter, ended.failure, call.activity_type)
            if failure.wait is not None or failure.type == "CallTimeout":  # it may be made again, with the same id
                self._earlier[call.id] = call.earlier + attempts
        return [*self.decisions.ended(CallEnded(self.run, at, call, attempts, failure=failure))]

    async def _result(self, call: ActivityCall, payloads: Any) -> CallResult:
        result = await decode_payload(self._converter, payloads, RESULT_TYPES[call.activity_type])
        self.calls.record(result, call.brief)
        return result


def _is_final(marker: Any) -> bool:
    """Whether a local activity completed, was canceled, or failed with a non-retryable error."""
    failure = marker.failure
    canceled = failure.HasField("canceled_failure_info")
    return not marker.HasField("failure") or canceled or failure.application_failure_info.non_retryable
