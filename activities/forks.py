"""The activity ``read_fork``: the state of a run at the point of a fork, from which a new run goes on.

No run stores its state for a fork. Its history has everything that has led to it, so the workflow's code is replayed up
to the point, and asked for the same state from which a retry would go on if the calls in progress there had failed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from pydantic import JsonValue
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import (
    ActivityTaskScheduledEventAttributes,
    HistoryEvent,
    WorkflowExecutionStartedEventAttributes,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ..contracts.control_messages import SteerRequest
from ..contracts.errors import InvalidInput
from ..contracts.inputs import (
    AgentState,
    Continuation,
    Fork,
    ForkedRun,
    QueryState,
    ReadForkRequest,
    State,
    TeamState,
)
from ..contracts.message import Message
from ..contracts.requests import ForkedFrom
from ..contracts.turn import TurnResult
from ..journal.accounts import Accounts
from ..journal.journal import Journal
from ..resources.base import JsonObject
from ..resources.catalog import Catalog, Resource
from ..resources.strategies import OWN_WORKFLOWS
from ..temporal.activity import idempotency_key, own_client, root_id
from ..temporal.executions import run_tree
from ..temporal.histories import ACTIVITY_SCHEDULED, CLOSED_ACTIVITY, workflow_tasks
from ..temporal.search_attributes import KnownAttributes
from .context.outside import Outside, RecordedState

COMPLETED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
CONTINUED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
TASK_FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
CHILD_STARTED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED

COMPLETED_CHILD = "child_workflow_execution_completed_event_attributes"
CLOSED_CHILD = (
    COMPLETED_CHILD,
    "child_workflow_execution_failed_event_attributes",
    "child_workflow_execution_canceled_event_attributes",
    "child_workflow_execution_timed_out_event_attributes",
    "child_workflow_execution_terminated_event_attributes",
)


class HistoryReplay(Protocol):
    """Queries workflows at an earlier point of their histories."""

    async def query(self, workflow_id: str, events: Sequence[HistoryEvent], name: str) -> JsonValue:
        """The answer to a query after the last of ``events``."""


class ForkActivities:
    """The activity ``read_fork``."""

    def __init__(
        self, journal: Journal, replays: HistoryReplay, attributes: KnownAttributes, outside: Outside | None = None
    ) -> None:
        self._outside = outside
        self._journal = journal
        self._replays = replays
        self._attributes = attributes

    @activity.defn(name="read_fork")
    async def read_fork(self, request: ReadForkRequest) -> ForkedRun:
        """The state of another run at a point, for a fork of it. Raises InvalidInput if the run can't be forked.

        A row that nobody reads, after the first one of the forked run, keeps the rows of that run from being deleted.
        """
        if self._outside:
            return await self._recorded(self._outside.forked(request.fork.run), request)
        client = own_client()
        info = activity.info()
        fork = request.fork
        events = await events_up_to_point(client, fork)
        started = events[0].workflow_execution_started_event_attributes
        kind = started.workflow_type.name, started.task_queue.name
        if kind != (info.workflow_type, info.task_queue):
            raise InvalidInput(
                f"{fork.run} can't be forked here: it is a run of {kind[0]} on the task queue {kind[1]}, and the fork "
                f"one of {info.workflow_type} on {info.task_queue}"
            )
        if events[-1].event_type == COMPLETED and request.thread and not (fork.point and fork.has_point):
            payloads = events[-1].workflow_execution_completed_event_attributes.result.payloads
            (result,) = await client.data_converter.decode(payloads, [TurnResult])
            return ForkedRun(result=result.with_unread(()))
        forked = ForkedRun.model_validate(await self._replays.query(fork.run, events, "retry_input"))
        if forked.carried is None:
            return ForkedRun()
        if forked.head and request.thread is None:
            kept = Message(role="system", content="forked")
            await self._journal.append(forked.head, (kept,), idempotency_key())
        carried = _said(_before_next_turn(forked.carried, fork), fork)
        children = _children(fork, events, carried)
        placed = await self._placed(carried, children, request)
        if (old := carried.pinned.thread.account) and (new := placed.pinned.thread.account):
            spent = await _spent(client, fork.run, events, children)
            await Accounts(self._journal.database).fork(old, new, f"{info.workflow_run_id}/{FORKED}", spent.has)
        return ForkedRun(carried=placed)

    async def _recorded(self, recorded: RecordedState, request: ReadForkRequest) -> ForkedRun:
        """The state in a recording, in the run that replays it. The runs below have their ids in the recording."""
        carried = recorded.forked.carried
        if carried is None:
            return recorded.forked
        children = {run: Fork(run=run, run_id=fork.run_id) for run, fork in carried.forks.items()}
        placed = await self._placed(carried, children, request)
        if account := placed.pinned.thread.account:
            call = f"{activity.info().workflow_run_id}/{FORKED}"
            await Accounts(self._journal.database).carry_over(account, call, recorded.spent)
        return ForkedRun(carried=placed)

    async def _placed(self, carried: Continuation, children: dict[str, Fork], request: ReadForkRequest) -> Continuation:
        """The state in this run: with its thread, and with the forks of its children by their new ids."""
        info = activity.info()
        old = carried.pinned.thread
        above = request.thread
        account = (above.account if above else info.workflow_run_id) if old.account else None
        scope = above.scope if above else old.scope
        thread = old.in_run(above.run if above else root_id(), account, scope)
        known = await self._attributes.known()
        source = ForkedFrom(run=request.fork.run, at=request.at, searchable=known["shows_forks"])
        pinned = carried.pinned.for_fork(thread, None if above else source)
        prefix = len(request.fork.run)
        forks = {f"{info.workflow_id}{run[prefix:]}": child for run, child in children.items()}
        return carried.in_fork(pinned, forks)


async def events_up_to_point(client: Client, fork: Fork) -> list[HistoryEvent]:
    """The history of the execution in which the point is, up to the point, or to the end of a run that has ended.

    Raises InvalidInput if Temporal has deleted it.
    """
    point = fork.point
    run_id = point.run_id if point and fork.has_point else fork.run_id
    while True:
        try:
            handle = client.get_workflow_handle(fork.run, run_id=run_id)
            events = [event async for event in handle.fetch_history_events()]
        except RPCError as error:
            if error.status == RPCStatusCode.INVALID_ARGUMENT:
                raise InvalidInput(f"{fork.run} can't be forked: {error.message}") from None
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise InvalidInput(f"Temporal has deleted the history of {fork.run}, so it can't be forked") from None
        last = events[-1]
        if point is None:
            if last.event_type != CONTINUED:
                return events
        elif fork.has_point:
            end = next((task.end for task in workflow_tasks(events) if task.event == point.event), None)
            if end is None:
                raise InvalidInput(f"{fork.run} can't be forked at its event {point.event}: that ends no workflow task")
            return events[:end]
        elif last.event_type != CONTINUED or last.event_time.ToDatetime(UTC) > point.at:
            return _events_up_to_time(events, fork, point.at)
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


def _events_up_to_time(events: list[HistoryEvent], fork: Fork, at: datetime) -> list[HistoryEvent]:
    """A history up to the time of the point in another run of the tree.

    A run that waits for the one with the point is taken as it is then. One that runs beside it goes on to its next
    state that is complete, or to its end.
    """
    resting = [task for task in workflow_tasks(events) if task.rests]
    if fork.is_above:
        ends = [task.end for task in resting if task.at <= at] or [task.end for task in resting[:1]]
        if not ends:
            raise InvalidInput(f"{fork.run} can't be forked at {at}: it has done nothing yet")
        return events[: ends[-1]]
    return events[: next((task.end for task in resting if task.at >= at), len(events))]


FORKED = "forked"
"""The part of the id of a charge that an activity's id has in others: what was spent before the place of a fork."""


