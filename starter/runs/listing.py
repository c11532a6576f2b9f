"""Lists runs. It loads no types of runs and of manifests, as ``baton list`` is to start quickly."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from ...contracts.settings import SettingsError
from ...temporal.client import PROGRAM
from ...temporal.executions import first_run_id, memo_of
from ...temporal.search_attributes import PHASE, root_runs
from ..text import format_age, format_duration

if TYPE_CHECKING:
    from ...resources.base import JsonObject


class StartedRun(NamedTuple):
    """The last execution of a run, with the start and the run id of its first one, and whether it was reset."""

    start: datetime
    execution: WorkflowExecution
    first_run_id: str
    was_reset: bool = False


async def newest_runs(
    client: Client,
    query: str,
    count: int,
    matches: Callable[[WorkflowExecution], Awaitable[bool]],
    limit: int | None = None,
) -> list[StartedRun]:
    """At most ``count`` matching runs of a visibility query, newest first.

    Temporal lists open runs by start time and closed runs by close time, newest first. From both lists it reads
    ``limit`` runs, or until no later entry can be newer than the matches so far. A run that continued as new is
    represented by its last execution, and so is one that was reset.
    """
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
                newest, batch = await _newest(client, newest, batch, count), []
        newest, batch = await _newest(client, newest, batch, count), []
    return newest


async def _newest(
    client: Client, earlier: list[StartedRun], runs: list[WorkflowExecution], count: int
) -> list[StartedRun]:
    """The newest of the earlier runs and of others, whose start times are looked up at once."""
    started = [*earlier, *await asyncio.gather(*(started_run(client, run) for run in runs))]
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
    with contextlib.suppress(RPCError):
        first = await first_run_id(client.get_workflow_handle(run.id, run_id=run.run_id))
        following = first
        while following != run.run_id:
            described = await client.get_workflow_handle(run.id, run_id=following).describe()
            following = described.raw_description.workflow_extended_info.reset_run_id
            if not following:
                return StartedRun(described.start_time, run, first, was_reset=described.run_id != first)
    return StartedRun(run.start_time, run, first or run.run_id, was_reset=first not in (None, run.run_id))


async def reset_time(client: Client, handle: WorkflowHandle[Any, Any]) -> datetime | None:
    """The time of a run's last reset; None if it was never reset. Raises RPCError."""
    started = await started_run(client, await handle.describe())
    return started.start if started.was_reset else None


@dataclass(frozen=True)
class ListedRun:
    """A root run. ``name`` and ``namespace`` are those of its Query, if its memo has them.

    ``parent`` is the id of the workflow of another application that has started it, if one has.
    """

    id: str
    name: str | None
    namespace: str | None
    type: str
    state: str
    start: datetime
    end: datetime | None
    parent: str | None = None

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
        return (*self.row, *(text or "-" for text in (self.name, self.namespace, self.parent)))


async def shown_roots(client: Client, queue: str | None) -> str:
    """The filter for the root runs that commands show: all of the namespace, such as those on an application's queue.

    With ``queue``, or the setting BATON_TASK_QUEUE, only those of one task queue, and those that programs execute with
    functions of their own.
    """
    roots = await root_runs(client)
    if queue := queue or os.environ.get("BATON_TASK_QUEUE"):
        return f"(TaskQueue = '{queue}' OR TaskQueue STARTS_WITH '{queue}{PROGRAM}') AND {roots}"
    return roots


COLUMNS = "ID", "TYPE", "STATE", "DURATION", "AGE"
WIDE_COLUMNS = (*COLUMNS, "QUERY", "NAMESPACE", "PARENT")


async def recent_runs(
    client: Client,
    namespace: str | None,
    limit: int,
    queue: str | None = None,
    *,
    visible: Callable[[Mapping[str, object]], Awaitable[bool]] | None = None,
) -> list[ListedRun]:
    """The newest root runs, at most ``limit``; with a ``namespace``, only those of its Queries.

    ``queue`` is that of ``shown_roots``. Only runs are listed for whose memo ``visible`` is true.
    """

    async def matches(run: WorkflowExecution) -> bool:
        if namespace is None and visible is None:
            return True
        memo = await _memo(run)
        return namespace in (None, memo.get("namespace")) and (visible is None or await visible(memo))

    roots = await shown_roots(client, queue)
    last = "ExecutionStatus != 'ContinuedAsNew'"  # of the executions of a run
    runs = await newest_runs(client, f"{roots} AND {last}", limit, matches)
    return [await _describe(run.execution, run.start) for run in runs]


async def _describe(run: WorkflowExecution, start: datetime) -> ListedRun:
    memo = await _memo(run)
    name, namespace = (str(memo[key]) if key in memo else None for key in ("query", "namespace"))
    state = run.status.name.replace("_", " ").capitalize() if run.status else "Unknown"
    phase = run.typed_search_attributes.get(PHASE)
    if state == "Running" and phase in ("Paused", "InputRequired", "Waiting"):
        state = phase
    return ListedRun(run.id, name, namespace, run.workflow_type, state, start, run.close_time, run.parent_id)


async def _memo(run: WorkflowExecution) -> Mapping[str, object]:
    """The memo; empty if it is encrypted and the key is missing, so that the run is listed without its name."""
    with contextlib.suppress(SettingsError):
        return await memo_of(run)
    return {}


async def open_runs(client: Client, limit: int = 3) -> list[str]:
    """The ids of the newest open root runs, at most ``limit``."""
    query = f"ExecutionStatus = 'Running' AND {await root_runs(client)}"
    return [run.id async for run in client.list_workflows(query, limit=limit)]
