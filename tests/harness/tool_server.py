"""A real HTTP server for the tools of a test: it records requests and gives scripted responses."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from baton.starter.scripted_model import serve_in_thread
from tests.harness.ports import own_port

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


@dataclass
class Seen:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    at: float = field(default_factory=time.monotonic)


@dataclass
class Answer:
    """A response. With ``cut`` it breaks off after so many bytes, with ``hang`` it never comes."""

    text: str | bytes = "sunny"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0
    cut: int | None = None
    hang: bool = False


class ToolServer:
    """The server. ``answer`` gives the response to each request by its number, from 1; ``seen`` are all requests.

    ``documents`` are served at their paths, however often they are read; those requests have no number.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.documents: dict[str, str] = {}
        self.answer: Callable[[int], Answer] = lambda _: Answer()
        self.url = ""

    @property
    def host(self) -> str:
        """The host and the port of its URL, as errors name it."""
        return urlsplit(self.url).netloc

    @property
    def calls(self) -> list[Seen]:
        """The requests that read no document."""
        return [seen for seen in self.seen if seen.path not in self.documents]

    def answers(self, *answers: Answer) -> None:
        """Gives the responses one after the other, and the last one from then on."""
        self.answer = lambda number: answers[min(number, len(answers)) - 1]

    @contextlib.contextmanager
    def serving(self, port: int = 0) -> Iterator["ToolServer"]:
        """Serves from a thread as long as the block runs, by default at a port of its own."""
        app = Starlette(routes=[Route("/{path:path}", self._serve, methods=METHODS)])
        with serve_in_thread(app, port or own_port(), log_level="critical") as self.url:
            yield self

    async def _serve(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode() + (f"?{request.url.query}" if request.url.query else "")
        body = (await request.body()).decode()
        self.seen.append(Seen(request.method, path, dict(request.headers), body))
        document = self.documents.get(path)
        answer = self.answer(len(self.calls)) if document is None else Answer(document)
        end = time.monotonic() + (3600 if answer.hang else answer.delay)
        while time.monotonic() < end and not await request.is_disconnected():
            await asyncio.sleep(0.02)
        data = answer.text.encode() if isinstance(answer.text, str) else answer.text
        if answer.cut is None:
            return Response(data, answer.status, {"content-type": "text/plain; charset=utf-8", **answer.headers})
        return StreamingResponse(_broken(data[: answer.cut]), answer.status, {"content-length": str(len(data))})


async def _broken(data: bytes) -> AsyncIterator[bytes]:
    yield data
    raise ConnectionResetError("the test wants the answer to break off")
