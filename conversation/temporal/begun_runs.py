"""The open runs of a task queue that have begun, and the journals with which they did, as their histories say."""

import asyncio
from collections.abc import Iterator

from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client

from ...resources.base import JsonModel
from ..contracts.journal_name import JournalName

MAX_RUNS = 20
"""Open runs that are looked at, the newest first."""

EVENTS = 30
"""Events at the beginning of a history among which a run is pinned."""


class _Pinned(JsonModel):
    """What ``pin`` has returned, as far as it matters here."""

    thread: object
    plan: object
    journal: JournalName | None = None


class _Carried(JsonModel):
    pinned: _Pinned


class _Continued(JsonModel):
    """The input of a run that continues another."""

    carried: _Carried


async def begun_runs(client: Client, task_queue: str) -> dict[str, JournalName | None]:
    """The journals of the newest open runs, by the runs' ids; None where an older Baton has begun the run.

    Runs that were not pinned yet, and those that this process can't read, are left out. Raises RPCError.
    """
    query = f"TaskQueue = '{task_queue}' AND ExecutionStatus = 'Running' AND ParentWorkflowId IS NULL"
    runs = [(run.id, run.run_id) async for run in client.list_workflows(query, limit=MAX_RUNS)]
    found = await asyncio.gather(*(_pinned(client, *run) for run in runs))
    return {run: each.journal for (run, _), each in zip(runs, found, strict=True) if each}


async def _pinned(client: Client, workflow_id: str, run_id: str) -> _Pinned | None:
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
        maximum_page_size=EVENTS,
    )
    answer = await client.workflow_service.get_workflow_execution_history(request, retry=True)
    for payloads, kind in (each for event in answer.history.events for each in _values(event)):
        try:
            (value,) = await client.data_converter.decode(payloads.payloads[:1], [kind])
        except Exception:  # whatever a client has sent, or without the key: this is not the result of pin
            continue
        return value.carried.pinned if isinstance(value, _Continued) else value
    return None


def _values(event: HistoryEvent) -> Iterator[tuple[Payloads, type[_Pinned] | type[_Continued]]]:
    """What may be the result of ``pin``, which is an activity, a local activity, or that of an earlier run."""
    started = event.workflow_execution_started_event_attributes
    if started.continued_execution_run_id:
        yield started.input, _Continued
    if (marker := event.marker_recorded_event_attributes).marker_name == "core_local_activity":
        yield marker.details["result"], _Pinned
    if event.HasField("activity_task_completed_event_attributes"):
        yield event.activity_task_completed_event_attributes.result, _Pinned