@dataclass
class _Calls:
    """The calls before a point: all of these executions, and of others the activities that have ended, by their ids."""

    executions: set[str]
    ended: set[tuple[str, str]]

    def has(self, call: str) -> bool:
        """Whether a call, by the id of its row, is one of them."""
        execution, activity_id, *_ = call.split("/")
        return execution in self.executions or (execution, activity_id) in self.ended


async def _spent(client: Client, run: str, events: Sequence[HistoryEvent], children: Collection[str]) -> _Calls:
    """The calls of a run, and of its child runs that have ended, before the end of ``events``.

    The ``children`` are forked, too, and count their own calls, unless they have completed: then there is nothing to go
    on with in them.
    """
    started = events[0].workflow_execution_started_event_attributes
    calls = _Calls(executions=set(), ended=_ended(events))
    histories = [events]
    while earlier := await execution_before(client, started):
        calls.executions.add(earlier)
        handle = client.get_workflow_handle(run, run_id=earlier)
        try:
            histories.append([event async for event in handle.fetch_history_events()])
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            break  # Temporal has deleted what was earlier
        calls.ended |= _ended(histories[-1])
        started = histories[-1][0].workflow_execution_started_event_attributes
    for history in histories:
        closed = {
            getattr(event, attributes).started_event_id: attributes
            for event in history
            if (attributes := event.WhichOneof("attributes")) in CLOSED_CHILD
        }
        for event in history:
            if event.event_id not in closed:
                continue
            child = event.child_workflow_execution_started_event_attributes.workflow_execution
            if child.workflow_id not in children or closed[event.event_id] == COMPLETED_CHILD:
                tree = await run_tree(client, child.workflow_id, child.run_id)
                calls.executions |= {execution.run_id for execution in tree}
    return calls


