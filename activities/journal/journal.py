"""How is a conversation kept and read? Append, graft and read by heads; nothing that stands is ever changed."""

from collections.abc import Callable, Iterable, Sequence

from cachetools import LRUCache
from sqlalchemy import bindparam, select

from ...conversation.contracts.requests import Bookmark, Item
from ...conversation.errors import JournalUnavailable
from ...conversation.messages.message import Head, Message, Quote, Span
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.encryption import Keys
from ...resources.catalog import Catalog
from . import schema
from .database import Database, lost
from .engine import Engine, connect
from .migrate import migrate
from .row import Row
from .row_encryption import Seal, key_ids
from .statements import set_bookmark

CACHED = 64_000_000
"""Characters of rows that a worker keeps in memory."""

PAGE = 100
"""Rows that are read at once, from the last one back."""

NO_KEYS = Keys()

_ROW = select(schema.messages).where(schema.messages.c.id == bindparam("id"))


class Journal(Database):
    """The journal of all runs. A row's id is the call that made it, so that a repeated call writes nothing new."""

    def __init__(self, engine: Engine, seal: Seal) -> None:
        super().__init__(engine)
        self._seal = seal
        self._rows: LRUCache[str, Row] = LRUCache(CACHED, getsizeof=lambda row: row.size)
        self._catalogs: LRUCache[str, Catalog] = LRUCache(100)

    @classmethod
    async def open(cls, url: str, keys: Keys = NO_KEYS) -> "Journal":
        """Opens the journal at ``url``, which ``keys`` seal.

        Raises JournalUnavailable if that is not possible, and SettingsError if others have sealed it with other keys.
        """
        journal = cls(connect(url), Seal(keys))
        try:
            await migrate(journal.engine)
            await journal._seal.agree(journal.engine)
        except (JournalUnavailable, SettingsError):
            await journal.close()
            raise
        return journal

    async def key_ids(self) -> Sequence[str]:
        """The ids of all keys that the journal has ever been sealed with."""
        return await self.engine.run(key_ids)

    async def pin(self, catalog: Catalog, run: str) -> str:
        """Keeps a catalog under its SHA-256, as long as ``run`` is kept, and returns that."""
        await self.insert(schema.uses, {"run": run, "sha": catalog.sha})
        await self.insert(schema.catalogs, self._seal.catalog(catalog))
        return catalog.sha

    async def catalog(self, sha: str) -> Catalog:
        """The catalog that was pinned under ``sha``; raises JournalLost if there is none."""
        if sha not in self._catalogs:
            found = await self.run(select(schema.catalogs).where(schema.catalogs.c.sha.in_(self._seal.names(sha))))
            if not found:
                raise lost(f"the catalog {sha}")
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
                messages.append(item.of((await self.row(item.row)).message))
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
        row = Row(row_id, head.id, head.depth + 1, message)
        return self._keep(row) if await self._write([row]) else await self.row(row_id)

    async def find(self, row_id: str) -> Row | None:
        """The row of that id, if it has been written."""
        if row := self._rows.get(row_id):
            return row
        found = await self.run(_ROW, {"id": row_id})
        return self._keep(self._seal.read_row(found[0])) if found else None

    async def bookmark(self, mark: Bookmark, head: Head, *, anew: bool) -> None:
        """Moves a bookmark to a head, unless another run has set one ``anew`` under its key meanwhile."""
        await self.run(set_bookmark(self.engine.dialect, mark, head, anew=anew))

    async def bookmarked(self, session: str, key: str) -> Sequence[Row]:
        """The rows of the transcript that is kept under a session's key, none if there is no such thing."""
        marks = schema.bookmarks
        found = await self.run(select(marks).where(marks.c.session == session, marks.c.key == key))
        if not found:
            return ()
        first = found[0].begun + 1
        rows = await self.read(Head(id=found[0].head, depth=found[0].depth), lambda row: row.depth == first)
        return rows if rows and rows[0].depth == first else ()

    async def read(self, head: Head, enough: Callable[[Row], bool] | None = None) -> list[Row]:
        """The conversation up to a head, its first row first, or only its end, from the last row that is ``enough``.

        Raises JournalLost if a part of it is missing.
        """
        rows: list[Row] = []
        page: dict[str, Row] = {}
        wanted, depth = head.id, head.depth
        while wanted:
            row = self._rows.get(wanted) or page.get(wanted)
            if row is None:
                page = {each.id: each for each in await self._chain(wanted, depth - PAGE)}
                row = page.get(wanted)
            if row is None or row.depth != depth:
                raise lost(f"the conversation up to {head.id}")
            rows.append(row)
            if enough and enough(row):
                break
            wanted, depth = row.parent, row.depth - 1
        return rows[::-1]

    async def row(self, row_id: str) -> Row:
        """The row of that id; raises JournalLost if there is none."""
        if row := await self.find(row_id):
            return row
        raise lost(f"the row {row_id}")

    async def _between(self, span: Span) -> list[Row]:
        if span.to == span.after:
            return []
        return await self.read(span.to, lambda row: row.depth == span.after.depth + 1)

    async def _write(self, rows: list[Row]) -> bool:
        """Whether any of the rows was not there yet."""
        if not rows:
            return False
        below = rows[0].parent
        if below and await self.find(below) is None:
            raise lost(f"the row {below}")
        return bool(await self.insert(schema.messages, *map(self._seal.row, rows)))

    async def _chain(self, last: str, after: int) -> list[Row]:
        """The rows from ``last`` back to the first after a depth."""
        messages = schema.messages
        chain = select(messages).where(messages.c.id == last).cte("chain", recursive=True)
        before = messages.alias()
        more = select(before).join(chain, before.c.id == chain.c.parent).where(before.c.depth > after)
        found = await self.run(select(chain.union_all(more)))
        return [self._keep(self._seal.read_row(row)) for row in found]

    def _keep(self, row: Row) -> Row:
        if row.size <= CACHED:
            self._rows[row.id] = row
        return row
