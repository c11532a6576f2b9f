"""A real HTTP memory service, with ARK's interface: the older form, and both shapes of the newer one."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from baton.starter.scripted_model import serve_in_thread

Json = dict[str, Any]


class MemoryServer:
    """The service. ``form`` is what it speaks; ``records`` are the stored messages by conversation.

    ``refuse`` may give a response in place of its own; ``seen`` are method and path of all requests.
    """

    def __init__(self, form: Literal["older", "messages", "items"]) -> None:
        self.form, self.url = form, ""
        self.records: dict[str, list[Json]] = defaultdict(list)
        self.headers: list[dict[str, str]] = []
        self.seen: list[str] = []
        self.refuse: Callable[[Request], Response | None] = lambda _: None
        self.after_write: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def serving(self) -> Iterator["MemoryServer"]:
        """Serves from a thread while the block runs."""
        older = [Route("/messages/{id}", self._older, methods=["GET", "PUT"])]
        newer = [Route("/messages", self._newer, methods=["GET", "POST"])]
        with serve_in_thread(Starlette(routes=older if self.form == "older" else newer), 0) as self.url:
            yield self

    def texts(self, conversation: str = "c") -> list[str]:
        """The texts of a conversation."""
        return [each["content"] for each in self.records[conversation]]

    async def _older(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        stored = self.records[request.path_params["id"]]
        if request.method == "GET":
            return JSONResponse({"messages": stored})
        stored.extend((await request.json())["messages"])
        self.after_write()
        return Response(status_code=200)

    async def _newer(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        if request.method == "GET":
            return self._list(request.query_params)
        body = await request.json()
        assert body["query_id"]
        self.records[body["conversation_id"]].extend(body["messages"])
        self.after_write()
        return JSONResponse({"conversation_id": body["conversation_id"]})

    def _list(self, parameters: Any) -> Response:
        stored = self.records[parameters["conversation_id"]]
        first = int(parameters.get("cursor") or parameters.get("offset") or 0)
        limit = min(int(parameters.get("limit", 100)), 100)
        page = [{"conversation_id": "c", "message": message} for message in stored[first : first + limit]]
        end = first + len(page)
        if self.form == "messages":
            return JSONResponse({"messages": page, "total": len(stored), "limit": limit, "offset": first})
        more = end < len(stored)
        answer = {"items": page, "total": len(stored), "hasMore": more, "nextCursor": end if more else None}
        return JSONResponse(answer)

    def _refused(self, request: Request) -> Response | None:
        with self._lock:
            self.seen.append(f"{request.method} {request.url.path}")
            self.headers.append(dict(request.headers))
        return self.refuse(request)
