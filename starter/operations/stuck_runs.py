"""Finds stuck runs: those whose workflow tasks or activities fail again and again."""

import asyncio
from collections.abc import AsyncIterator

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from ...conversation.text import truncate

MAX_RUNS = 100
"""Open runs that are examined, the newest first, beside as many for which the server reports problems."""

BATCH = 20
"""Requests to Temporal at the same time."""

MAX_ATTEMPTS = 3
"""Failed attempts after which a workflow task or an activity counts as stuck."""

TASK_HINT = "its code fails; nothing is lost: repair the workers or roll them back, and it goes on by itself"
ACTIVITY_HINT = "make sure that the service it calls answers; it goes on by itself, or: baton terminate --now {}"

Stuck = tuple[str, str, str]
"""A run's id, what is wrong with it, and what to do."""


async def stuck_runs(client: Client, queue: str) -> AsyncIterator[Stuck]:
    """The stuck runs among the open runs of a task queue."""
    open_here = f"TaskQueue = '{queue}' AND ExecutionStatus = 'Running'"
    found: dict[str, WorkflowExecution] = {}
    for wanted in (f"{open_here} AND TemporalReportedProblems IS NOT NULL", open_here):
        try:
            async for run in client.list_workflows(wanted, limit=MAX_RUNS):
                found.setdefault(run.id, run)
        except RPCError:  # an older server does not know this search attribute
            continue
    ids = [*found]
    for start in range(0, len(ids), BATCH):
        for each in await asyncio.gather(*(_stuck(client, run) for run in ids[start : start + BATCH])):
            if each:
                yield each


async def _stuck(client: Client, run: str) -> Stuck | None:
    described = (await client.get_workflow_handle(run).describe()).raw_description
    if (attempt := described.pending_workflow_task.attempt) > MAX_ATTEMPTS:
        return run, f"attempt {attempt} at its next step", TASK_HINT
    worst = max(described.pending_activities, key=_failed_attempts, default=None)
    if worst is None or _failed_attempts(worst) < MAX_ATTEMPTS:
        return None
    why = truncate(worst.last_failure.message.partition("\n")[0], 200)
    return run, f"attempt {worst.attempt} at {worst.activity_type.name}: {why}", ACTIVITY_HINT.format(run)


def _failed_attempts(activity: PendingActivityInfo) -> int:
    return activity.attempt if activity.HasField("last_failure") else 0
