"""Lists runs. It loads no types of runs and of manifests, as ``baton list`` is to start quickly."""

import asyncio
import bisect
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from ...contracts.scope import CALLER
from ...contracts.settings import SettingsError
from ...temporal import search_attributes
from ...temporal.client import PROGRAM
from ...temporal.executions import memo_of
from ...temporal.search_attributes import COST, PHASE, STRATEGY, TEAM, quoted, registered, root_runs, shows_forks
from ..text import format_age, format_duration

if TYPE_CHECKING:
    from ...resources.base import JsonObject


FORKED_FROM = "forkedFrom"
"""The memo entry of a fork with the id of the run that it has gone on from."""

FORKED_AT = "forkedAt"
"""The memo entry of a fork with the place in that run."""


class StartedRun(NamedTuple):
    """The last execution of a run, with the start and the run id of its first one, and whether it was reset.

    ``summary`` is its question, in one line and truncated, if it can be read. ``is_known`` is False if Temporal could
    not tell all of that.
    """

    start: datetime
    execution: WorkflowExecution
    first_run_id: str
    was_reset: bool = False
    summary: str = ""
    is_known: bool = True


CONCURRENT_STARTS = 20
"""How many executions are described at once for the lists that share a cache."""


class StartCache:
    """What never changes about executions, so that a list that is read often describes each of them once."""

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._known: dict[str, StartedRun] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_STARTS)

    async def get(self, client: Client, run: WorkflowExecution) -> StartedRun:
        """The same as ``started_run``."""
        known = self._known.get(run.run_id)
        if known is None:
            async with self._slots:
                known = await started_run(client, run)
            while len(self._known) >= self._size:
                del self._known[next(iter(self._known))]
            if known.is_known:
                self._known[run.run_id] = known
        return known._replace(execution=run)


async def newest_runs(
    client: Client,
    query: str,
    count: int,
    matches: Callable[[WorkflowExecution], Awaitable[bool]],
    limit: int | None = None,
    cache: StartCache | None = None,
) -> list[StartedRun]:
    """At most ``count`` matching runs of a visibility query, newest first.

    Temporal lists open runs by start time and closed runs by close time, newest first. From both lists it reads
    ``limit`` runs, or until no later entry can be newer than the matches so far. A run that continued as new is
    represented by its last execution, and so is one that was reset.
    """
    cache = cache or StartCache()
    newest: list[StartedRun] = []
    ids: set[str] = set()
    batch: list[WorkflowExecution] = []
    for status in ("= 'Running'", "!= 'Running'"):
        async for run in client.list_workflows(f"{query} AND ExecutionStatus {status}", limit=limit):
            if len(newest) == count and (run.close_time or run.start_time) < newest[-1].start:
                break
            is_earlier_execution = run.status == WorkflowExecutionStatus.CONTINUED_AS_NEW and run.id in ids
            if is_earlier_execution or not await matches(run):
                continue
            ids.add(run.id)
            batch.append(run)
            if len(batch) == count:
                newest, batch = await _newest(client, cache, newest, batch, count), []
        newest, batch = await _newest(client, cache, newest, batch, count), []
    return newest


async def _newest(
    client: Client, cache: StartCache, earlier: list[StartedRun], runs: list[WorkflowExecution], count: int
) -> list[StartedRun]:
    """The newest of the earlier runs and of others, whose start times are looked up at once."""
    started = [*earlier, *await asyncio.gather(*(cache.get(client, run) for run in runs))]
    # A run that closed between the two lists is in both of them. One that was reset has two executions.
    latest: dict[tuple[str, str], StartedRun] = {}
    for run in sorted(started, key=lambda run: run.execution.start_time):
        latest[run.execution.id, run.first_run_id] = run
    return sorted(latest.values(), key=lambda one: one.start, reverse=True)[:count]


