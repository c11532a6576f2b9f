"""The scripted model's server: it speaks OpenAI's protocol, and answers from a script, without a language model."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..http.thread_server import serve_in_thread
from .completion import END_OF_STREAM, completion, error, stream
from .script import Reply, Request

HANG_SECONDS = 3600.0
"""For how long a reply hangs that never comes."""


@dataclass
class ReceivedRequest:
    """A request that the server has received. Times are in seconds since the epoch.

    ``answered`` is true once the whole answer was sent; ``disconnected_at`` is set if the client has not waited for it.
    """

    body: Request
    path: str
    received_at: float = field(default_factory=time.time)
    answered: bool = False
    disconnected_at: float | None = None


class ScriptedModel:
    """The server. ``answer`` gives the reply to a request; ``requests`` are all requests in their order.

    The headers of each request are passed to ``on_headers``, and are not kept: they contain keys.
    """

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self._answer = answer
        self.requests: list[ReceivedRequest] = []
        self.on_headers: Callable[[Mapping[str, str]], object] = lambda _: None
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/openai/deployments/{name}/chat/completions", self._complete, methods=["POST"]),  # Azure's path
                Route("/v1/models", self._models),
            ]
        )

    @contextlib.contextmanager
    def serve(self, port: int = 0) -> Iterator[str]:
        """Serves from a thread while the block runs, and yields the base URL; port 0 takes a free port."""
        with serve_in_thread(self.app, port) as url:
            yield f"{url}/v1"

    async def _models(self, _request: HttpRequest) -> Response:
        models = [{"id": "scripted", "object": "model", "owned_by": "a script"}]
        return JSONResponse({"object": "list", "data": models})

    async def _complete(self, http: HttpRequest) -> Response:
        body: Request = await http.json()
        received = ReceivedRequest(body, f"{http.url.path}?{http.url.query}".removesuffix("?"))
        self.requests.append(received)
        self.on_headers(http.headers)
        reply = self._answer(body)
        await _wait(http, received, HANG_SECONDS if reply.hang else reply.delay)
        if reply.status:
            return JSONResponse(error(reply), reply.status, reply.headers)
        if reply.raw is not None:
            kind = "text/event-stream" if body.get("stream") else "application/json"
            return Response(reply.raw, 200, reply.headers, media_type=kind)
        if body.get("stream"):
            return StreamingResponse(_stream(received, reply), media_type="text/event-stream")
        received.answered = True
        return JSONResponse(completion(body, reply))


async def _wait(http: HttpRequest, received: ReceivedRequest, seconds: float) -> None:
    """Waits before the answer, and notes when the client disconnects."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 0.05))
        if await http.is_disconnected():
            received.disconnected_at = time.time()
            return


async def _stream(received: ReceivedRequest, reply: Reply) -> AsyncIterator[str]:
    """The stream of a reply; the request counts as answered before the last event, unless the reply is cut."""
    async for event in stream(received.body, reply):
        received.answered = event == END_OF_STREAM
        yield event
