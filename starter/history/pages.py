"""Pages of a run's events: the newest ones, those before or after a place, and those from a turn on.

A page costs what is in it, however long the run is: its place is found in the histories from their end, without
decoding them, and its events are those that a reader of the whole run receives.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client
from temporalio.converter import DataConverter

from ...contracts.decisions import AskPersonRequest
from ...contracts.inputs import Continuation, PanelProgress, TeamState
from ...contracts.panel import PerformRequest
from ...contracts.requests import AskModelRequest
from ...resources.strategies import RUN_TYPES
from ...temporal.executions import Started, execution_chain
from ...temporal.histories import decode_payload
from ..runs.runs import RunHandle
from .decoder import CHILD_ENDS, HistoryDecoder, carried_state, event_attributes
from .events import Event, RoundStartedEvent, RunStartedEvent, TurnStartedEvent
from .follow import CursorError, Place, read_cursor, write_cursor
from .run_events import REQUEST_TYPES, RunInfo
from .stream import stream_events
from .translator import EventTranslator

EVENTS_OF = {
    "activity_task_scheduled": 1,
    "activity_task_completed": 3,
    "activity_task_failed": 1,
    "marker_recorded": 1,
    "workflow_execution_signaled": 1,
    "workflow_execution_update_accepted": 1,
}
"""About how many events of a run come from a history event. A page may have fewer than were asked for."""

TURN_REQUESTS = (AskModelRequest, PerformRequest, AskPersonRequest)
"""The requests of the calls in which a member of a team speaks."""

HISTORY_PAGE = 500
"""History events that are read at once from the end of a history."""


@dataclass(frozen=True)
class Page:
    """Consecutive events of a run.

    ``before`` is the cursor of the place before them; None at the beginning of the run. ``after`` is the one after
    them. ``more``: there may be events after them already.
    """

    events: list[Event]
    before: str | None
    after: str | None
    more: bool


async def page_before(client: Client, handle: RunHandle, count: int, before: str | None = None) -> Page:
    """The last ``count`` events, at most, before a cursor, or of all. Raises CursorError and RPCError."""
    newest = handle.run_id or (await handle.describe()).run_id
    chain = await execution_chain(client, handle.id, newest)
    end = _place_in(chain, before)
    until = before
    while True:
        begin = await _Search(client, count).back(handle.id, chain, end)
        start = write_cursor(chain[begin.execution][0], begin) if begin else None
        events = await _read(client, handle, start, until)
        if events or begin is None:
            break
        end = begin  # nothing was there that is an event
        until = start
    kept = events[-count:]
    if len(kept) < len(events):
        start = events[-count - 1].cursor
    return Page(events=kept, before=start, after=kept[-1].cursor if kept else before, more=before is not None)


async def page_after(client: Client, handle: RunHandle, count: int, after: str) -> Page:
    """The first ``count`` events, at most, after a cursor. Raises CursorError and RPCError."""
    return await _first(_forward(client, handle, after), count, after)


async def page_from(
    client: Client, handle: RunHandle, count: int, *, turn: int | None = None, round_: int | None = None
) -> Page:
    """The events from a turn, or a round, of the run's team on, at most ``count``; none if it has not begun.

    The team is the run's own, or the first one that its query asks. Raises RPCError.
    """
    newest = handle.run_id or (await handle.describe()).run_id
    chain = await execution_chain(client, handle.id, newest)
    started = await _first_child(client, handle.id, chain[0][0]) if chain[0][1].workflow_type.name == "query" else None
    path = handle.id
    if started:
        start_event, team = started
        path = team.workflow_id
        number = await _execution_with(client, await _chain_of(client, team), turn, round_)
        start = write_cursor(chain[0][0], Place(event=start_event, children={start_event: Place(execution=number)}))
    else:
        number = await _execution_with(client, chain, turn, round_)
        start = write_cursor(chain[number][0], Place(execution=number))
    async with contextlib.aclosing(_forward(client, handle, start)) as events:
        async for event in events:
            if event.run == path and _begins(event, turn, round_):
                page = await _first(events, count - 1, event.cursor)
                return replace(page, events=[event, *page.events], before=start)
            start = event.cursor
    return Page(events=[], before=start, after=start, more=False)


@dataclass(frozen=True)
class TurnEvents:
    """The events of a turn, and the ``history`` of the execution that has them."""

    events: Sequence[Event]
    history: Sequence[HistoryEvent]


async def turn_events(client: Client, handle: RunHandle, turn: int) -> TurnEvents | None:
    """The events of one turn of the run's team, without those of child runs, up to the next turn's first call.

    Of the run, one execution is read, and of that only the turn is decoded. None where a turn can't be found so: in a
    panel, a query with several targets, or a turn at the same time as others. Raises RPCError.
    """
    newest = handle.run_id or (await handle.describe()).run_id
    chain = await execution_chain(client, handle.id, newest)
    path = handle.id
    if chain[0][1].workflow_type.name == "query":
        read = client.get_workflow_handle(path, run_id=chain[0][0])
        children = [child async for event in read.fetch_history_events() if (child := _started_child(event))]
        if len(children) != 1 or len(chain) > 1:
            return None
        path = children[0].workflow_id
        chain = await _chain_of(client, children[0])
    number = await _execution_with(client, chain, turn, None)
    read = client.get_workflow_handle(path, run_id=chain[number][0])
    history = [event async for event in read.fetch_history_events()]
    begins = [index for index, event in enumerate(history) if _may_begin_turn(event)]
    converter = client.data_converter
    first = await _first_of_turn(converter, history, begins, turn)
    if first is None or first == len(begins) or await _turn_of(converter, history[begins[first]]) != turn:
        return None
    later = await _first_of_turn(converter, history, begins, turn + 1)
    if later is None:
        return None
    end = begins[later] + 1 if later < len(begins) else len(history)
    decoder = HistoryDecoder(RunInfo(path, chain[0][0]), converter)
    carried = await carried_state(converter, chain[number][1])
    events: list[Event] = []
    before: Sequence[HistoryEvent] = ()
    translator = EventTranslator(decoder.run)
    if carried:
        for run_event in await decoder.begin_at(chain[number][0], chain[0][1], carried):
            events += translator.translate(run_event)
    else:
        before = history[: begins[0]]
    for event in (*before, *history[begins[first] : end]):
        made = [item for run_event in await decoder.decode(event) for item in translator.translate(run_event)]
        execution = decoder.run.run_id
        events += [item.placed(f"{execution}/{event.event_id}.{index}", "") for index, item in enumerate(made)]
    return TurnEvents(events, history)


async def _first_of_turn(
    converter: DataConverter, history: Sequence[HistoryEvent], begins: Sequence[int], turn: int
) -> int | None:
    """The number of the first of the events ``begins`` that belongs to a turn or to a later one; None if unknown."""
    low, high = 0, len(begins)
    while low < high:
        middle = (low + high) // 2
        number = await _turn_of(converter, history[begins[middle]])
        if number is None:
            return None
        if number < turn:
            low = middle + 1
        else:
            high = middle
    return low


def _may_begin_turn(event: HistoryEvent) -> bool:
    """Whether an event is a call of a speaker, or the start of a child run that takes a turn."""
    if event.HasField("activity_task_scheduled_event_attributes"):
        kind = REQUEST_TYPES.get(event.activity_task_scheduled_event_attributes.activity_type.name)
        return kind in TURN_REQUESTS
    child = _started_child(event)
    return child is not None and RunInfo(child.workflow_id, "").turn > 0


async def _turn_of(converter: DataConverter, event: HistoryEvent) -> int | None:
    """The turn to which such an event belongs; None in a panel."""
    if child := _started_child(event):
        return RunInfo(child.workflow_id, "").turn
    scheduled = event.activity_task_scheduled_event_attributes
    request = await decode_payload(converter, scheduled.input, REQUEST_TYPES[scheduled.activity_type.name])
    assert isinstance(request, TURN_REQUESTS)
    return None if request.brief else request.turn


async def first_runs(client: Client, handle: RunHandle) -> list[RunStartedEvent]:
    """The start of the run, and of the first child run that it has by now. Raises RPCError."""
    newest = handle.run_id or (await handle.describe()).run_id
    chain = await execution_chain(client, handle.id, newest)
    starts = list[RunStartedEvent]()
    async with contextlib.aclosing(_forward(client, handle, write_cursor(chain[0][0], Place()))) as events:
        async for event in events:
            if isinstance(event, RunStartedEvent):
                starts.append(event)
            if len(starts) == 2 or (starts and starts[0].kind != "query") or isinstance(event, TurnStartedEvent):
                break
    return starts


async def _first(events: AsyncGenerator[Event, None], count: int, after: str) -> Page:
    page = list[Event]()
    async with contextlib.aclosing(events):
        while len(page) < count and (event := await anext(events, None)):
            page.append(event)
    return Page(events=page, before=after, after=page[-1].cursor if page else after, more=len(page) == count)


async def _forward(client: Client, handle: RunHandle, after: str) -> AsyncGenerator[Event, None]:
    """The events after a cursor that exist already, read no further ahead than to the end of an execution."""
    newest = handle.run_id or (await handle.describe()).run_id
    chain = [run_id for run_id, _ in await execution_chain(client, handle.id, newest)]
    read_until = ""
    while True:
        run_id, place = read_cursor(after)
        before = after
        for end in [*_ends_after(place), None]:
            until = _cursor_of_end(chain, run_id, place, end) if end else None
            if until == read_until:
                continue
            stream = stream_events(client, handle, after, until=until, wait=False, live=False)
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    after = event.cursor
                    yield event
            read_until = until or ""
            if after != before or until is None:
                break
        if after == before or until is None:
            return


def _cursor_of_end(chain: Sequence[str], run_id: str, place: Place, end: Place) -> str | None:
    """The cursor of an end after a place in the execution ``run_id``; None for the end of what exists."""
    if end.execution == place.execution or run_id not in chain:  # a reset has replaced the execution
        return write_cursor(run_id, end)
    number = chain.index(run_id) + end.execution - place.execution
    return write_cursor(chain[number], end) if number < len(chain) else None


def _begins(event: Event, turn: int | None, round_: int | None) -> bool:
    if turn is not None:
        return isinstance(event, TurnStartedEvent) and event.turn == turn
    return isinstance(event, RoundStartedEvent) and event.round == round_


async def _read(client: Client, handle: RunHandle, after: str | None, until: str | None) -> list[Event]:
    return [event async for event in stream_events(client, handle, after, until=until, wait=False, live=False)]


Chain = list[tuple[str, Started]]
"""The run ids of the executions of a run, with the attributes of their starts."""


def _place_in(chain: Chain, cursor: str | None) -> Place | None:
    """The place of a cursor. That of an execution which a reset has replaced is where its copy begins."""
    if cursor is None:
        return None
    run_id, place = read_cursor(cursor)
    numbers = {chained: number for number, (chained, _) in enumerate(chain)}
    return replace(place, execution=numbers.get(run_id, min(place.execution, len(chain) - 1)))


def _ends_after(place: Place) -> list[Place]:
    """The next ends of executions after a place: of the open child runs, then of the run itself.

    What is read up to the first one is no more than an execution of each of them. At the place there may be nothing
    left of its execution: so the end of the following one is next.
    """
    ends = []
    if place.children:
        below = [_ends_after(child) for child in place.children.values()]
        for number in range(max(map(len, below))):
            children = {
                start: of_child[min(number, len(of_child) - 1)]
                for start, of_child in zip(place.children, below, strict=True)
            }
            ends.append(replace(place, children=children, calls={}))
    return [*ends, Place(execution=place.execution + 1), Place(execution=place.execution + 2)]


async def _execution_with(client: Client, chain: Chain, turn: int | None, round_: int | None) -> int:
    """The number of the execution in which a turn or a round of a team has begun."""
    low, high = 0, len(chain) - 1
    while low < high:
        middle = (low + high + 1) // 2
        carried = await carried_state(client.data_converter, chain[middle][1])
        if carried and _is_before(carried, turn, round_):
            low = middle
        else:
            high = middle - 1
    return low


def _is_before(carried: Continuation, turn: int | None, round_: int | None) -> bool:
    """Whether a state is from before the beginning of a turn or a round."""
    state = carried.state
    if not isinstance(state, TeamState):
        return False
    if turn is not None:
        return state.so_far.turns + (state.interrupted_member is not None) < turn
    if not state.strategy_state:
        return False
    return PanelProgress.model_validate(state.strategy_state).round < (round_ or 0)


async def _chain_of(client: Client, child: WorkflowExecution) -> Chain:
    """The executions of a child run; only the first one if another run has its id by now."""
    described = await client.get_workflow_handle(child.workflow_id).describe()
    is_same = described.raw_info.first_run_id == child.run_id
    return await execution_chain(client, child.workflow_id, described.run_id if is_same else child.run_id)


async def _first_child(client: Client, workflow_id: str, run_id: str) -> tuple[int, WorkflowExecution] | None:
    """The event that starts the first child run, and the ids of that."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=HISTORY_PAGE):
        started = _started_child(event)
        if started:
            return event.event_id, started
    return None


