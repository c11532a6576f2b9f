"""A worker for the systems on Temporal, with the same settings as Baton's worker."""

from datetime import timedelta
from typing import Any

from common import Params, timed
from temporalio.client import Client
from temporalio.worker import Worker


async def on_temporal(params: Params, workflow: Any, plugin: Any) -> None:
    """Runs a worker with the settings that Baton's has, and the teams on it."""
    client = await Client.connect(params.temporal, plugins=[plugin])
    settings: dict[str, Any] = {
        "max_cached_workflows": 1_000,
        "max_concurrent_workflow_tasks": 10,
        "sticky_queue_schedule_to_start_timeout": timedelta(seconds=1),
    }
    async with Worker(client, task_queue=params.run, workflows=[workflow], **settings):

        async def play(run: str) -> object:
            options: dict[str, Any] = {"id": run, "task_queue": params.run, "task_timeout": timedelta(seconds=10)}
            return await client.execute_workflow(workflow.run, args=[params.turns, params.size], **options)

        if params.teams > 1:
            await play(f"{params.run}-warm")
        await timed(params.ids, play)
