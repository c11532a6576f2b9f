"""How is the journal's database used? A statement at a time, until it has worked; long values are kept as they are."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import Connection, Executable, Table, select
from sqlalchemy import Row as Found

from ...conversation.errors import JournalLost, JournalUnavailable
from . import schema
from .engine import Engine, connect
from .migrate import migrate
from .statements import hold, insert_new

PATIENCE = 1.0
"""Seconds between two attempts to reach the journal."""

_log = logging.getLogger(__name__)


class Database:
    """The database of a journal."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._under_way = set[asyncio.Task[Sequence[Found[Any]]]]()

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, url: str) -> AsyncIterator[Self]:
        """The database at ``url`` while the block runs; raises JournalUnavailable."""
        database = cls(connect(url))
        try:
            await migrate(database.engine)
            yield database
        finally:
            await database.close()

    async def close(self) -> None:
        """Gives the database's connections back, when the statements under way are through."""
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self.engine.dispose()

    async def insert(self, table: Table, *rows: Mapping[str, Any]) -> Sequence[Found[Any]]:
        """Inserts rows whose keys aren't there yet; the keys of those it has inserted."""
        return await self.run(insert_new(self.engine.dialect, table), *rows)

    async def run(self, statement: Executable, *given: Mapping[str, Any]) -> Sequence[Found[Any]]:
        """Runs one statement, and waits as long as the journal can't be reached: an answer may have been paid for."""
        while True:
            try:
                return await self._uninterrupted(statement, *given)
            except JournalUnavailable as error:
                _log.warning("waiting for the journal: %s", error.message)
                await asyncio.sleep(PATIENCE)

    async def _uninterrupted(self, statement: Executable, *given: Mapping[str, Any]) -> Sequence[Found[Any]]:
        """Runs one statement to its end, whoever has stopped waiting: one broken off would leave its lock behind."""
        task = asyncio.create_task(self._execute(statement, *given))
        self._under_way.add(task)
        task.add_done_callback(self._through)
        return await asyncio.shield(task)

    def _through(self, task: "asyncio.Task[Sequence[Found[Any]]]") -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # asyncio would log it where nobody waits any more

    async def _execute(self, statement: Executable, *given: Mapping[str, Any]) -> Sequence[Found[Any]]:
        def execute(connection: Connection) -> Sequence[Found[Any]]:
            result = connection.execute(statement, given if len(given) > 1 else next(iter(given), None))
            return result.all() if result.returns_rows else ()

        return await self.engine.run(execute)

    async def keep(self, blob: bytes, family: str) -> str:
        """Keeps bytes under their SHA-256, as long as workflows of a family are kept, and returns that."""
        sha = hashlib.sha256(blob).hexdigest()
        await self.run(hold(self.engine.dialect, family, sha))
        await self.insert(schema.blobs, {"sha": sha, "blob": blob})
        return sha

    async def kept(self, sha: str) -> bytes:
        """The bytes that are kept under ``sha``; raises JournalLost if there are none."""
        found = await self.run(select(schema.blobs.c.blob).where(schema.blobs.c.sha == sha))
        if not found:
            raise lost(f"the value {sha}")
        blob: bytes = found[0][0]
        return blob


def lost(what: str) -> JournalLost:
    """The error for what should stand in the journal."""
    return JournalLost(
        f"the journal does not hold {what}: restore the journal's database from the backup that belongs to Temporal's"
    )
