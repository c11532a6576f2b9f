"""Finds the newest runs that meet a condition, by when their first execution has started."""

import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError

from ...conversation.temporal.execution_chain import first_run_id

StartedRun = tuple[datetime, WorkflowExecution]
"""A run with the start of its first execution."""


async def newest_runs(
    client: Client,
    query: str,
    count: int,
    matches: Callable[[WorkflowExecution], Awaitable[bool]],
    limit: int | None = None,
) -> list[StartedRun]:
    """At most ``count`` runs of a visibility query that match, the newest first.

    Temporal lists open runs by their start and the others by their end, each the newest first. Of both it reads until
    none that follows can be newer than those it has found, or ``limit`` runs. Of a run that has continued as new its
    last execution counts.
    """
    found, ids = list[StartedRun](), set[str]()
    for status in ("= 'Running'", "!= 'Running'"):
        async for run in client.list_workflows(f"{query} AND ExecutionStatus {status}", limit=limit):
            if len(found) == count and (run.close_time or run.start_time) < found[-1][0]:
                break
            earlier = run.status == WorkflowExecutionStatus.CONTINUED_AS_NEW and run.id in ids
            if earlier or not await matches(run):
                continue
            ids.add(run.id)
            others = [each for each in found if each[1].run_id != run.run_id]  # it may have ended between the two
            found = sorted([*others, (await _start_time(client, run), run)], key=lambda each: each[0], reverse=True)
            del found[count:]
    return found


async def _start_time(client: Client, run: WorkflowExecution) -> datetime:
    """The start of the first execution; of this one if Temporal has deleted the first."""
    with contextlib.suppress(RPCError):
        first = await first_run_id(client.get_workflow_handle(run.id, run_id=run.run_id))
        return (await client.get_workflow_handle(run.id, run_id=first).describe()).start_time
    return run.start_time
