"""Which runs are there? As Temporal's visibility lists them; no run and no history is asked."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from ...conversation.contracts.status import instant
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.temporal_client import task_queue
from ...resources.base import JsonObject
from ..text.units import format_duration
from .execution_chain import first_run_id


@dataclass(frozen=True)
class ListedRun:
    """A run that was started from outside. ``name`` is its Query's, as far as its client has told it."""

    id: str
    name: str | None
    namespace: str | None
    type: str
    state: str
    start: datetime
    end: datetime | None

    @property
    def duration(self) -> timedelta:
        """How long it has taken, or takes."""
        return (self.end or datetime.now(UTC)) - self.start

    @property
    def value(self) -> JsonObject:
        """The run as JSON."""
        value: JsonObject = {
            "id": self.id,
            "name": self.name,
            "namespace": self.namespace,
            "type": self.type,
            "state": self.state,
            "startTime": instant(self.start),
            "completionTime": instant(self.end) if self.end else None,
            "durationSeconds": round(self.duration.total_seconds(), 3),
        }
        return {key: each for key, each in value.items() if each is not None}

    @property
    def row(self) -> tuple[str, ...]:
        """The run as the cells of a table."""
        return self.id, self.name or "", self.type, self.state, instant(self.start), format_duration(self.duration)


ROOT_RUNS = "ParentWorkflowId IS NULL AND ExecutionStatus != 'ContinuedAsNew'"
"""Runs that were started from outside, each once, however often it has gone on in a new one."""

COLUMNS = "ID", "QUERY", "TYPE", "STATE", "STARTED", "DURATION"


async def recent_runs(client: Client, namespace: str | None, limit: int, queue: str | None = None) -> list[ListedRun]:
    """The newest runs, without child runs; with a namespace, those of its Queries."""
    found: list[ListedRun] = []
    async for run in client.list_workflows(f"TaskQueue = '{queue or task_queue()}' AND {ROOT_RUNS}"):
        one = await _listed(client, run)
        if namespace in (None, one.namespace):
            found.append(one)
        if len(found) >= limit:
            break
    return sorted(found, key=lambda each: each.start, reverse=True)


async def _listed(client: Client, run: WorkflowExecution) -> ListedRun:
    memo: Mapping[str, object] = {}
    with contextlib.suppress(SettingsError):  # without its key a run is listed by its id alone
        memo = await run.memo()
    name, namespace = (str(memo[key]) if key in memo else None for key in ("query", "namespace"))
    state = run.status.name.replace("_", " ").capitalize() if run.status else "Unknown"
    return ListedRun(run.id, name, namespace, run.workflow_type, state, await _begun(client, run), run.close_time)


async def _begun(client: Client, run: WorkflowExecution) -> datetime:
    """When the run began that goes on in this one; its own start where that is forgotten."""
    with contextlib.suppress(RPCError):
        first = await first_run_id(client.get_workflow_handle(run.id, run_id=run.run_id))
        return (await client.get_workflow_handle(run.id, run_id=first).describe()).start_time
    return run.start_time