def _ended(events: Sequence[HistoryEvent]) -> set[tuple[str, str]]:
    """The activities of a history that have ended, each with the run id under which it was executed.

    The history of a run that was reset begins with that of the run before, whose activities have that one's id.
    """
    run_id = events[0].workflow_execution_started_event_attributes.original_execution_run_id
    scheduled: dict[int, ActivityTaskScheduledEventAttributes] = {}
    ended = set[tuple[str, str]]()
    for event in events:
        attributes = event.WhichOneof("attributes")
        if event.event_type == ACTIVITY_SCHEDULED:
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes
        elif attributes in CLOSED_ACTIVITY:
            activity_id = scheduled[getattr(event, attributes).scheduled_event_id].activity_id
            ended |= {(run_id, activity_id), (run_id, FORKED)}
        elif event.event_type == TASK_FAILED:
            run_id = event.workflow_task_failed_event_attributes.new_run_id or run_id
    return ended


async def execution_before(client: Client, started: WorkflowExecutionStartedEventAttributes) -> str:
    """The run id of the execution from which one has continued, or which it retries; empty if there is none."""
    if started.continued_execution_run_id:
        return started.continued_execution_run_id
    (run_input,) = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
    retried = run_input.get("retries")
    return retried if isinstance(retried, str) else ""


def _before_next_turn(carried: Continuation, fork: Fork) -> Continuation:
    """The state without a turn that has begun but not called anything yet; messages of people to it are unread again.

    After a failure, whose turn it is stands. Before, the strategy chooses again, as the manifests may differ.
    """
    state = carried.state
    turn = state.interrupted_turn if isinstance(state, TeamState) else None
    if turn is None or turn.model_calls or not isinstance(state, TeamState):
        return carried
    said = (item for item in turn.pending if isinstance(item, Message) and item.role == "user")
    unread = [SteerRequest(text=message.content, name=message.name or "user") for message in said]
    waiting = (*unread, *(carried.inbox.waiting if carried.inbox else ()))
    member = None if fork.point else state.interrupted_member
    return carried.with_state(state.before_turn(member)).with_unread(waiting)


def _said(carried: Continuation, fork: Fork) -> Continuation:
    """The state with the message of a person that the fork brings to this run."""
    if fork.say is None or not fork.has_point:
        return carried
    return carried.with_unread((*(carried.inbox.waiting if carried.inbox else ()), fork.say))


