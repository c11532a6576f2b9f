"""How is a conversation kept and read? Append, graft and read by heads; nothing that stands is ever changed."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from cachetools import LRUCache
from sqlalchemy import Executable, select
from sqlalchemy import Row as Found
from sqlalchemy.ext.asyncio import AsyncEngine

from activities.journal import schema
from activities.journal.database import connect, insert_new, prepare, reach, set_bookmark
from activities.journal.row import Row
from activities.journal.sealing import Seal, key_ids
from conversation.encryption import Keys
from conversation.errors import JournalLost, JournalUnavailable
from conversation.message import Head, Message, Quote, Span
from conversation.requests import Bookmark, Item
from conversation.settings import SettingsError
from resources.catalog import Catalog

CACHED = 64_000_000
"""Characters of rows that a worker keeps in memory."""

PATIENCE = 1.0
"""Seconds between two attempts to reach the journal."""

NO_KEYS = Keys()

_log = logging.getLogger(__name__)


class Journal:
    """The journal of all runs. A row's id is the call that made it, so that a repeated call writes nothing new."""

    def __init__(self, engine: AsyncEngine, seal: Seal) -> None:
        self._engine, self._seal = engine, seal
        self._rows: LRUCache[str, Row] = LRUCache(CACHED, getsizeof=lambda row: row.size)
        self._catalogs: LRUCache[str, Catalog] = LRUCache(100)

    @classmethod
    async def open(cls, url: str, keys: Keys = NO_KEYS) -> "Journal":
        """Opens the journal at ``url``, which ``keys`` seal.

        Raises JournalUnavailable if that is not possible, and SettingsError if others have sealed it with other keys.
        """
        journal = cls(connect(url), Seal(keys))
        try:
            await prepare(journal._engine)
            await journal._seal.agree(journal._engine)
        except (JournalUnavailable, SettingsError):
            await journal.close()
            raise
        return journal

    async def close(self) -> None:
        """Gives the database's connections back."""
        await self._engine.dispose()

    async def key_ids(self) -> Sequence[str]:
        """The ids of all keys that the journal has ever been sealed with."""
        return await key_ids(self._engine)

    async def pin(self, catalog: Catalog) -> str:
        """Keeps a catalog under its SHA-256 and returns that."""
        await self._run(insert_new(self._engine, schema.catalogs, [self._seal.catalog(catalog)]))
        return catalog.sha

    async def catalog(self, sha: str) -> Catalog:
        """The catalog that was pinned under ``sha``; raises JournalLost if there is none."""
        if sha not in self._catalogs:
            found = await self._run(select(schema.catalogs).where(schema.catalogs.c.sha.in_(self._seal.names(sha))))
            if not found:
                raise _lost(f"the catalog {sha}")
            self._catalogs[sha] = self._seal.read_catalog(found[0])
        return self._catalogs[sha]

    async def append(self, head: Head, items: Iterable[Item], call: str) -> Head:
        """Puts items on top of a head, as the rows ``call/0``, ``call/1`` and so on, and returns the head after them.

        A span that begins at the head is not copied. Raises JournalLost if what it builds on is not there.
        """
        messages: list[Message] = []
        for item in items:
            if isinstance(item, Message):
                messages.append(item)
            elif isinstance(item, Quote):
                messages.append(item.of((await self._found(item.row)).message))
            elif item.after == head and not messages:
                head = item.to
            else:
                messages.extend(row.message for row in await self._between(item))
        rows: list[Row] = []
        for number, message in enumerate(messages):
            rows.append(Row(f"{call}/{number}", head.id, head.depth + 1, message))
            head = rows[-1].head
        await self._write(rows)
        for row in rows:
            self._keep(row)
        return head

    async def answer(self, head: Head, message: Message, row_id: str) -> Row:
        """Puts an answer on top of a head, unless the same call has been answered already; the answer that stands."""
        await self._write([Row(row_id, head.id, head.depth + 1, message)])
        return await self._found(row_id)

    async def find(self, row_id: str) -> Row | None:
        """The row of that id, if it has been written."""
        if row := self._rows.get(row_id):
            return row
        found = await self._run(select(schema.messages).where(schema.messages.c.id == row_id))
        return self._keep(self._seal.read_row(found[0])) if found else None

    async def bookmark(self, mark: Bookmark, head: Head, *, anew: bool) -> None:
        """Moves a bookmark to a head, unless another run has set one ``anew`` under its key meanwhile."""
        await self._run(set_bookmark(self._engine, mark, head, anew=anew))

    async def bookmarked(self, session: str, key: str) -> Sequence[Row]:
        """The rows of the transcript that is kept under a session's key, none if there is no such thing."""
        marks = schema.bookmarks
        found = await self._run(select(marks).where(marks.c.session == session, marks.c.key == key))
        if not found:
            return ()
        rows = await self.read(Head(id=found[0].head, depth=found[0].depth))
        return rows[found[0].begun :]

    async def read(self, head: Head) -> list[Row]:
        """The conversation up to a head, its first row first; raises JournalLost if a part of it is missing."""
        rows: list[Row] = []
        wanted = head.id
        while wanted and (row := self._rows.get(wanted)):
            rows.append(row)
            wanted = row.parent
        if wanted:
            rows.extend(await self._chain(wanted))
        if len(rows) != head.depth:
            raise _lost(f"the conversation up to {head.id}")
        return rows[::-1]

    async def _found(self, row_id: str) -> Row:
        if row := await self.find(row_id):
            return row
        raise _lost(f"the row {row_id}")

    async def _between(self, span: Span) -> list[Row]:
        rows = await self.read(span.to)
        return rows[span.after.depth :]

    async def _write(self, rows: list[Row]) -> None:
        if not rows:
            return
        below = rows[0].parent
        if below and await self.find(below) is None:
            raise _lost(f"the row {below}")
        await self._run(insert_new(self._engine, schema.messages, [*map(self._seal.row, rows)]))

    async def _chain(self, last: str) -> list[Row]:
        """The rows from ``last`` back to the first."""
        messages = schema.messages
        chain = select(messages).where(messages.c.id == last).cte("chain", recursive=True)
        before = messages.alias()
        chain = chain.union_all(select(before).join(chain, before.c.id == chain.c.parent))
        found = await self._run(select(chain).order_by(chain.c.depth.desc()))
        return [self._keep(self._seal.read_row(row)) for row in found]

    async def _run(self, statement: Executable) -> Sequence[Found[Any]]:
        """Runs one statement, and waits as long as the journal can't be reached: an answer may have been paid for."""
        while True:
            try:
                async with reach(self._engine) as connection:
                    result = await connection.execute(statement)
                    return result.all() if result.returns_rows else ()
            except JournalUnavailable as error:
                _log.warning("waiting for the journal: %s", error.message)
                await asyncio.sleep(PATIENCE)

    def _keep(self, row: Row) -> Row:
        if row.size <= CACHED:
            self._rows[row.id] = row
        return row


def _lost(what: str) -> JournalLost:
    return JournalLost(
        f"the journal does not hold {what}: restore the journal's database from the backup that belongs to Temporal's"
    )
