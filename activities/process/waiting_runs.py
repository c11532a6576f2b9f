"""Watches how many runs of the task queue wait for a person, or are paused, as a metric."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from temporalio.client import Client
from temporalio.service import RPCError

from ...conversation.metrics import RUNS_WAITING
from ...conversation.temporal.search_attributes import PHASE, registered

INTERVAL = 30.0
"""Seconds between two questions to Temporal."""

PHASES = ("InputRequired", "Paused")


@contextlib.asynccontextmanager
async def watch_waiting_runs(client: Client, task_queue: str) -> AsyncIterator[None]:
    """Watches them while the block runs, as soon as the server has Baton's search attributes."""
    task = asyncio.create_task(_watch(client, task_queue))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch(client: Client, task_queue: str) -> None:
    while True:
        for phase in PHASES if await registered(client) else ():
            with contextlib.suppress(RPCError):  # the next time, perhaps
                RUNS_WAITING.record(await _count(client, task_queue, phase), phase=phase)
        await asyncio.sleep(INTERVAL)


async def _count(client: Client, task_queue: str, phase: str) -> int:
    """The runs in a phase that have no parent: a run whose child waits is in that phase, too."""
    here = f"TaskQueue = '{task_queue}' AND ExecutionStatus = 'Running' AND ParentWorkflowId IS NULL"
    return (await client.count_workflows(f"{here} AND {PHASE.name} = '{phase}'")).count