async def started_run(client: Client, run: WorkflowExecution) -> StartedRun:
    """A run, by its last execution, with the start of its first one. A reset run has started when it was reset.

    It is the start time of this execution if Temporal has deleted the first.
    """
    first: str | None = None
    summary = ""
    with contextlib.suppress(RPCError):
        latest = await client.get_workflow_handle(run.id, run_id=run.run_id).describe()
        first = latest.raw_description.workflow_execution_info.first_run_id
        summary = await _summary(latest)
        following = first
        while following != run.run_id:
            described = await client.get_workflow_handle(run.id, run_id=following).describe()
            following = described.raw_description.workflow_extended_info.reset_run_id
            if not following:
                was_reset = described.run_id != first
                return StartedRun(described.start_time, run, first, was_reset=was_reset, summary=summary)
    return StartedRun(
        start=run.start_time,
        execution=run,
        first_run_id=first or run.run_id,
        was_reset=first not in (None, run.run_id),
        summary=summary,
        is_known=first is not None,
    )


async def _summary(described: WorkflowExecutionDescription) -> str:
    """The summary with which a run was started; empty if it is encrypted and the key is missing."""
    with contextlib.suppress(SettingsError, ApplicationError, KeyError, RuntimeError, ValueError):
        return await described.static_summary() or ""
    return ""


async def reset_time(client: Client, handle: WorkflowHandle[Any, Any]) -> datetime | None:
    """The time of a run's last reset; None if it was never reset. Raises RPCError."""
    started = await started_run(client, await handle.describe())
    return started.start if started.was_reset else None


@dataclass(frozen=True)
class ListedRun:
    """A root run. ``name`` and ``namespace`` are those of its Query, if its memo has them.

    ``parent`` is the id of the workflow of another application that has started it, if one has, and ``forked_from``
    that of the run that it has gone on from. ``team`` and ``strategy`` are those of its only target, if that is a team,
    ``cost`` is in US dollars, once it has ended, and ``question`` is its question in one line.
    """

    id: str
    name: str | None
    namespace: str | None
    type: str
    state: str
    start: datetime
    end: datetime | None
    parent: str | None = None
    forked_from: str | None = None
    team: str | None = None
    strategy: str | None = None
    cost: float | None = None
    question: str = ""
    memo: Mapping[str, object] = field(default_factory=dict)

    @property
    def duration(self) -> timedelta:
        """The time between its start and its end, or until now."""
        return (self.end or datetime.now(UTC)) - self.start

    @property
    def value(self) -> "JsonObject":
        """The run as JSON."""
        from ...contracts.text import format_time  # noqa: PLC0415  # a table does not need it

        value: JsonObject = {
            "id": self.id,
            "name": self.name,
            "namespace": self.namespace,
            "type": self.type,
            "state": self.state,
            "parent": self.parent,
            "forkedFrom": self.forked_from,
            "startTime": format_time(self.start),
            "completionTime": format_time(self.end) if self.end else None,
            "durationSeconds": round(self.duration.total_seconds(), 3),
        }
        return {key: item for key, item in value.items() if item is not None}

    @property
    def row(self) -> tuple[str, ...]:
        """The run as the cells of a table, in the order of COLUMNS."""
        return self.id, self.type, self.state, format_duration(self.duration), format_age(self.start)

    @property
    def wide_row(self) -> tuple[str, ...]:
        """The run as the cells of a table, in the order of WIDE_COLUMNS."""
        return (*self.row, *(text or "-" for text in (self.name, self.namespace, self.parent, self.forked_from)))


async def shown_roots(client: Client, queue: str | None) -> str:
    """The filter for the root runs that commands show: all of the namespace, such as those on an application's queue.

    With ``queue``, or the setting BATON_TASK_QUEUE, only those of one task queue, and those that programs execute with
    functions of their own.
    """
    roots = await root_runs(client)
    if queue := queue or os.environ.get("BATON_TASK_QUEUE"):
        return f"(TaskQueue = {quoted(queue)} OR TaskQueue STARTS_WITH {quoted(queue + PROGRAM)}) AND {roots}"
    return roots


