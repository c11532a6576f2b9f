"""Which runs get nowhere? Those whose steps or calls fail again and again."""

import asyncio
from collections.abc import AsyncIterator

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from ...conversation.messages.message import cut

LOOKED_AT = 100
"""Open runs that are looked at, the newest first; those that the server itself has found are always among them."""

AT_ONCE = 20
MANY = 3
"""Attempts after which a step or a call counts as one that fails again and again."""

SUSPENDED = "its code fails; nothing is lost: mend the workers or roll them back, and it goes on by itself"
RETRIED = "see that what it asks answers; it goes on by itself, or: baton terminate --now {}"

Stuck = tuple[str, str, str]
"""A run's id, what is wrong with it, and what to do."""


async def stuck_runs(client: Client, queue: str) -> AsyncIterator[Stuck]:
    """The open runs of a task queue that get nowhere."""
    open_here = f"TaskQueue = '{queue}' AND ExecutionStatus = 'Running'"
    found: dict[str, WorkflowExecution] = {}
    for wanted in (f"{open_here} AND TemporalReportedProblems IS NOT NULL", open_here):
        try:
            async for run in client.list_workflows(wanted, limit=LOOKED_AT):
                found.setdefault(run.id, run)
        except RPCError:  # an older server knows of no problems
            continue
    ids = [*found]
    for start in range(0, len(ids), AT_ONCE):
        for each in await asyncio.gather(*(_wrong(client, run) for run in ids[start : start + AT_ONCE])):
            if each:
                yield each


async def _wrong(client: Client, run: str) -> Stuck | None:
    described = (await client.get_workflow_handle(run).describe()).raw_description
    if (attempt := described.pending_workflow_task.attempt) > MANY:
        return run, f"attempt {attempt} at its next step", SUSPENDED
    worst = max(described.pending_activities, key=_failed, default=None)
    if worst is None or _failed(worst) < MANY:
        return None
    why = cut(worst.last_failure.message.partition("\n")[0], 200)
    return run, f"attempt {worst.attempt} at {worst.activity_type.name}: {why}", RETRIED.format(run)


def _failed(activity: PendingActivityInfo) -> int:
    return activity.attempt if activity.HasField("last_failure") else 0
