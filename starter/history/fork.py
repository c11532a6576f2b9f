"""Forks runs: finds a place in a run by its name, and starts a new run that goes on from there."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from pydantic import JsonValue
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
)
from temporalio.common import Priority, TypedSearchAttributes, WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from ...contracts.control_messages import SteerRequest
from ...contracts.inputs import Fork, ForkPoint, ForkRequest
from ...resources.base import JsonObject
from ...temporal.client import PROGRAM, WORKFLOW_TASK_TIMEOUT
from ...temporal.executions import execution_chain, memo_of
from ...temporal.histories import WorkflowTask, workflow_task_of, workflow_tasks
from ..runs.listing import FORKED_AT, FORKED_FROM
from ..runs.runs import CATALOG, RunHandle
from ..runs.start import NotForkedError, new_run_id, to_json
from .events import (
    Event,
    ModelAnsweredEvent,
    ModelCalledEvent,
    RunStartedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
)
from .pages import turn_events
from .stream import stream_events

FAILURE = "failure"
"""The name of the place before the call that has failed."""

MAX_PLACE = 1_000
"""Characters of the name of a place. It may begin with the id of a child run, of which Temporal allows no more."""


@dataclass(frozen=True)
class ForkChanges:
    """What differs in a fork.

    ``say`` is the message of a person, ``session`` are values of the session, ``resources`` manifests, and ``fields``
    new values of fields of manifests, as ``{"NAME.FIELD": value}``.
    """

    say: SteerRequest | None = None
    session: JsonObject = field(default_factory=dict)
    resources: Sequence[JsonObject] = ()
    fields: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class ForkSource:
    """A run with a place in it, found once, from which any number of runs go on."""

    run: WorkflowExecutionDescription
    run_input: JsonObject
    fork: Fork
    at: str


async def fork_run(
    client: Client,
    handle: RunHandle,
    at: str,
    changes: ForkChanges,
    run_id: str | None = None,
    *,
    memo: Mapping[str, str] | None = None,
    attributes: TypedSearchAttributes = TypedSearchAttributes.empty,
) -> RunHandle:
    """Finds a place in a run, and starts a run that goes on from there. Raises as the two functions that it calls."""
    source = await find_source(client, handle, at)
    return await start_fork(client, source, changes, run_id, memo=memo, attributes=attributes)


async def find_source(client: Client, handle: RunHandle, at: str) -> ForkSource:
    """A place in a run. ``at`` is a name as for ``find_point``, or ``failure``.

    Raises NotForkedError if the run is a child of another run of Baton, or has no such place.
    """
    source = await handle.describe()
    run_input = await _input(client, handle.id, source.run_id)
    if source.parent_id and "thread" in run_input:
        root = handle.id.partition("/")[0]
        raise NotForkedError(f"{handle.id} is a child of {source.parent_id}: fork {root}, at a place in this run")
    if at == FAILURE:
        if source.status is not WorkflowExecutionStatus.FAILED:
            raise NotForkedError(f"{handle.id} has not failed: name a turn")
        fork = Fork(run=handle.id, run_id=source.run_id)
    else:
        fork = await _find(client, handle.id, source.run_id, at)
    return ForkSource(run=source, run_input=run_input, fork=fork, at=at)


async def start_fork(
    client: Client,
    source: ForkSource,
    changes: ForkChanges,
    run_id: str | None = None,
    *,
    memo: Mapping[str, str] | None = None,
    attributes: TypedSearchAttributes = TypedSearchAttributes.empty,
) -> RunHandle:
    """Starts a run that goes on from a place in another run, which does not change. Its workers read that run.

    ``memo`` are more entries of the new run's memo, and ``attributes`` its first search attributes. Raises Temporal's
    WorkflowAlreadyStartedError if there is or was a run with the id ``run_id``.
    """
    forked, run_input = source.run, source.run_input
    name = run_input.get("name") or run_input.get("team") or run_input.get("agent")
    kept_fields = ("name", "team", "agent", "model", "tool", "namespace")
    new_input: JsonObject = {key: run_input[key] for key in kept_fields if key in run_input}
    old = await memo_of(forked)
    kept = {key: old[key] for key in ("query", "namespace", CATALOG) if key in old}
    fork = Fork(run=source.fork.run, run_id=source.fork.run_id, point=source.fork.point, say=changes.say)
    request = ForkRequest(fork=fork.without_defaults, at=source.at, changes=changes.fields)
    new_input["forks"] = to_json(request.without_defaults)
    if changes.resources:
        new_input["resources"] = [*changes.resources]
    if changes.session:
        new_input["session"] = changes.session
    return await client.start_workflow(
        forked.workflow_type,
        new_input,
        id=run_id or new_run_id(str(name or "fork")),
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        task_queue=forked.task_queue,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
        memo={**kept, FORKED_FROM: forked.id, FORKED_AT: source.at, **(memo or {})},
        static_summary=await forked.static_summary(),
        search_attributes=attributes,
        priority=Priority(
            priority_key=forked.raw_info.priority.priority_key or None,
            fairness_key=forked.raw_info.priority.fairness_key or None,
        ),
    )


def why_fork_waits(source: WorkflowExecutionDescription) -> str | None:
    """Why no worker executes the forks of a run, and what to do; None if workers do."""
    if PROGRAM not in source.task_queue:
        return None
    return "it calls functions of a program, which executes it as soon as it calls baton.attach(ID, functions=[…])"


async def _input(client: Client, run: str, run_id: str) -> JsonObject:
    """The input of the first execution of a run."""
    (_, started), *_ = await execution_chain(client, run, run_id)
    (run_input,) = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
    return dict(run_input)


async def _find(client: Client, run: str, run_id: str, at: str) -> Fork:
    """The fork at a place in a run, or in the failed run that it retries. Raises NotForkedError."""
    try:
        point = await find_point(client, client.get_workflow_handle(run, run_id=run_id), at)
    except NotForkedError as error:
        run_input = await _input(client, run, run_id)
        retried, forks = run_input.get("retries"), run_input.get("forks")
        if isinstance(retried, str):
            last = await last_execution(client, run, retried)
            return await _find(client, run, last, at)
        if forks:
            before = ForkRequest.model_validate(forks)
            text = f"{run} was forked from {before.fork.run} at {before.at}: earlier steps are in that run"
            raise NotForkedError(f"{error}; {text}") from None
        raise
    chain = await execution_chain(client, run, run_id)
    return Fork(run=run, run_id=chain[0][0], point=point)


async def last_execution(client: Client, run: str, run_id: str) -> str:
    """The run id of the last execution of a run, by that of its first one. Raises RPCError."""
    while True:
        handle = client.get_workflow_handle(run, run_id=run_id)
        described = await handle.describe()
        if described.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return run_id
        async for event in handle.fetch_history_events(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT):
            run_id = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


async def find_point(client: Client, handle: RunHandle, at: str) -> ForkPoint:
    """The place in a run with that name: the turns, rounds and calls are named as events and transcripts name them.

    ``3`` or ``turn-3`` is the place after turn 3 of the run's team or agent, ``0`` that before the first turn.
    ``round-2/NAME`` is that after the turn of a speaker in a round of a panel. After the turn of a nested team, more of
    the same name a place in it, as in ``2/1``. ``3/call-1`` is the place after the first answer of the model in turn 3,
    before its tool calls, and ``3/call-1/tools`` that after them. Of several targets, ``target-2`` chooses one.

    Raises NotForkedError.
    """
    if len(at) > MAX_PLACE:
        raise NotForkedError(f"the name of a place has at most {MAX_PLACE:,} characters")
    place, history = await _find_in_turn(client, handle, at) or (None, ())
    if place is None:
        events: list[Event] = []
        async with aclosing(stream_events(client, handle, wait=False, live=False)) as stream:
            async for event in stream:
                events.append(event)
        place = _Places(handle.id, events).find(at)
    execution, number = place.event.id.rsplit("/", 1)
    event_id = int(number.partition(".")[0])
    if not history:
        read = client.get_workflow_handle(place.event.run, run_id=execution)
        history = [event async for event in read.fetch_history_events()]
    task = _task(history, event_id, before=place.before)
    if task is None:
        raise NotForkedError(f"{handle.id} has not continued past '{at}' yet: fork it later")
    return ForkPoint(run=place.event.run, run_id=execution, event=task.event, at=task.at)


async def _find_in_turn(client: Client, handle: RunHandle, at: str) -> "tuple[_Place, Sequence[HistoryEvent]] | None":
    """A place in a turn of the run's team, and the history in which it is, read without the rest of the run.

    None if it can't be found so: as it is below a child run, or in no turn.
    """
    match = re.fullmatch(r"(?:turn-)?([1-9]\d{0,8})(?:/call-\d+(?:/tools)?)?", at)
    turn = await turn_events(client, handle, int(match[1])) if match else None
    if turn is None:
        return None
    try:
        return _Places(handle.id, turn.events).find(at), turn.history
    except NotForkedError:
        return None  # the whole run tells why, or has it


def _task(history: Sequence[HistoryEvent], event: int, *, before: bool) -> WorkflowTask | None:
    """The workflow task that takes up an event; with ``before``, or if it is a command, the one that has caused it.

    A turn may have ended before what shows that it has, such as the first call of the next one.
    """
    cause = workflow_task_of(history[event - 1])
    tasks = [*workflow_tasks(history)]
    if before or cause:
        return next((task for task in reversed(tasks) if task.event <= (cause or event)), None)
    return next((task for task in tasks if task.event > event and task.rests), None)


@dataclass(frozen=True)
class _Place:
    """The place after an event, or ``before`` it."""

    event: Event
    before: bool = False


class _Places:
    """Finds places in a run by their names, in its events."""

    def __init__(self, root: str, events: Sequence[Event]) -> None:
        self._root = root
        self._events = events
        self._started = [event for event in events if isinstance(event, RunStartedEvent)]

    def find(self, at: str) -> _Place:  # noqa: C901  # one case for each kind of step
        """The place with that name. Raises NotForkedError."""
        run, steps = self._target([step for step in at.split("/") if step])
        turn: TurnStartedEvent | None = None
        while steps:
            if turn is None:
                run, steps = self._run_below(run, steps)
            step, *steps = steps
            if match := re.fullmatch(r"call-(\d{1,9})", step):
                return self._call(run, turn, int(match[1]), steps)
            if turn is not None:
                run, steps = self._below(run, turn, [step, *steps]), [step, *steps]
                if steps[0] == run.rpartition("/")[2] and len(steps) > 1:
                    steps = steps[1:]
                turn = None
                continue
            if re.fullmatch(r"call-\d+-\d+", step):
                run, steps = self._delegate(run, step, steps)
            elif match := re.fullmatch(r"(?:turn-)?(\d{1,9})", step):
                number = int(match[1])
                if number == 0 and not steps:
                    return _Place(self._first_call(run), before=True)
                turn = self._turn(run, lambda turn: turn.turn == number, step)  # noqa: B023  # called at once
            elif match := re.fullmatch(r"round-(\d{1,9})", step):
                number = int(match[1])
                if not steps:
                    raise NotForkedError(f"'{step}' is a round: name a speaker in it, as in {step}/NAME")
                speaker, *steps = steps
                turn = self._turn(
                    run,
                    lambda turn: turn.round == number and speaker in (turn.speaker, turn.part),  # noqa: B023
                    f"{step}/{speaker}",
                )
            else:
                raise NotForkedError(
                    f"'{step}' is not a turn: {self._turns(run)}; name a turn as in 3, round-2/NAME or 3/call-1"
                )
        if turn is None:
            raise NotForkedError(f"'{at}' names a run, and no turn in it: {self._turns(run)}")
        return _Place(self._end(run, turn))

    def _target(self, steps: list[str]) -> tuple[str, list[str]]:
        """The run in which turns are counted: that of the query's target, or the query's own."""
        targets = [event.run for event in self._started if event.run.startswith(f"{self._root}/target-")]
        targets = [run for run in targets if run.count("/") == self._root.count("/") + 2]
        if steps and re.fullmatch(r"target-\d+", steps[0]):
            step, *steps = steps
            run = next((run for run in targets if run.startswith(f"{self._root}/{step}/")), None)
            if run is None:
                raise NotForkedError(f"there is no '{step}' in {self._root}")
            return run, steps[1:] if steps and steps[0] == run.rpartition("/")[2] else steps
        if len(targets) > 1:
            named = ", ".join(run.split("/")[-2] for run in targets)
            raise NotForkedError(f"{self._root} has several targets: begin with one of {named}")
        return (targets[0] if targets else self._root), steps

    def _run_below(self, run: str, steps: list[str]) -> tuple[str, list[str]]:
        """The child run whose id the first steps are, as in ``turn-2/NAME`` and ``round-1/2/NAME``, and the others."""
        path = "/".join((run, *steps[:-1], ""))
        above = [event.run for event in self._started if path.startswith(f"{event.run}/")]
        below = max((each for each in above if each.startswith(f"{run}/")), key=len, default=run)
        return below, steps[below.count("/") - run.count("/") :]

    def _in(self, run: str) -> list[Event]:
        return [event for event in self._events if event.run == run]

    def _turn(self, run: str, matches: Callable[[TurnStartedEvent], bool], name: str) -> TurnStartedEvent:
        turns = [event for event in self._in(run) if isinstance(event, TurnStartedEvent) and matches(event)]
        if not turns:
            raise NotForkedError(f"there is no turn '{name}': {self._turns(run)}")
        return turns[-1]

    def _turns(self, run: str) -> str:
        turns = [event for event in self._in(run) if isinstance(event, TurnStartedEvent)]
        names = [
            f"round-{turn.round}/{turn.speaker}" if turn.round and not turn.turn else f"{turn.turn}" for turn in turns
        ]
        shown = names if len(names) < SHOWN_TURNS else [*names[: SHOWN_TURNS // 2], "…", *names[-SHOWN_TURNS // 2 :]]
        return f"{run} has the turns {', '.join(shown)}" if names else f"{run} has no turns yet"

    def _end(self, run: str, turn: TurnStartedEvent) -> Event:
        """The end of a turn. Raises NotForkedError if it has not ended."""
        since = self._after(run, turn)
        for event in since:
            if isinstance(event, TurnEndedEvent) and _key(event) == _key(turn):
                return event
        raise NotForkedError(f"the turn of {turn.speaker} has not ended: name a call in it, or fork it later")

    def _after(self, run: str, turn: Event) -> list[Event]:
        events = self._in(run)
        return events[next(index for index, event in enumerate(events) if event is turn) :]

    def _first_call(self, run: str) -> Event:
        first = next((event for event in self._in(run) if isinstance(event, ModelCalledEvent | TurnStartedEvent)), None)
        if first is None:
            raise NotForkedError(f"{run} has called nothing yet")
        return first

    def _call(self, run: str, turn: TurnStartedEvent | None, number: int, rest: Sequence[str]) -> _Place:
        """The place after a model's answer in a turn, or after the tool calls of that answer."""
        if turn is not None and turn.kind == "agent" and (own := self._run_of(run, turn)):
            run, turn = own, None  # a member of a parallel team has a run of its own
        scope = self._in(run) if turn is None else self._after(run, turn)
        if turn is not None:
            ends = (isinstance(event, TurnEndedEvent) and _key(event) == _key(turn) for event in scope)
            scope = scope[: next((index + 1 for index, ends_turn in enumerate(ends) if ends_turn), len(scope))]
        mine = [
            event
            for event in scope
            if isinstance(event, ModelCalledEvent) and (turn is None or _key(event) == _key(turn))
        ]
        calls = {event.call for event in mine}
        answers = [event for event in scope if isinstance(event, ModelAnsweredEvent) and event.call in calls]
        if not 0 < number <= len(answers):
            given = f"{len(answers)} answer{'' if len(answers) == 1 else 's'}"
            raise NotForkedError(f"there is no 'call-{number}': the model gave {given} there")
        if [*rest] == ["tools"]:
            place = scope.index(answers[number - 1])
            following = [event for event in scope[place:] if event in mine]
            if following:
                return _Place(following[0], before=True)
            return _Place(self._end(run, turn) if turn else answers[number - 1])
        if rest:
            raise NotForkedError(f"'{'/'.join(rest)}' is not part of a call: only 'tools' is")
        return _Place(answers[number - 1])

    def _run_of(self, run: str, turn: TurnStartedEvent) -> str | None:
        """The child run that takes a turn, if one does."""
        place = f"turn-{turn.turn}" if turn.turn else f"round-{turn.round}"
        return next(
            (
                event.run
                for event in self._started
                if event.parent == run and event.run.startswith(f"{run}/{place}/") and event.name == turn.speaker
            ),
            None,
        )

    def _below(self, run: str, turn: TurnStartedEvent, steps: Sequence[str]) -> str:
        """The run of a nested team that takes a turn."""
        child = self._run_of(run, turn)
        if child is None:
            text = f"{turn.speaker} is not a team, so its turn has only calls, as in call-1"
            raise NotForkedError(f"'{steps[0]}': {text}")
        return child

    def _delegate(self, run: str, step: str, rest: list[str]) -> tuple[str, list[str]]:
        """The run that a tool call has started."""
        child = next((event.run for event in self._started if event.run.startswith(f"{run}/{step}/")), None)
        if child is None:
            raise NotForkedError(f"no tool call has started a run '{step}' in {run}")
        return child, rest[1:] if rest and rest[0] == child.rpartition("/")[2] else rest


SHOWN_TURNS = 20
"""The number of turns that an error names."""


def _key(event: TurnStartedEvent | TurnEndedEvent | ModelCalledEvent) -> tuple[int | None, int | None, str]:
    """What identifies a turn among those of its run: its number, or in a panel its round, and the speaker."""
    return event.turn or None, None if event.turn else event.round, event.speaker