COLUMNS = "ID", "TYPE", "STATE", "DURATION", "AGE"
WIDE_COLUMNS = (*COLUMNS, "QUERY", "NAMESPACE", "PARENT", "FORKED FROM")


ENDS = {
    "Completed": "ExecutionStatus = 'Completed'",
    "Failed": (
        "(ExecutionStatus IN ('Terminated', 'TimedOut') OR (ExecutionStatus = 'Failed' "
        f"AND ({PHASE.name} IS NULL OR {PHASE.name} != 'Canceled')))"
    ),
    "Canceled": f"(ExecutionStatus = 'Canceled' OR (ExecutionStatus = 'Failed' AND {PHASE.name} = 'Canceled'))",
}
"""The filters for the runs that have ended, by phase: Temporal may have closed one that could not say so itself.

A run that is canceled by a signal is closed as failed: Temporal closes a run as canceled only if it has asked for that.
"""

MAX_SEARCHED = 2_000
"""The most open runs, and the most closed ones, that are searched for a page."""


@dataclass(frozen=True)
class RunFilter:
    """Which runs are listed: those that fit everything that is not None.

    ``text`` is a part of the id, the name, the team or the question, in upper or lower case, and ``caller`` the name of
    the caller that has started the run over a gateway. ``started_after`` is included, and ``started_before`` is not.
    """

    team: str | None = None
    strategy: str | None = None
    phase: str | None = None
    text: str | None = None
    caller: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None

    @property
    def needs_attributes(self) -> bool:
        """Whether the server has to have Baton's search attributes."""
        return bool(self.team or self.strategy or self.phase)

    @property
    def query(self) -> str:
        """What Temporal itself can filter, as a visibility query; it begins with ``AND``, or is empty."""
        parts = [
            f"{key.name} = {quoted(value)}" for key, value in ((TEAM, self.team), (STRATEGY, self.strategy)) if value
        ]
        if self.phase in ENDS:
            parts.append(ENDS[self.phase])
        elif self.phase:
            parts.append(f"ExecutionStatus = 'Running' AND {PHASE.name} = {quoted(self.phase)}")
        if self.started_after:
            parts.append(f"StartTime >= '{self.started_after.isoformat()}'")
        if self.started_before:
            parts.append(f"StartTime < '{self.started_before.isoformat()}'")
        return "".join(f" AND {part}" for part in parts)

    def fits_text(self, run: ListedRun) -> bool:
        """Whether the run has the text."""
        fields = (run.id, run.name or "", run.team or "", run.question)
        return not self.text or any(self.text.casefold() in each.casefold() for each in fields)


class NotFilterableError(Exception):
    """The server lacks the search attributes by which runs are filtered."""


async def recent_runs(
    client: Client,
    namespace: str | None,
    limit: int,
    queue: str | None = None,
    *,
    visible: Callable[[Mapping[str, object]], Awaitable[bool]] | None = None,
    cache: StartCache | None = None,
    forked_from: str | None = None,
    owner: str | None = None,
) -> list[ListedRun]:
    """The newest root runs, at most ``limit``; with a ``namespace``, only those of its Queries.

    ``queue`` is that of ``shown_roots``. Only runs are listed for whose memo ``visible`` is true, and with
    ``forked_from`` only forks of that run. With ``owner``, Temporal leaves out those that have another digest of a
    caller: those without one may have been started before there were any. A ``cache`` is for lists that are read often.
    """

    async def matches(run: WorkflowExecution) -> bool:
        if namespace is None and visible is None and forked_from is None:
            return True
        memo = await _memo(run)
        if forked_from not in (None, memo.get(FORKED_FROM)):
            return False
        return namespace in (None, memo.get("namespace")) and (visible is None or await visible(memo))

    roots = await shown_roots(client, queue)
    if forked_from and await shows_forks(client):
        roots = f"{roots} AND {search_attributes.FORKED_FROM.name} = {quoted(forked_from)}"
    runs = await newest_runs(client, f"{roots}{_owned(owner)} AND {LAST}", limit, matches, cache=cache)
    return [await _describe(run) for run in runs]


