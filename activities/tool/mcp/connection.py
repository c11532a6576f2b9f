"""A connection to an MCP server, which the runs of a worker share, and which is closed when it is idle."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, ObjectReceiveStream, ObjectSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp_types import Implementation, jsonrpc_message_adapter
from pydantic import ValidationError

from ....contracts.errors import ToolFailed
from ...runtime.http import is_retryable
from ...runtime.outbound import Destination, count_objects
from .endpoint import McpEndpoint
from .http_client import (
    MAX_ANSWER,
    MAX_ERROR_TEXT,
    MAX_OBJECTS,
    Exchange,
    McpHttpClient,
    open_mcp_client,
    watch_exchange,
)
from .input import Elicitations

GRACE = 2.0
"""Seconds in which the process has to exit after its stdin was closed, and again after SIGTERM."""

MAX_STDERR = 2_000
"""Characters at the end of its stderr that are included in errors."""

Streams = tuple[ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]]

_GONE = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


class StdioServer:
    """One process. ``failure`` is the reason why it can no longer be used.

    The SDK's own transport is not used: it buffers lines of any length, and passes stderr on to the worker's log.
    """

    def __init__(self, endpoint: McpEndpoint) -> None:
        self._endpoint = endpoint
        self._errors = ""
        self._why = ""
        self._process: Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process runs and has not failed."""
        return bool(self._process and self._process.returncode is None and not self._why)

    @property
    def failure(self) -> str:
        """Why it has failed, with the end of its stderr."""
        code = self._process.returncode if self._process else None
        ended = self._why or ("has exited" if code is None else f"has exited with code {code}")
        return f"{ended}: {' '.join(self._errors.split())}".rstrip(": ")

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Streams]:
        """Runs the process while the block runs, and yields its message streams. Raises OSError."""
        env = get_default_environment() | dict(self._endpoint.env)
        command = self._endpoint.command
        process = self._process = await anyio.open_process(command, env=env, start_new_session=True)
        assert process.stdin and process.stdout and process.stderr
        read, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, written = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, process.stdout, read)
            group.start_soon(self._write, process, written)
            group.start_soon(self._keep_errors, process.stderr)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    await _stop(process)
                group.cancel_scope.cancel()
        await process.aclose()

    async def _read(self, stdout: ByteReceiveStream, read: ObjectSendStream[SessionMessage | Exception]) -> None:
        lines = BufferedByteReceiveStream(stdout)
        with suppress(*_GONE, anyio.IncompleteRead):
            async with read:
                while True:
                    try:
                        line = await lines.receive_until(b"\n", MAX_ANSWER)
                    except anyio.DelimiterNotFound:
                        self._why = f"sent more than {MAX_ANSWER:,} bytes"
                        return
                    if count_objects(line) > MAX_OBJECTS:
                        self._why = f"sent more than {MAX_OBJECTS:,} objects"
                        return
                    with suppress(ValidationError):  # lines that are not messages, such as log lines, are ignored
                        await read.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))

    async def _write(self, process: Process, written: ObjectReceiveStream[SessionMessage]) -> None:
        assert process.stdin
        with suppress(*_GONE):
            async with written:
                async for message in written:
                    await process.stdin.send(
                        message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                    )

    async def _keep_errors(self, stderr: ByteReceiveStream) -> None:
        with suppress(*_GONE):
            async for chunk in stderr:
                self._errors = (self._errors + chunk.decode(errors="replace"))[-MAX_STDERR:]


async def _stop(process: Process) -> None:
    """Closes stdin; if the process does not exit, it and its children are terminated."""
    assert process.stdin
    with suppress(*_GONE):
        await process.stdin.aclose()
    with anyio.move_on_after(GRACE):
        while process.returncode is None:
            await anyio.sleep(0.01)
    if process.returncode is None:
        await terminate_posix_process_tree(process, GRACE)


IDLE = 120.0
"""Seconds after its last call when a connection is closed."""

