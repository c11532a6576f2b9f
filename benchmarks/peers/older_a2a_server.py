"""An A2A server of the SDK 0.3: its agent answers in a task that takes some seconds, and notes each execution."""

import asyncio
import sys
from pathlib import Path

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, Part, TextPart
from a2a.utils import new_task

folder, port, streaming = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "streaming"
SECONDS = 6.0


class Agent(AgentExecutor):
    """Works for some seconds."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Takes one turn."""
        task = context.current_task or new_task(context.message)
        await event_queue.enqueue_event(task)
        with (folder / "executions").open("a") as begun:
            begun.write(f"{task.id}\n")
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        await asyncio.sleep(SECONDS)
        await updater.add_artifact([Part(root=TextPart(text="Because."))])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancels the task."""
        with (folder / "canceled").open("a") as canceled:
            canceled.write(f"{context.task_id}\n")
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


card = AgentCard(
    name="Older",
    description="It knows.",
    url=f"http://127.0.0.1:{port}/",
    version="1",
    capabilities=AgentCapabilities(streaming=streaming),
    skills=[],
    default_input_modes=["text"],
    default_output_modes=["text"],
)
handler = DefaultRequestHandler(agent_executor=Agent(), task_store=InMemoryTaskStore())
uvicorn.run(A2AStarletteApplication(card, handler).build(), port=port, log_level="critical")