LAST = "ExecutionStatus != 'ContinuedAsNew'"
"""The filter for the last of the executions of a run."""


def _owned(owner: str | None) -> str:
    """The filter for the runs of the caller with a digest, and for those without one; empty without an ``owner``."""
    name = search_attributes.CALLER.name
    return f" AND ({name} = {quoted(owner)} OR {name} IS NULL)" if owner else ""


@dataclass(frozen=True)
class RunPage:
    """Runs of a list, the newest first. Older ones have started before ``before``; None if there are none."""

    runs: list[ListedRun]
    before: datetime | None


async def search_runs(
    client: Client,
    limit: int,
    queue: str | None,
    *,
    visible: Callable[[Mapping[str, object]], Awaitable[bool]],
    chosen: RunFilter,
    cache: StartCache,
    owner: str | None = None,
    most: int = MAX_SEARCHED,
) -> RunPage:
    """A page of the newest root runs that are ``chosen``, at most ``limit``; the rest is as in ``recent_runs``.

    At most ``most`` open runs and as many closed ones are searched, and those that were open at the time before which
    they have to have started. Raises NotFilterableError.
    """
    if chosen.needs_attributes and not await registered(client):
        raise NotFilterableError("the server lacks Baton's search attributes, by which runs are filtered")

    async def matches(run: WorkflowExecution) -> bool:
        memo = await _memo(run)
        if chosen.caller not in (None, memo.get(CALLER)) or not await visible(memo):
            return False
        return not chosen.text or chosen.fits_text(await _describe(await cache.get(client, run)))

    query = f"{await shown_roots(client, queue)}{_owned(owner)} AND {LAST}{chosen.query}"
    runs, before = await _search(client, query, limit, matches, most, chosen.started_before)
    started = await asyncio.gather(*(cache.get(client, run) for run in runs))
    listed = [await _describe(run) for run in sorted(started, key=lambda run: run.start, reverse=True)]
    return RunPage(listed, before)


async def _search(
    client: Client,
    query: str,
    limit: int,
    matches: Callable[[WorkflowExecution], Awaitable[bool]],
    most: int,
    end: datetime | None,
) -> tuple[list[WorkflowExecution], datetime | None]:
    """The newest matching runs of a query for runs that have started before its ``end``, as ``search_runs`` counts.

    Also the time since which all runs are searched; None if older ones are, too.
    """
    found: dict[str, WorkflowExecution] = {}
    newest: list[datetime] = []  # the starts of at most ``limit`` runs, in order
    since: datetime | None = None
    for status in ("= 'Running'", "!= 'Running'"):
        left = most
        async for run in client.list_workflows(f"{query} AND ExecutionStatus {status}"):
            place = run.close_time or run.start_time  # what follows in the list has not started later
            if left == 0 or (len(newest) == limit and place < newest[0]):
                since = max(since or place, place + timedelta(microseconds=1))
                break
            left -= end is None or place < end
            if not await matches(run):
                continue
            other = found.get(run.id)
            if other is None or other.start_time < run.start_time:  # it has closed meanwhile, or was reset
                found[run.id] = run
                bisect.insort(newest, run.start_time)
                del newest[:-limit]
    runs = sorted(found.values(), key=lambda run: run.start_time, reverse=True)
    runs = [run for run in runs if since is None or run.start_time >= since]
    if len(runs) > limit:
        return runs[:limit], runs[limit - 1].start_time
    return runs, since


class ChangePlace(NamedTuple):
    """The place of a run among others: by the time of its last change, and then by its id."""

    at: datetime
    id: str


