"""The open connections of a worker to MCP servers."""

import asyncio

from .connection import IDLE, McpConnection
from .endpoint import McpEndpoint


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