def _started_child(event: HistoryEvent) -> WorkflowExecution | None:
    """The ids of the child run that a history event starts."""
    name, started = event_attributes(event)
    is_run = name == "child_workflow_execution_started" and started.workflow_type.name in RUN_TYPES
    return started.workflow_execution if is_run else None


def _last_execution(workflow_id: str, chain: Chain, end: Place | None) -> int:
    """The number of the execution that has the ``end`` of a run, or of the last one. Raises CursorError."""
    number = end.execution if end else len(chain) - 1
    if number < len(chain):
        return number
    raise CursorError(f"the cursor is not of the run {workflow_id}, or its history was deleted")


class _Search:
    """Looks for a place that is about ``count`` events before another one."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self._count = count
        self._left = count

    async def back(self, workflow_id: str, chain: Chain, end: Place | None) -> Place | None:
        """The place in a run before its ``end``, or before its last event; None for the beginning of the run.

        Child runs that are open there are at a place in turn. It is never in the middle of the life of child runs that
        are read as a whole: they begin after it. Raises CursorError if the run has no such execution.
        """
        number = _last_execution(workflow_id, chain, end)
        last = end.event if end else None
        crossed: dict[int, Place | None] = dict(end.children) if end else {}
        cut: Place | None = None
        while True:
            async for event in self._backwards(workflow_id, chain[number][0]):
                if last is not None and event.event_id > last:
                    continue
                name, attributes = event_attributes(event)
                child = _started_child(event)
                if name in CHILD_ENDS and attributes.workflow_type.name in RUN_TYPES:
                    crossed[attributes.started_event_id] = None
                elif child and event.event_id in crossed:
                    search = self if len(crossed) == 1 else _Search(self._client, self._count)  # others are beside it
                    chain_of_child = await _chain_of(self._client, child)
                    place = await search.back(child.workflow_id, chain_of_child, crossed.pop(event.event_id))
                    if place and cut is None:
                        cut = Place(execution=number, event=event.event_id)
                    if cut:
                        cut.children[event.event_id] = place or Place()
                self._left -= EVENTS_OF.get(name, 0)
                if not crossed and (cut or self._left <= 0):
                    place = cut or Place(execution=number, event=event.event_id - 1)
                    return place if (place.execution, place.event) > (0, 0) else None
            if number == 0:
                return cut
            number -= 1
            last = None

    async def _backwards(self, workflow_id: str, run_id: str) -> AsyncIterator[HistoryEvent]:
        """The events of an execution, from the last one back."""
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
            maximum_page_size=HISTORY_PAGE,
        )
        while True:
            response: Any = await self._client.workflow_service.get_workflow_execution_history_reverse(
                request, retry=True
            )
            for event in response.history.events:
                yield event
            if not response.next_page_token:
                return
            request.next_page_token = response.next_page_token
