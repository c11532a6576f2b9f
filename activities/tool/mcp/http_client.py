"""The HTTP client of MCP connections: it bounds responses, and protects the worker's own network."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx2

from ....contracts.errors import ToolFailed
from ...runtime.http import retry_after
from ...runtime.outbound import CONNECTIONS, BodyLimits, BoundedBody, Destination, Outbound


@dataclass
class Exchange:
    """The last request of a call.

    ``sent``: it may have reached the server. ``status``: that of an error response, with its ``text`` and the delay
    ``wait`` that the server requests. ``failure``: why there is no response; ``final``: it is not retryable.
    ``in_session``: the request had a session id.
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
        """Whether the server has lost the session, or requires one: the request had no effect.

        (MCP: session management.) It requires one if it was rolled back to an older version during the connection.
        """
        return (self.in_session and self.status == 404) or (self.status == 400 and "session" in self.text.lower())


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


@contextmanager
def watch_exchange() -> Iterator[Exchange]:
    """Records the exchange of requests in the block, and in tasks that it starts."""
    token = _current.set(exchange := Exchange())
    try:
        yield exchange
    finally:
        _current.reset(token)


def current_exchange() -> Exchange:
    """The exchange of the current call; outside of one a new one, which is not read."""
    return _current.get() or Exchange()


MAX_ANSWER = 4_000_000
"""Bytes of one response, or of one event of a stream."""

MAX_OBJECTS = 30_000
"""Objects and arrays in one response: many small values take far longer to parse than one long text."""

MAX_ERROR = 20_000
"""Bytes of the body of an error response."""

MAX_ERROR_TEXT = 5_000
"""Characters of an error. It is truncated further after redaction."""

SECONDS = 3.0
"""The timeout of requests that are not calls: a notification, a client's response, or the end of a session."""

SESSION = "mcp-session-id"


class McpHttpClient(httpx2.AsyncClient):
    """Sends the requests of one connection.

    A failed request returns a response with status 503, and ``current_exchange`` has the reason: an exception would end
    the connection, and with it the calls of other runs. ``opens_by_get``: a GET request opens the connection, as with
    SSE. ``on_failure`` is called if a request fails or has an error status, ``on_silence`` if the server does not
    respond to a request that is not a call. It is made by ``open_mcp_client``.
    """

    def __init__(
        self,
        *,
        opens_by_get: bool,
        on_failure: Callable[[], None],
        on_silence: Callable[[], None],
        **options: Any,
    ) -> None:
        # No timeout: callers set their own.
        super().__init__(timeout=None, limits=httpx2.Limits(**CONNECTIONS), **options)
        self._opens_by_get = opens_by_get
        self._on_failure = on_failure
        self._on_silence = on_silence

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """The response, or a 503 for a failed request. If the request is not a call, the body is discarded."""
        is_call = _is_call(request)
        if is_call or request.method == "GET":
            exchange = current_exchange() if is_call or self._opens_by_get else Exchange()
            return await self._send(request, exchange, stream=stream, **options)
        try:
            async with asyncio.timeout(SECONDS):  # the library sends no other request in the meantime
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
            response = await super().send(request, stream=True, **options)  # streamed, so that the body can be bounded
        except ToolFailed as failed:  # the address is not public
            exchange.failure = failed.message
            exchange.final = failed.non_retryable
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            exchange.failure = f"can't be reached: {error or type(error).__name__}"
        except httpx2.TransportError as error:
            exchange.sent = True
            exchange.failure = f"did not complete its response: {error or type(error).__name__}"
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
            exchange.failure = "sent a compressed response, which was not requested"
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


def open_mcp_client(
    destination: Destination,
    headers: Mapping[str, str],
    *,
    opens_by_get: bool = False,
    on_failure: Callable[[], None] = lambda: None,
    on_silence: Callable[[], None] = lambda: None,
) -> McpHttpClient:
    """A client for one connection, which sends ``headers`` with every request."""
    # No compression, even if the manifest's headers request it: compressed responses are rejected.
    plain = {name: value for name, value in headers.items() if name.lower() != "accept-encoding"}
    # The tasks of a connection send the requests of all its calls: ``use_tool`` checks the lease of each.
    outbound = Outbound(limits=None, destination=destination, headers=plain, checks_lease=False)
    return outbound.open(McpHttpClient, opens_by_get=opens_by_get, on_failure=on_failure, on_silence=on_silence)


class _OutOfBounds(Exception):
    """A body exceeds its limits."""


class _QuietBody(httpx2.AsyncByteStream):
    """The body of a response, which ends if the connection is lost or a limit is exceeded.

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
            self._exchange.failure = f"did not complete its response: {error or type(error).__name__}"

    async def aclose(self) -> None:
        await self._body.aclose()


def _is_call(request: httpx2.Request) -> bool:
    """Whether a request contains a JSON-RPC request, whose timeout is that of its caller."""
    return request.method == "POST" and {"id", "method"} <= json.loads(request.content).keys()
