"""A real A2A server, of the protocol's SDK: it records requests, and its agent does what a test wants."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from a2a.helpers.proto_helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Message, Part, Role
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.starter.scripted_model import serve_in_thread
from tests.harness.ports import own_port
from tests.harness.tool_server import Seen

Json = dict[str, Any]
Behaviour = Callable[["Turn"], Awaitable[None]]


class Turn:
    """One execution of the agent: what it was told, and what it can answer."""

    def __init__(self, context: RequestContext, queue: EventQueue) -> None:
        self.context, self.queue = context, queue
        self.message = context.message or Message()
        self.is_new = context.current_task is None

    @property
    def texts(self) -> list[str]:
        """The texts of the message's parts."""
        return [part.text for part in self.message.parts]

    async def task(self) -> TaskUpdater:
        """Begins a task, or continues the one that the message belongs to."""
        task = self.context.current_task
        if task is None:
            task = new_task_from_user_message(self.message)
            task.id, task.context_id = self.context.task_id or task.id, self.context.context_id or task.context_id
            await self.queue.enqueue_event(task)
        return TaskUpdater(self.queue, task.id, task.context_id)

    async def reply(self, text: str) -> None:
        """Answers by a message, without a task."""
        context = self.context.context_id
        await self.queue.enqueue_event(
            Message(message_id="reply", context_id=context, role=Role.ROLE_AGENT, parts=[Part(text=text)])
        )


class AgentServer(AgentExecutor):
    """The server. ``behaviour`` is what its agent does; ``turns`` are all executions, ``seen`` all requests.

    ``version`` and ``binding`` are what its card offers; ``card_path`` is where that stands. Tasks survive a restart.
    With a ``key`` it refuses every request whose header Authorization is another one.
    """

    def __init__(self) -> None:
        self.version, self.binding, self.streaming = "1.0", "JSONRPC", True
        self.card_path = "/.well-known/agent-card.json"
        self.interface_url: str | None = None
        self.behaviour: Behaviour = lambda turn: turn.reply("Yes.")
        self.turns: list[Turn] = []
        self.canceled: list[str] = []
        self.seen: list[Seen] = []
        self.url, self._port, self.key = "", own_port(), ""
        self.store: TaskStore = InMemoryTaskStore()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Takes one turn."""
        turn = Turn(context, event_queue)
        self.turns.append(turn)
        await self.behaviour(turn)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancels a task."""
        task = context.current_task
        assert task
        self.canceled.append(task.id)
        await TaskUpdater(event_queue, task.id, task.context_id).cancel()

    @property
    def calls(self) -> list[str]:
        """The methods of all requests but those for the card: of JSON-RPC by name, of HTTP by path."""
        requests = [request for request in self.seen if "well-known" not in request.path]
        return [json.loads(request.body)["method"] if request.path == "/" else request.path for request in requests]

    @contextlib.contextmanager
    def serving(self) -> Iterator["AgentServer"]:
        """Serves from a thread as long as the block runs; again at the same port after a restart."""
        self.url = f"http://127.0.0.1:{self._port}"
        with serve_in_thread(self._app(), self._port, log_level="critical"):
            yield self

    def _app(self) -> ASGIApp:
        capabilities = AgentCapabilities(streaming=self.streaming)
        interface = AgentInterface(url=self.url, protocol_binding=self.binding, protocol_version=self.version)
        card = AgentCard(
            name="Oracle",
            description="It knows.",
            version="1",
            capabilities=capabilities,
            supported_interfaces=[interface],
            skills=[AgentSkill(id="know", name="Knowing", description="Knows things", tags=["truth"])],
            default_input_modes=["text"],
            default_output_modes=["text"],
        )
        handler = DefaultRequestHandler(agent_executor=self, task_store=self.store, agent_card=card)
        old = self.version.startswith("0")
        routes = [
            Route(self.card_path, lambda _: JSONResponse(self.card)),
            *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=old),
            *create_rest_routes(handler, enable_v0_3_compat=old),
        ]
        return _Recorder(Starlette(routes=routes), self)

    @property
    def card(self) -> Json:
        """The card as its version of the protocol writes it."""
        url = self.interface_url or self.url
        skills = [{"id": "know", "name": "Knowing", "description": "Knows things", "tags": ["truth"]}]
        common: Json = {"name": "Oracle", "description": "It knows.", "version": "1", "skills": skills}
        modes = {"defaultInputModes": ["text"], "defaultOutputModes": ["text"]}
        common = {**common, **modes, "capabilities": {"streaming": self.streaming}}
        if self.version.startswith("0"):
            return {**common, "url": url, "preferredTransport": self.binding, "protocolVersion": self.version}
        interface = {"url": url, "protocolBinding": self.binding, "protocolVersion": self.version}
        return {**common, "supportedInterfaces": [interface]}


class _Recorder:
    """Records requests, and hands them on, unless they lack the key."""

    def __init__(self, app: ASGIApp, server: AgentServer) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await Request(scope, receive).body()
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self._server.seen.append(Seen(scope["method"], scope["path"], headers, body.decode()))
        if self._server.key not in ("", headers.get("authorization")):
            await PlainTextResponse("no such key", 401)(scope, receive, send)
            return
        given = False

        async def again() -> Any:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)


async def until(event: threading.Event) -> None:
    """Waits for an event of another thread."""
    while not event.is_set():
        await asyncio.sleep(0.01)
