"""The OAuth tokens that workers have refreshed, in the journal's database: encrypted, and refreshed under a lease."""

import time

from sqlalchemy import Connection, select, update

from . import schema
from .database import Database
from .quotas import database_time
from .rows import insert_missing

_table = schema.tokens


class TokenStore:
    """The encrypted tokens, by their ids; the store can't decrypt them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, token_id: str) -> str:
        """The current token with that id; empty if none was written."""
        rows = await self._database.run(select(_table.c.token).where(_table.c.id == token_id))
        return rows[0].token if rows else ""

    async def lease(self, token_id: str, known: str, seconds: float) -> int:
        """Leases the refresh of a token to the caller for so many seconds, if it is still the ``known`` one.

        Returns the lease, or 0 if another worker holds it or the token has changed.
        """

        def execute(connection: Connection) -> int:
            now = int(database_time(connection) * 1_000)
            row = {"id": token_id, "token": "", "leased_until": 0, "changed": now // 1_000}
            lease = now + int(seconds * 1_000)
            free = update(_table).where(_table.c.id == token_id, _table.c.token == known, _table.c.leased_until <= now)
            connection.execute(insert_missing(connection.dialect.name, _table), [row])
            taken = connection.execute(free.values(leased_until=lease).returning(_table.c.id)).all()
            return lease if taken else 0

        return await self._database.transact(execute)

    async def write(self, token_id: str, known: str, token: str) -> None:
        """Replaces the ``known`` token and ends its lease; does nothing if another worker has replaced it."""
        here = update(_table).where(_table.c.id == token_id, _table.c.token == known)
        new = {"token": token, "leased_until": 0, "changed": int(time.time())}
        await self._database.run(here.values(new).returning(_table.c.id))

    async def release(self, token_id: str, lease: int) -> None:
        """Ends a lease, if the caller still holds it."""
        here = update(_table).where(_table.c.id == token_id, _table.c.leased_until == lease)
        await self._database.run(here.values(leased_until=0).returning(_table.c.id))
