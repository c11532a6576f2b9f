"""The HTTP client of the connections to MCP servers: it bounds what is read, and guards the worker's own network."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx2

from ....contracts.errors import ToolFailed
from ...runtime.http import retry_after
from ...runtime.outbound import CONNECTIONS, BodyLimits, BoundedBody, Outbound


@dataclass
class Exchange:
    """The last request of a call.

    ``sent``: it may have reached the server. ``status``: of an answer that is an error, with its ``text`` and how long
    the server asks to ``wait``. ``failure``: why there is no answer; ``final``: nor will there ever be one.
    ``in_session``: it named a session of the server.
    """

    sent: bool = False
    status: int = 0
    text: str = ""
    wait: timedelta | None = None
    failure: str = ""
    final: bool = False
    in_session: bool = False

    @property
    def session_lost(self) -> bool:
        """Whether the server doesn't know the session, or wants one: it has carried out nothing.

        (MCP: session management.) It wants one where it was put back to an older version while a connection was open.
        """
        return (self.in_session and self.status == 404) or (self.status == 400 and "session" in self.text.lower())


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


@contextmanager
def watch_exchange() -> Iterator[Exchange]:
    """Notes what becomes of the requests that are sent within the block, also from tasks that it begins."""
    token = _current.set(exchange := Exchange())
    try:
        yield exchange
    finally:
        _current.reset(token)


def current_exchange() -> Exchange:
    """The exchange of the running call; one that nobody reads where there is none."""
    return _current.get() or Exchange()


MAX_ANSWER = 4_000_000
"""Bytes of one answer, or of one event of a stream."""

MAX_OBJECTS = 30_000
"""Objects and lists in one: many small values take far longer to read than one long text."""

MAX_ERROR = 20_000
"""Bytes of the text of an error."""

MAX_ERROR_TEXT = 5_000
"""Characters of an error that are told. An error is cut further, after secrets were removed from it."""

SECONDS = 3.0
"""Seconds that a server has for what is no call: a notification, an answer of ours, or the end of a session."""

SESSION = "mcp-session-id"


class McpHttpClient(httpx2.AsyncClient):
    """Sends the requests of one connection.

    A request that fails is answered with a status of 503, and ``current_exchange`` says why: an exception would end the
    connection, and with it the calls of other runs. ``guarded``: the address must not lead into the worker's own
    network. ``opens_by_get``: a GET opens the connection, as with SSE. ``on_failure`` is called where a request fails,
    or is answered with an error, and ``on_silence`` where the server does not answer what is no call.
    """

    def __init__(
        self,
        headers: dict[str, str],
        *,
        guarded: bool,
        opens_by_get: bool = False,
        on_failure: Callable[[], None] = lambda: None,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        # No compression, whatever the manifest's headers say: a packed answer is refused.
        plain = {name: value for name, value in headers.items() if name.lower() != "accept-encoding"}
        options = Outbound(limits=None, guarded=guarded).client_options(McpHttpClient, plain)
        # No timeout: callers have their own.
        super().__init__(timeout=None, limits=httpx2.Limits(**CONNECTIONS), **options)
        self._opens_by_get = opens_by_get
        self._on_failure = on_failure
        self._on_silence = on_silence

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """The response, also to a request that fails. Of one to what is no call the body is left out."""
        is_call = _is_call(request)
        if is_call or request.method == "GET":
            is_noted = is_call or self._opens_by_get
            return await self._send(request, current_exchange() if is_noted else Exchange(), stream=stream, **options)
        try:
            async with asyncio.timeout(SECONDS):  # the library sends nothing else meanwhile
                response = await self._send(request, Exchange(), stream=True, **options)
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                await response.stream.aclose()
        except TimeoutError:
            self._on_silence()
            self._on_failure()
            return httpx2.Response(503, request=request)
        response.stream = httpx2.ByteStream(b"")
        return response

    async def _send(
        self, request: httpx2.Request, exchange: Exchange, *, stream: bool, **options: Any
    ) -> httpx2.Response:
        exchange.sent = False
        exchange.status = 0
        exchange.failure = ""
        exchange.in_session = SESSION in request.headers
        try:
            response = await super().send(request, stream=True, **options)  # nothing is read before it is bounded
        except ToolFailed as failed:  # the address is not public
            exchange.failure = failed.message
            exchange.final = failed.non_retryable
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            exchange.failure = f"can't be reached: {error or type(error).__name__}"
        except httpx2.TransportError as error:
            exchange.sent = True
            exchange.failure = f"broke off its answer: {error or type(error).__name__}"
        else:
            exchange.sent = True
            response = await self._checked(response, exchange)
            if not stream:
                await response.aread()
            return response
        self._on_failure()
        return httpx2.Response(503, request=request)

    async def _checked(self, response: httpx2.Response, exchange: Exchange) -> httpx2.Response:
        if response.headers.get("content-encoding", "identity") != "identity":
            exchange.failure = "compressed its answer, which it was asked not to do"
            exchange.final = True
            await response.aclose()
            return httpx2.Response(502, request=response.request)
        is_event_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        limits = BodyLimits(MAX_ANSWER if response.is_success else MAX_ERROR, MAX_OBJECTS)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        body = BoundedBody(response.stream, limits, _OutOfBounds, is_stream=is_event_stream and response.is_success)
        response.stream = _QuietBody(body, exchange, self._on_failure)
        if response.status_code >= 400:
            exchange.text = (await response.aread()).decode(errors="replace")
            exchange.status = response.status_code
            exchange.wait = retry_after(response.headers)
            self._on_failure()
        return response


class _OutOfBounds(Exception):
    """A body is larger than allowed."""


class _QuietBody(httpx2.AsyncByteStream):
    """The body of a response, which ends where the connection breaks or a limit is exceeded.

    An exception would end the connection, and with it the calls of other runs.
    """

    def __init__(self, body: BoundedBody, exchange: Exchange, on_failure: Callable[[], None]) -> None:
        self._body = body
        self._exchange = exchange
        self._on_failure = on_failure

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body:
                yield piece
        except _OutOfBounds as error:
            self._exchange.failure = str(error)
            self._exchange.final = True
            self._on_failure()
        except httpx2.TransportError as error:
            self._exchange.failure = f"broke off its answer: {error or type(error).__name__}"

    async def aclose(self) -> None:
        await self._body.aclose()


def _is_call(request: httpx2.Request) -> bool:
    """Whether a request carries one of JSON-RPC, which may take as long as its caller waits for it."""
    return request.method == "POST" and {"id", "method"} <= json.loads(request.content).keys()
