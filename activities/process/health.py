"""The health check of a worker: an HTTP address that answers 200 while the worker runs and 503 while it ends."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LONGEST_CONNECTION = 5.0
"""Seconds after which a connection is closed, whether a client has sent its request or not."""


class _Connection(H11Protocol):
    """A connection for one request, which a client that sends nothing, or not all of it, does not hold open."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        super().connection_made(transport)
        self._limit = self.loop.call_later(LONGEST_CONNECTION, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves SIGINT and SIGTERM to the worker."""
        yield


@contextlib.asynccontextmanager
async def serve_health(port: int | None, is_working: Callable[[], bool]) -> AsyncIterator[None]:
    """Answers every request to ``port`` while the block runs; does nothing without a port.

    It runs in the worker's event loop, so that a worker whose loop is blocked does not answer. It does not check
    Temporal: to restart the worker would not bring that back. Raises OSError if the port is taken.
    """
    if port is None:
        yield
        return

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        status, text = (200, "working\n") if is_working() else (503, "ending\n")
        await PlainTextResponse(text, status, {"connection": "close"})(scope, receive, send)

    config = uvicorn.Config(
        answer,
        lifespan="off",
        ws="none",
        http=_Connection,
        log_config=None,
        log_level="error",
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve([_listen(port)]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _listen(port: int) -> socket.socket:
    """A listening socket on all addresses, IPv4 and, where the machine has it, IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
