"""The OAuth tokens that workers have refreshed, in the journal's database: sealed, and refreshed by one at a time."""

import time

from sqlalchemy import Connection, select, update

from . import schema
from .database import Database
from .statements import insert_missing

_table = schema.tokens


class TokenStore:
    """The sealed tokens, by their ids. It can't open them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, token_id: str) -> str:
        """The newest token of an id; empty if none was written."""
        found = await self._database.run(select(_table.c.token).where(_table.c.id == token_id))
        return found[0].token if found else ""

    async def lease(self, token_id: str, known: str, seconds: float) -> bool:
        """Whether the caller alone may refresh a token for so many seconds: it is still the ``known`` one."""
        now = int(time.time() * 1_000)
        row = {"id": token_id, "token": "", "leased_until": 0, "changed": now // 1_000}
        free = update(_table).where(_table.c.id == token_id, _table.c.token == known, _table.c.leased_until <= now)

        def execute(connection: Connection) -> bool:
            connection.execute(insert_missing(connection.dialect.name, _table), [row])
            taken = free.values(leased_until=now + int(seconds * 1_000)).returning(_table.c.id)
            return bool(connection.execute(taken).all())

        return await self._database.transact(execute)

    async def write(self, token_id: str, known: str, token: str) -> None:
        """Replaces the ``known`` token, and ends the lease; nothing if somebody else has replaced it."""
        here = update(_table).where(_table.c.id == token_id, _table.c.token == known)
        new = {"token": token, "leased_until": 0, "changed": int(time.time())}
        await self._database.run(here.values(new).returning(_table.c.id))
