"""Finds open runs whose rows the journal lacks, as after the restore of an older backup of the journal."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pydantic import JsonValue
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ...activities.runtime.settings import Settings
from ...journal.engine import connect
from ...journal.migrate import migrate
from ...journal.rows import missing_rows
from ...resources.strategies import OWN_WORKFLOWS

BATCH = 20
"""Histories that are read at once."""

LAST_HEADS = 10
"""Heads of a run that are looked up, newest first: a backup that has a row has all rows that were written before it."""


@dataclass(frozen=True)
class LostRows:
    """The open runs that were checked, and those whose rows the journal lacks."""

    checked: int
    runs: list[str]


async def runs_without_rows(client: Client, environ: Mapping[str, str] = os.environ) -> LostRows:
    """Checks all open runs of Temporal's namespace. Raises RPCError, JournalUnavailable and SettingsError.

    A run below another is named itself: what it lacks, the runs above it lack too, once it has ended.
    """
    types = ", ".join(f"'{name}'" for name in sorted(OWN_WORKFLOWS))
    query = f"ExecutionStatus = 'Running' AND WorkflowType IN ({types})"
    open_runs = [run async for run in client.list_workflows(query)]
    rows: dict[str, set[str]] = {}
    for start in range(0, len(open_runs), BATCH):
        some = open_runs[start : start + BATCH]
        for run, found in zip(some, await asyncio.gather(*(_rows_of(client, run) for run in some)), strict=True):
            rows[run.id] = found
    engine = connect(Settings.of(environ).journal)
    try:
        await migrate(engine, upgrade=False, create=False)
        every = {row for found in rows.values() for row in found}
        lost = await engine.run(partial(missing_rows, namespace=client.namespace, ids=every))
    finally:
        await engine.dispose()
    return LostRows(checked=len(open_runs), runs=[run for run, found in rows.items() if found & lost])


async def _rows_of(client: Client, run: WorkflowExecution) -> set[str]:
    """The ids of the newest rows that the history of a run names; empty if it has ended meanwhile."""
    heads: list[str] = []
    try:
        async for event in client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history_events():
            for payload in await client.data_converter.decode([*_results(event)]):
                heads += _heads(json.loads(json.dumps(payload, default=str)))
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
    return {*heads[-LAST_HEADS:]}


def _results(event: HistoryEvent) -> Iterator[Payload]:
    """The payloads of an event that name rows: an input, and results of activities and of child runs."""
    yield from event.workflow_execution_started_event_attributes.input.payloads
    yield from event.activity_task_completed_event_attributes.result.payloads
    yield from event.child_workflow_execution_completed_event_attributes.result.payloads
    marker = event.marker_recorded_event_attributes
    if marker.marker_name == "core_local_activity":
        yield from marker.details["result"].payloads


def _heads(value: JsonValue) -> Iterator[str]:
    """The ids of rows in JSON, which stand in heads: ``{"id": …, "depth": …}``."""
    if isinstance(value, dict):
        if value.keys() <= {"id", "depth"} and isinstance(row := value.get("id"), str) and row and "depth" in value:
            yield row
        for item in value.values():
            yield from _heads(item)
    elif isinstance(value, list):
        for item in value:
            yield from _heads(item)