MAX_CONNECTIONS = 100
"""Default number of connections, with servers that are processes among them."""

CLOSING = 10.0
"""The timeout of closing a connection."""

CLIENT = Implementation(name="baton", version="1")


class McpConnection:
    """One session with a server, in its own task: if the call that opened it is canceled, other calls still use it.

    The protocol of 2026-07-28 has no sessions; its connection is the negotiated version, and perhaps a process.
    """

    def __init__(self, endpoint: McpEndpoint, idle: float = IDLE) -> None:
        self.endpoint = endpoint
        self._idle = idle
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._users = 0
        self._last_used = 0.0
        self._is_retired = False
        self.is_unauthorized = False
        self._stdio = StdioServer(endpoint) if endpoint.command else None
        self._task = asyncio.create_task(self._run(), context=Context())

    @property
    def is_open(self) -> bool:
        """Whether new calls may use it."""
        return not (self._is_retired or self._closing.is_set() or self._task.done())

    @property
    def is_closed(self) -> bool:
        """Whether it is completely closed."""
        return self._task.done()

    @property
    def idle_since(self) -> float | None:
        """When its last call ended, in the event loop's time; None while it has calls, or starts to close."""
        return None if self._users or not self.is_open else self._last_used

    def on_closed(self, notify: Callable[[], None]) -> None:
        """Calls ``notify`` when it is completely closed."""
        self._task.add_done_callback(lambda _: notify())

    @property
    def is_running(self) -> bool:
        """Whether the server is a running process, which reads what is written to it."""
        return bool(self._stdio and self._stdio.is_running)

    @property
    def failure(self) -> str:
        """Why a request has no response."""
        return self._stdio.failure if self._stdio else "did not complete its response"

    def lost(self, *, sent: bool) -> None:
        """Closes the connection after a request without a response, if later ones would get no response either."""
        if self._stdio or self.endpoint.transport == "sse" or not sent:
            self.close()

    async def client(self) -> Client:
        """The connected client. Raises ToolFailed."""
        await asyncio.wait([self._client])
        if self._client.cancelled():
            raise ToolFailed(f"the connection to {self.endpoint.label} was closed", retryable=True)
        return self._client.result()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Prevents closing while the block runs. Without users, a connection that is still being opened is canceled."""
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
        """Rejects new calls, and closes the connection when its last call has ended."""
        self._is_retired = True
        if not self._users:
            self.close()

    def close(self) -> None:
        """Starts to close the connection: its calls end, and it can't be used again."""
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
                options = {"mode": self._mode, "cache": None, "client_info": CLIENT, **asks}
                async with Client(self._transport(), **options) as client:
                    self._client.set_result(client)
                    await self._until_closed()
            except Exception as error:  # any error of the library: the server can't be used
                if not self._client.done():
                    self._client.set_exception(self._failed(exchange, error))
                    self._client.exception()  # marks it as retrieved: the waiting call may have been canceled
            finally:
                self._closing.set()
                self._client.cancel()

    @property
    def _mode(self) -> str:
        return "legacy" if self.endpoint.transport == "sse" else "auto"

    async def _until_closed(self) -> None:
        """Waits until the connection is idle for too long or starts to close."""
        while not self._closing.is_set() and (left := self._idle_left()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._closing.wait()
        self.close()

    def _idle_left(self) -> float:
        """Seconds until the connection is closed unless there is another call."""
        return self._idle if self._users else self._last_used + self._idle - asyncio.get_running_loop().time()

    def _failed(self, exchange: Exchange, error: Exception) -> ToolFailed:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        why = f"can't be connected to: {error}"
        retryable = True
        wait = None
        if self._stdio:
            started = not isinstance(error, OSError)
            why = self.failure if started else f"can't be started: {error}"
            retryable = started
        elif exchange.status:
            self.is_unauthorized = exchange.status == 401
            why = _http_error(exchange)
            retryable = is_retryable(exchange.status)
            wait = exchange.wait
        elif exchange.failure:
            why = exchange.failure
            retryable = not exchange.final
        text = f"{self.endpoint.label} {why}"[:MAX_ERROR_TEXT]
        return ToolFailed(text, retryable=retryable, retry_after=wait, outage=not 400 <= exchange.status < 500)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """The message streams of the endpoint's transport."""
        async with AsyncExitStack() as stack:
            if self._stdio:
                yield await stack.enter_async_context(self._stdio.transport())
                return
            assert self.endpoint.destination, "a server without a command has an address"
            server = self.endpoint.destination
            if self.endpoint.transport == "sse":
                # POST requests have no responses of their own: a failed one ends the connection
                client = self._http(server, on_failure=self.close, opens_by_get=True)
                streams = sse_client(
                    server.url, httpx_client_factory=lambda headers=None, timeout=None, auth=None: client
                )
                yield await stack.enter_async_context(streams)
            else:
                client = await stack.enter_async_context(self._http(server))
                streams = streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_ANSWER)
                yield await stack.enter_async_context(streams)

    def _http(
        self, server: Destination, on_failure: Callable[[], None] = lambda: None, *, opens_by_get: bool = False
    ) -> McpHttpClient:
        return open_mcp_client(
            server,
            dict(self.endpoint.headers),
            opens_by_get=opens_by_get,
            on_failure=on_failure,
            on_silence=self.retire,
        )