def change_of(run: WorkflowExecution | ListedRun) -> ChangePlace:
    """The end of a closed run; of an open one, Temporal's list knows only when its last execution has started."""
    if isinstance(run, ListedRun):
        return ChangePlace(run.end or run.start, run.id)
    return ChangePlace(run.close_time or run.start_time, run.id)


async def changed_runs(
    client: Client,
    limit: int,
    queue: str | None,
    *,
    matches: Callable[[ListedRun], Awaitable[bool]],
    after: ChangePlace | None = None,
    owner: str | None = None,
) -> tuple[list[ListedRun], ChangePlace | None]:
    """At most ``limit`` root runs that match, the one that has changed last first; the rest is as in ``recent_runs``.

    They begin after a place. At most MAX_SEARCHED runs are searched. Their ``start`` is that of their last execution,
    and they have no question: nothing but Temporal's list is read. Also the place after which the others begin; None if
    there are none.
    """
    roots = f"{await shown_roots(client, queue)}{_owned(owner)} AND {LAST}"
    lists = []
    for status, time in (("= 'Running'", "StartTime"), ("!= 'Running'", "CloseTime")):
        # Temporal's times have nanoseconds.
        until = f" AND {time} <= '{(after.at + timedelta(microseconds=1)).isoformat()}'" if after else ""
        lists.append(client.list_workflows(f"{roots} AND ExecutionStatus {status}{until}"))
    found: dict[str, ListedRun] = {}
    searched = 0
    place = after
    async for run in _merged(lists):
        if after and change_of(run) >= after:
            continue
        if len(found) == limit or searched == MAX_SEARCHED:
            return [*found.values()], place
        searched += 1
        place = change_of(run)
        listed = await _describe(StartedRun(run.start_time, run, run.run_id))
        if listed.id not in found and await matches(listed):  # an earlier execution was reset
            found[listed.id] = listed
    return [*found.values()], None


async def _merged(lists: Sequence[AsyncIterator[WorkflowExecution]]) -> AsyncIterator[WorkflowExecution]:
    """The runs of lists, each of which is in the order of changes, in that order."""
    heads = [(run, each) for each in lists if (run := await anext(each, None))]
    while heads:
        heads.sort(key=lambda head: change_of(head[0]))
        run, following = heads.pop()
        yield run
        if next_run := await anext(following, None):
            heads.append((next_run, following))


async def _describe(started: StartedRun) -> ListedRun:
    run = started.execution
    memo = await _memo(run)
    name, namespace = (str(memo[key]) if key in memo else None for key in ("query", "namespace"))
    forked_from = str(memo[FORKED_FROM]) if FORKED_FROM in memo else None
    state = run.status.name.replace("_", " ").capitalize() if run.status else "Unknown"
    phase = run.typed_search_attributes.get(PHASE)
    if state == "Running" and phase in ("Paused", "InputRequired", "Waiting"):
        state = phase
    if state == "Failed" and phase == "Canceled":  # by a signal, so Temporal does not know of a cancellation
        state = phase
    attributes = run.typed_search_attributes
    return ListedRun(
        id=run.id,
        name=name,
        namespace=namespace,
        type=run.workflow_type,
        state=state,
        start=started.start,
        end=run.close_time,
        parent=run.parent_id,
        forked_from=forked_from,
        team=attributes.get(TEAM),
        strategy=attributes.get(STRATEGY),
        cost=attributes.get(COST),
        question=started.summary,
        memo=memo,
    )


async def _memo(run: WorkflowExecution) -> Mapping[str, object]:
    """The memo; empty if it is encrypted and the key is missing, so that the run is listed without its name."""
    with contextlib.suppress(SettingsError):
        return await memo_of(run)
    return {}


async def open_runs(client: Client, limit: int = 3) -> list[str]:
    """The ids of the newest open root runs, at most ``limit``."""
    query = f"ExecutionStatus = 'Running' AND {await root_runs(client)}"
    return [run.id async for run in client.list_workflows(query, limit=limit)]
