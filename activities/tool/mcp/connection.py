"""A connection to an MCP server: kept and shared by the runs of a worker, and closed when nobody needs it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from typing import Any

from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from ....conversation.errors import ToolFailed
from ...runtime.retry import is_retryable
from .endpoint import McpEndpoint
from .exchange import Exchange, watch_exchange
from .http_client import MAX_ANSWER, MAX_ERROR_TEXT, McpHttpClient
from .input import Elicitations
from .stdio import StdioServer

IDLE = 300.0
"""Seconds after its last call at which a connection is closed."""

CLOSING = 10.0
"""Seconds that closing a connection may take."""

CLIENT = Implementation(name="baton", version="1")


class McpConnection:
    """One session with a server, in a task of its own: whoever opened it may be cancelled, others go on using it.

    The protocol of 2026-07-28 knows no sessions, but a connection all the same: what was negotiated, and a process.
    """

    def __init__(self, endpoint: McpEndpoint, idle: float = IDLE) -> None:
        self.endpoint, self._idle = endpoint, idle
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._users, self._last_used = 0, 0.0
        self._is_retired = self.is_unauthorized = False
        self._stdio = StdioServer(endpoint) if endpoint.command else None
        self._task = asyncio.create_task(self._run(), context=Context())

    @property
    def is_open(self) -> bool:
        """Whether it can be used, as far as is known."""
        return not (self._is_retired or self._closing.is_set() or self._task.done())

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left of it."""
        return self._task.done()

    @property
    def is_running(self) -> bool:
        """Whether the server is a process that reads what is written to it; other servers get requests of their own."""
        return bool(self._stdio and self._stdio.is_running)

    @property
    def failure(self) -> str:
        """Why a request has no answer."""
        return self._stdio.failure if self._stdio else "broke off its answer"

    def lost(self, *, sent: bool) -> None:
        """Closes it where a request without an answer means that no later one will have an answer either."""
        if self._stdio or self.endpoint.transport == "sse" or not sent:
            self.close()

    async def client(self) -> Client:
        """The connected client; raises ToolFailed, which is retryable."""
        await asyncio.wait([self._client])
        if self._client.cancelled():
            raise ToolFailed(f"the connection to {self.endpoint.label} was closed", retryable=True)
        return self._client.result()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keeps it open while the block runs. What nobody waits for any more is not opened further."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._last_used = asyncio.get_running_loop().time()
            if not self._users and not self._client.done():
                self.close()
                self._task.cancel()
            elif self._is_retired:
                self.retire()

    def retire(self) -> None:
        """Lets nobody use it again, and closes it when its last call has ended."""
        self._is_retired = True
        if not self._users:
            self.close()

    def close(self) -> None:
        """Begins to close it: its calls end, and nobody is to use it again."""
        if not self._closing.is_set():
            self._closing.set()
            asyncio.get_running_loop().call_later(CLOSING, self._task.cancel)

    async def closed(self) -> None:
        """Waits until it is closed."""
        self.close()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        with watch_exchange() as exchange:
            try:
                asks: dict[str, Any] = {"elicitation_callback": Elicitations()} if self.endpoint.asks else {}
                given = {"mode": self._mode, "cache": None, "client_info": CLIENT, **asks}
                async with Client(self._transport(), **given) as client:
                    self._client.set_result(client)
                    await self._until_closed()
            except Exception as error:  # whatever the library raises: the server can't be used
                if not self._client.done():
                    self._client.set_exception(self._failed(exchange, error))
                    self._client.exception()  # marks it as seen: whoever asked may have been cancelled
            finally:
                self._closing.set()
                self._client.cancel()

    @property
    def _mode(self) -> str:
        return "legacy" if self.endpoint.transport == "sse" else "auto"

    async def _until_closed(self) -> None:
        """Waits until it begins to close: then nobody gets it any more."""
        while not self._closing.is_set() and (left := self._idle_left()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._closing.wait()
        self.close()

    def _idle_left(self) -> float:
        """Seconds until it is closed, if no call comes."""
        return self._idle if self._users else self._last_used + self._idle - asyncio.get_running_loop().time()

    def _failed(self, exchange: Exchange, error: Exception) -> ToolFailed:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        why, retryable, wait = f"can't be connected to: {error}", True, None
        if self._stdio:
            started = not isinstance(error, OSError)
            why, retryable = (self.failure, True) if started else (f"can't be started: {error}", False)
        elif exchange.status:
            self.is_unauthorized = exchange.status == 401
            why, retryable, wait = _http_error(exchange), is_retryable(exchange.status), exchange.wait
        elif exchange.failure:
            why, retryable = exchange.failure, not exchange.final
        text = f"{self.endpoint.label} {why}"[:MAX_ERROR_TEXT]
        return ToolFailed(text, retryable=retryable, retry_after=wait, outage=not 400 <= exchange.status < 500)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """The streams of messages, by the transport of the endpoint."""
        async with AsyncExitStack() as stack:
            if self._stdio:
                yield await stack.enter_async_context(self._stdio.transport())
            elif self.endpoint.transport == "sse":
                # its messages have no answers of their own: one that fails ends the connection
                client = self._http(on_failure=self.close, opens_by_get=True)
                streams = sse_client(
                    self.endpoint.address, httpx_client_factory=lambda headers=None, timeout=None, auth=None: client
                )
                yield await stack.enter_async_context(streams)
            else:
                client = await stack.enter_async_context(self._http())
                streams = streamable_http_client(
                    self.endpoint.address, http_client=client, max_sse_event_size=MAX_ANSWER
                )
                yield await stack.enter_async_context(streams)

    def _http(self, on_failure: Callable[[], None] = lambda: None, *, opens_by_get: bool = False) -> McpHttpClient:
        return McpHttpClient(
            dict(self.endpoint.headers),
            guarded=self.endpoint.guarded,
            opens_by_get=opens_by_get,
            on_failure=on_failure,
            on_silence=self.retire,
        )


def _http_error(exchange: Exchange) -> str:
    return f"answered HTTP {exchange.status}: {' '.join(exchange.text.split())}".rstrip(": ")
