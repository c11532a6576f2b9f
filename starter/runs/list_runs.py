"""Lists runs, as Temporal's visibility store has them: no workflow is queried and no history is read."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution

from ...conversation.contracts.status import format_time
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.search_attributes import PHASE
from ...conversation.temporal.temporal_client import task_queue
from ...resources.base import JsonObject
from ..text.units import format_age, format_duration
from .newest_runs import newest_runs


@dataclass(frozen=True)
class ListedRun:
    """A run that a client has started. ``name`` and ``namespace`` are those of its Query, if its memo has them."""

    id: str
    name: str | None
    namespace: str | None
    type: str
    state: str
    start: datetime
    end: datetime | None

    @property
    def duration(self) -> timedelta:
        """The time from its start to its end, or until now."""
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
            "startTime": format_time(self.start),
            "completionTime": format_time(self.end) if self.end else None,
            "durationSeconds": round(self.duration.total_seconds(), 3),
        }
        return {key: each for key, each in value.items() if each is not None}

    @property
    def row(self) -> tuple[str, ...]:
        """The run as the cells of a table, in the order of COLUMNS."""
        return self.id, self.type, self.state, format_duration(self.duration), format_age(self.start)


ROOT_RUNS = "ParentWorkflowId IS NULL AND ExecutionStatus != 'ContinuedAsNew'"
"""The filter for runs that clients have started: of those that continued as new, the last execution alone."""

COLUMNS = "ID", "TYPE", "STATE", "DURATION", "AGE"


async def recent_runs(client: Client, namespace: str | None, limit: int, queue: str | None = None) -> list[ListedRun]:
    """The newest runs without child runs, at most ``limit``; with a ``namespace``, only those of its Queries."""

    async def matches(run: WorkflowExecution) -> bool:
        return namespace in (None, (await _memo(run)).get("namespace"))

    found = await newest_runs(client, f"TaskQueue = '{queue or task_queue()}' AND {ROOT_RUNS}", limit, matches)
    return [await _describe(run, start) for start, run in found]


async def _describe(run: WorkflowExecution, start: datetime) -> ListedRun:
    memo = await _memo(run)
    name, namespace = (str(memo[key]) if key in memo else None for key in ("query", "namespace"))
    state = run.status.name.replace("_", " ").capitalize() if run.status else "Unknown"
    phase = run.typed_search_attributes.get(PHASE)
    if state == "Running" and phase in ("Paused", "InputRequired"):
        state = phase
    return ListedRun(run.id, name, namespace, run.workflow_type, state, start, run.close_time)


async def _memo(run: WorkflowExecution) -> Mapping[str, object]:
    """The memo; empty if it is encrypted and the key is missing, so that the run is listed without its name."""
    with contextlib.suppress(SettingsError):
        return await run.memo()
    return {}