def _http_error(exchange: Exchange) -> str:
    return f"answered HTTP {exchange.status}: {' '.join(exchange.text.split())}".rstrip(": ")


class McpConnections:
    """The connections by endpoint, at most ``most``. They are closed ``idle`` seconds after their last call.

    Endpoints with different tokens have different connections. If a call needs one more than ``most``, the connection
    whose last call is longest ago is closed; while all of them have calls, further calls wait in their order.
    """

    def __init__(self, idle: float = IDLE, most: int = MAX_CONNECTIONS) -> None:
        self._idle = idle
        self._open = dict[McpEndpoint, McpConnection]()
        self._all = set[McpConnection]()
        self._slots = asyncio.Semaphore(most)
        self._waiting = 0

    @asynccontextmanager
    async def used(self, endpoint: McpEndpoint) -> AsyncIterator[McpConnection]:
        """The connection to an endpoint, which is opened if there is none, and not closed while the block runs."""
        connection = self.find(endpoint) or await self._opened(endpoint)
        try:
            with connection.used():
                yield connection
        finally:
            self._make_room()

    def find(self, endpoint: McpEndpoint) -> McpConnection | None:
        """The open connection to an endpoint, if there is one."""
        connection = self._open.get(endpoint)
        return connection if connection and connection.is_open else None

    async def _opened(self, endpoint: McpEndpoint) -> McpConnection:
        """A new connection, or one that another call has opened while this one waited for room."""
        self._waiting += 1
        try:
            self._make_room()
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        if connection := self.find(endpoint):
            self._slots.release()
            return connection
        connection = McpConnection(endpoint, self._idle)
        connection.on_closed(lambda: self._forget(connection))
        self._open[endpoint] = connection
        self._all.add(connection)
        return connection

    def _forget(self, connection: McpConnection) -> None:
        self._all.discard(connection)
        if self._open.get(connection.endpoint) is connection:
            del self._open[connection.endpoint]
        self._slots.release()

    def _make_room(self) -> None:
        """Closes idle connections, the least recently used first, as many as calls wait for."""
        if not (self._waiting and self._slots.locked()):
            return
        closing = sum(not connection.is_open for connection in self._all)
        idle = sorted(
            (since, id(connection), connection)
            for connection in self._all
            if (since := connection.idle_since) is not None
        )
        for _, _, connection in idle[: max(0, self._waiting - closing)]:
            connection.close()

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(connection.closed() for connection in [*self._all]))
