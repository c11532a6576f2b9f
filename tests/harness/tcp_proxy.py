"""A TCP proxy between a client and a server, whose connections a test can cut."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class TcpProxy:
    """A port that forwards to another port."""

    def __init__(self, port: int) -> None:
        self._port, self._is_cut = port, False
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._drop()

    async def cut(self, seconds: float) -> None:
        """Breaks all connections, and refuses new ones for so many seconds."""
        self._is_cut = True
        self._drop()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._is_cut = False

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, back}
        if self._is_cut:  # meanwhile
            self._drop()
        await asyncio.gather(_pass(reader, back), _pass(there, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
