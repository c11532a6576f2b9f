"""Does the worker work? An HTTP address that says so, for what watches over containers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

_REPLY = "HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}"

PATIENCE = 5.0
"""Seconds for a request to come."""


@contextlib.asynccontextmanager
async def health(port: int | None, works: Callable[[], bool]) -> AsyncIterator[None]:
    """Answers every request to ``port`` as long as the block runs: 200 while ``works`` says so, 503 when it doesn't.

    Without a port nobody is answered. It says nothing of Temporal: a restart of the worker would not bring that back.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            status, text = ("200 OK", "working\n") if works() else ("503 Service Unavailable", "ending\n")
            writer.write(_REPLY.format(status, len(text), text).encode())
            await writer.drain()
        writer.close()

    if port is None:
        yield
        return
    server = await asyncio.start_server(answer, port=port)
    try:
        yield
    finally:
        server.close()