def _children(fork: Fork, events: Sequence[HistoryEvent], carried: Continuation) -> dict[str, Fork]:
    """The runs from which the children of the fork go on, by the ids of the children of the forked run.

    A child may have ended without its result being part of the state: in a parallel team, and beside other tool calls.
    In a round of a panel it may not, and its id may be that of the next turn of the same member.
    """
    children = {**carried.forks}
    for run, run_id in carried.unfinished.items():
        children[run] = fork.of_child(run, run_id)
    is_open = dict[int, bool]()
    for event in events:
        attributes = event.WhichOneof("attributes")
        if event.event_type == CHILD_STARTED:
            is_open[event.event_id] = True
        elif attributes in CLOSED_CHILD:
            is_open[getattr(event, attributes).started_event_id] = False
    call = _open_call(carried.state)
    for event in events:
        if event.event_type != CHILD_STARTED:
            continue
        started = event.child_workflow_execution_started_event_attributes
        run = started.workflow_execution.workflow_id
        place = run[len(fork.run) + 1 :]
        is_stale = place.startswith("round-") or (place.startswith("call-") and not (call and place.startswith(call)))
        if started.workflow_type.name in OWN_WORKFLOWS and (is_open[event.event_id] or not is_stale):
            children[run] = fork.of_child(run, started.workflow_execution.run_id)
    return children


def _open_call(state: State) -> str:
    """The beginning of the places of child runs that tool calls in progress have started; empty without such calls."""
    turn: State | None = state
    if isinstance(state, TeamState):
        turn = state.interrupted_turn
    elif isinstance(state, QueryState):
        turn = state.turn
    if not isinstance(turn, AgentState) or turn.reply is None:
        return ""
    return f"call-{turn.reply.head.id.split('/')[-2]}-"


CHANGEABLE = ("Agent", "Team", "Model", "Tool", "Query")
"""The kinds of manifests whose fields a fork can change by their names."""


def changed_manifests(catalog: Catalog, changes: JsonObject) -> tuple[JsonObject, ...]:
    """The manifests of a catalog in which some fields have other values, by ``NAME.FIELD`` or ``KIND/NAME.FIELD``.

    ``FIELD`` is a field of the spec, or leads to one, as in ``members.0.name``. Raises InvalidInput if there is no such
    manifest, or if several kinds have one of that name.
    """
    changed: dict[str, JsonObject] = {}
    for place, value in changes.items():
        manifest, path = _field(catalog, place)
        document = changed.setdefault(manifest.id, manifest.model_dump(mode="json", by_alias=True, exclude_unset=True))
        _set(document["spec"], path, value, place)
    return (*changed.values(),)


def field_of(catalog: Catalog, place: str) -> JsonValue:
    """The value of a field by its place, as in ``changed_manifests``: null if it is not set, or is not there."""
    try:
        manifest, path = _field(catalog, place)
    except InvalidInput:
        return None
    value: JsonValue = manifest.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _field(catalog: Catalog, place: str) -> tuple[Resource, list[str]]:
    """The manifest and the path of a field in its spec."""
    kind, slash, rest = place.rpartition("/")
    found: dict[str, tuple[Resource, list[str]]] = {}
    for manifest in catalog.manifests:
        is_kind = kind.lower() == manifest.kind.lower() if slash else manifest.kind in CHANGEABLE
        if is_kind and rest.startswith(f"{manifest.name}."):
            found[manifest.id] = manifest, rest[len(manifest.name) + 1 :].split(".")
    if len(found) > 1:
        raise InvalidInput(
            f"'{place}' may be a field of {' or '.join(found)}: begin with the kind, as in agent/NAME.FIELD"
        )
    if not found:
        names = sorted(manifest.name for manifest in catalog.manifests if manifest.kind in CHANGEABLE)
        raise InvalidInput(f"'{place}' is not a field of a manifest of the forked run; it has {', '.join(names)}")
    return next(iter(found.values()))


def _set(value: JsonValue, path: Sequence[str], new: JsonValue, place: str) -> None:
    """Sets a field below a value, or removes it (null)."""
    *parents, last = path
    for step in parents:
        if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict):
            value = value.setdefault(step, {})
        else:
            raise InvalidInput(f"'{place}': there is no field '{step}'")
    if isinstance(value, list) and last.isdecimal() and int(last) < len(value):
        value[int(last)] = new
    elif isinstance(value, dict) and new is None:
        value.pop(last, None)
    elif isinstance(value, dict):
        value[last] = new
    else:
        raise InvalidInput(f"'{place}': there is no field '{last}'")
