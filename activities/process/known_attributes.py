"""Knows which of Baton's search attributes the server has, and asks again as long as some are missing."""

import asyncio

from temporalio.client import Client

from ...conversation.temporal.search_attributes import registered, shows_cost

INTERVAL = 30.0
"""Seconds from one question to the next, as long as an attribute is missing."""


class KnownAttributes:
    """The attributes that a server has. They may be registered after the worker has started, and stay then."""

    def __init__(self, client: Client, interval: float = INTERVAL) -> None:
        self._client, self._interval = client, interval
        self._known = {"searchable": False, "shows_cost": False}
        self._next, self._asking = 0.0, asyncio.Lock()

    async def known(self) -> dict[str, bool]:
        """``searchable``: the server has the four of all runs; ``shows_cost``: also that of the cost."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if not all(self._known.values()) and now >= self._next:
                found = {"searchable": await registered(self._client), "shows_cost": await shows_cost(self._client)}
                self._known, self._next = found, now + self._interval
        return self._known
