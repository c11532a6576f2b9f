"""The clients of models' servers: one for each server. Of those that nobody uses, some stay open."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

Server = TypeVar("Server", bound=Hashable)
Client = TypeVar("Client")

MAX_IDLE = 50
"""Clients without a call that stay open. Runs may bring any number of servers and keys; each client has connections."""


@dataclass
class _Open(Generic[Client]):
    client: Client
    stack: AsyncExitStack
    calls: int = 0


class ClientPool(Generic[Server, Client]):
    """``connect`` makes the client of a server, as a context that closes it."""

    def __init__(
        self, connect: Callable[[Server], AbstractAsyncContextManager[Client]], max_idle: int = MAX_IDLE
    ) -> None:
        self._connect, self._max_idle = connect, max_idle
        self._open: dict[Server, _Open[Client]] = {}  # the client that was used last is the last one
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def client(self, server: Server) -> AsyncIterator[Client]:
        """The client of a server, which stays open while the block runs."""
        async with self._opening:
            used = self._open.pop(server, None) or await self._new(server)
            self._open[server] = used
            used.calls += 1
        try:
            yield used.client
        finally:
            used.calls -= 1
            await self._close_idle(self._max_idle)

    async def close(self) -> None:
        """Closes all clients without a call."""
        await self._close_idle(0)

    async def _new(self, server: Server) -> _Open[Client]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._connect(server))
            return _Open(client, stack.pop_all())

    async def _close_idle(self, left: int) -> None:
        idle = [server for server, each in self._open.items() if not each.calls]
        for each in [self._open.pop(server) for server in idle[: max(0, len(idle) - left)]]:
            with contextlib.suppress(Exception):  # whoever has called has an answer already
                await each.stack.aclose()
