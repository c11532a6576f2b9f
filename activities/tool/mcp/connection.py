"""A connection to an MCP server: kept and shared by the runs of a worker, and closed when nobody needs it."""

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
from ...runtime.outbound import count_objects
from .endpoint import McpEndpoint
from .http_client import MAX_ANSWER, MAX_ERROR_TEXT, MAX_OBJECTS, Exchange, McpHttpClient, watch_exchange
from .input import Elicitations

GRACE = 2.0
"""Seconds that the process has to end by itself after its stdin was closed, and again after SIGTERM."""

KEPT_ERRORS = 2_000
"""Characters of the end of its stderr that are kept: an error quotes them."""

Streams = tuple[ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]]

_GONE = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


class StdioServer:
    """One process. ``failure`` says why it can no longer be used.

    The SDK's own transport is not used: it keeps a line of any length, and lets the process write into our log.
    """

    def __init__(self, endpoint: McpEndpoint) -> None:
        self._endpoint = endpoint
        self._errors = self._why = ""
        self._process: Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process reads and answers, as far as is known."""
        return bool(self._process and self._process.returncode is None and not self._why)

    @property
    def failure(self) -> str:
        """Why it has ended, with the end of what it wrote to stderr."""
        code = self._process.returncode if self._process else None
        ended = self._why or ("has ended" if code is None else f"has ended with the code {code}")
        return f"{ended}: {' '.join(self._errors.split())}".rstrip(": ")

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Streams]:
        """Runs the process while the block runs, and gives the streams of its messages. Raises OSError."""
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
                        self._why = f"gives more than {MAX_ANSWER:,} bytes"
                        return
                    if count_objects(line) > MAX_OBJECTS:
                        self._why = f"gives more than {MAX_OBJECTS:,} objects"
                        return
                    with suppress(ValidationError):  # what is no message, such as a line of a log, is passed over
                        await read.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))

    async def _write(self, process: Process, written: ObjectReceiveStream[SessionMessage]) -> None:
        assert process.stdin
        with suppress(*_GONE):
            async with written:
                async for each in written:
                    await process.stdin.send(
                        each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                    )

    async def _keep_errors(self, stderr: ByteReceiveStream) -> None:
        with suppress(*_GONE):
            async for chunk in stderr:
                self._errors = (self._errors + chunk.decode(errors="replace"))[-KEPT_ERRORS:]


async def _stop(process: Process) -> None:
    """Closes stdin; if the process does not end by itself, it and its children are terminated."""
    assert process.stdin
    with suppress(*_GONE):
        await process.stdin.aclose()
    with anyio.move_on_after(GRACE):
        while process.returncode is None:
            await anyio.sleep(0.01)
    if process.returncode is None:
        await terminate_posix_process_tree(process, GRACE)


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
        self.endpoint = endpoint
        self._idle = idle
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._users = 0
        self._last_used = 0.0
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
        why = f"can't be connected to: {error}"
        retryable = True
        wait = None
        if self._stdio:
            started = not isinstance(error, OSError)
            why, retryable = (self.failure, True) if started else (f"can't be started: {error}", False)
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


class McpConnections:
    """The connections, by endpoint; each is closed ``idle`` seconds after its last call."""

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._open = dict[McpEndpoint, McpConnection]()
        self._all = set[McpConnection]()

    def to(self, endpoint: McpEndpoint) -> McpConnection:
        """The connection to an endpoint, opened if there is none."""
        found = self._open.get(endpoint)
        if found is None or not found.is_open:
            self._all = {each for each in self._all if not each.is_closed}
            self._open = {each.endpoint: each for each in self._all if each.is_open}
            found = self._open[endpoint] = McpConnection(endpoint, self._idle)
            self._all.add(found)
        return found

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(each.closed() for each in self._all))
