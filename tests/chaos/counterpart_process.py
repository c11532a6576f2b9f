"""What agents and tools call elsewhere, in one process: MCP servers of two eras, six A2A servers, and an engine.

``python -m tests.chaos.counterpart_process FOLDER PORT …``. Its A2A servers keep their tasks in SQLite. One that is
started again completes the tasks that it was working on, as a durable agent does.
"""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabaseTaskStore, TaskStore
from a2a.types import ListTasksRequest, Part, Role, TaskState
from a2a.types import Message as A2AMessage
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from tests.chaos.counterparts import EXECUTIONS, label_in
from tests.chaos.noted_tools import answer_of, execute, make_server
from tests.harness.agent_server import AgentServer, Behaviour, Turn
from tests.harness.mcp_server import OlderEra


def behaviour(file: Path, way: str) -> Behaviour:
    """What the agent of an A2A server does: it gives its answer in a message, or in a task."""

    async def behave(turn: Turn) -> None:
        label = label_in(" ".join(turn.texts))
        if way == "message":
            await turn.reply(await execute(file, label))
            return
        task = await turn.task()
        await task.start_work()
        await task.add_artifact([Part(text=await execute(file, label))])
        await task.complete()

    return behave


def task_store(folder: Path, name: str) -> TaskStore:
    """The tasks of a server, in a file."""
    return DatabaseTaskStore(create_async_engine(f"sqlite+aiosqlite:///{folder / name}.db"))


async def complete_tasks(store: TaskStore) -> None:
    """Completes the tasks that an earlier process was working on."""
    context = ServerCallContext()
    begun = (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
    for each in (await store.list(ListTasksRequest(page_size=100, history_length=100), context)).tasks:
        task = await store.get(each.id, context)
        assert task
        if task.status.state not in begun:
            continue
        text = answer_of(label_in(" ".join(part.text for said in task.history for part in said.parts)))
        task.status.state = TaskState.TASK_STATE_COMPLETED
        task.status.message.CopyFrom(
            A2AMessage(message_id="later", role=Role.ROLE_AGENT, task_id=task.id, parts=[Part(text=text)])
        )
        await store.save(task, context)


def agent_server(folder: Path, version: str, way: str, port: int) -> AgentServer:
    """The A2A server of a version that answers in a way: ``message``, ``streaming`` or ``long``, which is polled."""
    name = f"{version}-{way}"
    asyncio.run(complete_tasks(task_store(folder, name)))
    server = AgentServer()
    server.version, server.streaming, server._port = version, way == "streaming", port
    server.behaviour, server.store = behaviour(folder / EXECUTIONS, way), task_store(folder, name)
    return server


def engine(file: Path) -> ASGIApp:
    """The engine."""

    async def respond(request: Request) -> JSONResponse:
        label = label_in((await request.json())["userInput"]["content"])
        return JSONResponse({"messages": [{"role": "assistant", "content": await execute(file, label)}]})

    return Starlette(routes=[Route("/execute", respond, methods=["POST"])])


async def serve(apps: Sequence[tuple[ASGIApp, int]]) -> None:
    """Serves until the process is killed."""
    servers = (uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical")) for app, port in apps)
    await asyncio.gather(*(each.serve() for each in servers))


def main(folder: Path, ports: Sequence[int]) -> None:
    """Serves everything."""
    agents = [(version, way) for version in ("1.0", "0.3.0") for way in ("message", "streaming", "long")]
    *own, older, newer, engines = ports
    file = folder / EXECUTIONS
    with contextlib.ExitStack() as stack:
        for (version, way), port in zip(agents, own, strict=True):
            stack.enter_context(agent_server(folder, version, way, port).serving())
        old, new = (make_server(file).streamable_http_app() for _ in range(2))
        asyncio.run(serve([(OlderEra(old), older), (new, newer), (engine(file), engines)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [*map(int, sys.argv[2:])])
