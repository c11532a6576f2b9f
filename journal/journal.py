"""The journal of all conversations: appends messages, reads them back from a head, and keeps pinned catalogs.

Rows are only ever added. A row's id comes from the idempotency key of the activity that wrote it, so that an activity
that is retried writes nothing new."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cachetools import LRUCache
from sqlalchemy import bindparam, delete, select

from ..contracts.errors import JournalUnavailable
from ..contracts.message import Head, Message, Quote, RowRange
from ..contracts.plan import ConversationPlan
from ..contracts.requests import Bookmark, ConversationItem
from ..contracts.settings import SettingsError
from ..resources.catalog import Catalog
from ..temporal.activity import in_thread_if_long
from ..temporal.encryption import Keys
from . import schema
from .database import Database, Rows, journal_lost
from .rows import Row, RowEncryption, catalog_id, chain, key_ids, move_conversation, select_back, upsert_bookmark

CACHE_SIZE = 64_000_000
"""Characters of rows that a worker keeps in memory."""

PAGE_SIZE = 100
"""Rows that are read at once, from the last one back."""

NO_KEYS = Keys()

_ROW = select(schema.messages).where(schema.messages.c.id == bindparam("id"))


class Journal:
    """The journal of all runs, in a ``database``."""

    def __init__(self, database: Database, encryption: RowEncryption) -> None:
        self.database = database
        self.encryption = encryption
        self._rows: LRUCache[str, Row] = LRUCache(CACHE_SIZE, getsizeof=lambda row: row.size)
        self._catalogs: LRUCache[str, Catalog] = LRUCache(100)
        self._reading = asyncio.Lock()

    @classmethod
    async def open(cls, url: str, keys: Keys = NO_KEYS, *, upgrade: bool = True) -> "Journal":
        """Opens the journal at ``url``, and migrates its tables if ``upgrade``; ``keys`` encrypt what is written.

        Raises JournalUnavailable if the database can't be used, and SettingsError if a key of others is missing here.
        """
        database = await Database.connect(url, upgrade=upgrade)
        encryption = RowEncryption(keys)
        try:
            await encryption.register(database.engine)
        except (JournalUnavailable, SettingsError):
            await database.close()
            raise
        return cls(database, encryption)

    async def close(self) -> None:
        """Closes the connections when the running statements have ended."""
        await self.database.close()

    async def key_ids(self) -> Sequence[str]:
        """The ids of all keys with which anything was ever written to this journal."""
        return await self.database.engine.run(key_ids)

    async def begin(self, catalog: Catalog, run: str, head: Head, question: Message) -> Row:
        """Stores a ``prepared`` catalog until ``run`` is pruned, and appends a question after a head.

        The question is the row ``run/1``, whichever activity writes it; if that row exists, returns it unchanged.
        """
        columns = await in_thread_if_long(len(catalog.canonical), lambda: self.encryption.encrypt_catalog(catalog))
        rows = chain(head, [(f"{run}/1", question)])
        # In this order, a prune that runs at the same time deletes nothing that is needed.
        use: Rows = (schema.uses, [{"run": run, "sha": columns["sha"]}])
        pinned: Rows = (schema.catalogs, [columns])
        is_new = await self._write(rows, use, pinned)
        self._catalogs[catalog_id(catalog)] = catalog
        return self._cache(rows[0]) if is_new else await self.row(rows[0].id)

    async def catalog(self, pinned: str) -> Catalog:
        """The catalog with the id ``pinned``; raises JournalLost if there is none."""
        if catalog := self._catalogs.get(pinned):
            return catalog
        async with self._reading:  # activities that begin at once read the same catalog only once
            self._catalogs[pinned] = self._catalogs.get(pinned) or await self._read_catalog(pinned)
            return self._catalogs[pinned]

    async def _read_catalog(self, pinned: str) -> Catalog:
        names = self.encryption.catalog_names(pinned)
        found = await self.database.run(select(schema.catalogs).where(schema.catalogs.c.sha.in_(names)))
        if not found:
            raise journal_lost(f"the catalog {pinned}")
        return await asyncio.to_thread(lambda: self.encryption.decrypt_catalog(found[0]).prepared())

    async def append(self, head: Head, items: Iterable[ConversationItem], key: str) -> Head:
        """Appends items after a head, as the rows ``key/0``, ``key/1`` and so on, and returns the new head.

        The rows of a span are copied (grafted), but a span that begins at the head becomes the conversation itself.
        Raises JournalLost if rows that it needs are missing.
        """
        messages: list[Message] = []
        for item in items:
            if isinstance(item, Message):
                messages.append(item)
            elif isinstance(item, Quote):
                messages.append(item.quoted((await self.row(item.row)).message))
            elif item.after == head and not messages:
                head = item.to
            else:
                messages.extend(row.message for row in await self._between(item))
        rows = chain(head, ((f"{key}/{number}", message) for number, message in enumerate(messages)))
        await self._write(rows)
        for row in rows:
            self._cache(row)
        return rows[-1].head if rows else head

    async def append_once(self, head: Head, message: Message, row_id: str, earlier: Sequence[Message] = ()) -> Row:
        """Appends a message as the row ``row_id``, and returns the row; if that row exists, returns it unchanged.

        ``earlier`` messages stand before it, and are written with it at once: see ``earlier_rows``.
        """
        numbered = ((f"{row_id}/{number}", each) for number, each in enumerate(earlier))
        rows = chain(head, [*numbered, (row_id, message)])
        is_new = await self._write(rows) and not earlier  # of several rows, another attempt may have written some
        return self._cache(rows[-1]) if is_new else await self.row(row_id)

    async def earlier_rows(self, row: Row) -> list[Row]:
        """The rows of the messages that were written before a row and with it."""
        own = f"{row.id}/"
        return (await self.read(row.head, lambda each: not each.parent.startswith(own)))[:-1]

    async def find(self, row_id: str) -> Row | None:
        """The row of that id, or None."""
        if row := self._rows.get(row_id):
            return row
        found = await self.database.run(_ROW, {"id": row_id})
        return self._cache((await self.encryption.decrypt_rows(found))[0]) if found else None

    async def row(self, row_id: str) -> Row:
        """The row of that id; raises JournalLost if there is none."""
        if row := await self.find(row_id):
            return row
        raise journal_lost(f"the row {row_id}")

    async def set_bookmark(self, mark: Bookmark, head: Head, *, new: bool) -> None:
        """Moves a bookmark to a head, unless another run has set a ``new`` one under its key meanwhile."""
        await self.database.run(upsert_bookmark(self.database.engine.dialect, mark, head, new=new))

    async def read_bookmark(self, session: str, key: str) -> Sequence[Row]:
        """The rows of the transcript that a session keeps under a key; none if there is no such bookmark."""
        marks = schema.bookmarks
        found = await self.database.run(select(marks).where(marks.c.session == session, marks.c.key == key))
        if not found:
            return ()
        first = found[0].begun + 1
        rows = await self.read(Head(id=found[0].head, depth=found[0].depth), lambda row: row.depth == first)
        return rows if rows and rows[0].depth == first else ()

    async def read(self, head: Head, is_first: Callable[[Row], bool] | None = None) -> list[Row]:
        """The conversation up to a head, in its order, from the last row that ``is_first`` or from its beginning.

        Raises JournalLost if a part of it is missing.
        """
        rows: list[Row] = []
        page: dict[str, Row] = {}
        wanted = head.id
        depth = head.depth
        while wanted:
            row = self._rows.get(wanted) or page.get(wanted)
            if row is None:
                page = {each.id: each for each in await self._page(wanted, depth - PAGE_SIZE)}
                row = page.get(wanted)
            if row is None or row.depth != depth:
                raise journal_lost(f"the conversation up to {head.id}")
            rows.append(row)
            if is_first and is_first(row):
                break
            wanted = row.parent
            depth -= 1
        return rows[::-1]

    async def _between(self, span: RowRange) -> list[Row]:
        """Without summaries of rows in the span: they would stand at another depth than they say."""
        rows = [] if span.to == span.after else await self.read(span.to, lambda row: row.parent == span.after.id)
        return [row for row in rows if (row.message.summarizes or 0) <= span.after.depth]

    async def _write(self, rows: list[Row], *before: Rows) -> bool:
        """Writes the rows that are missing, after those of other tables, and returns whether there were any."""
        if not rows:
            return False
        parent = rows[0].parent
        if parent and await self.find(parent) is None:
            raise journal_lost(f"the row {parent}")
        return bool(await self.database.insert(*before, (schema.messages, await self.encryption.encrypt_rows(rows))))

    async def _page(self, last: str, after: int) -> list[Row]:
        """The rows from ``last`` back to the first after a depth."""
        found = await self.database.run(select_back(last, after))
        return [self._cache(row) for row in await self.encryption.decrypt_rows(found)]

    def _cache(self, row: Row) -> Row:
        if row.size <= CACHE_SIZE:  # the cache refuses larger ones
            self._rows[row.id] = row
        return row


# What a query adds is written first; then the pointer is moved, by a statement that changes nothing if another query
# has moved it meanwhile. In that case the query's rows are copied after the other's, and it tries again.


class ConversationRecord(NamedTuple):
    """A conversation of the journal; ``depth`` is its number of messages, the times are in seconds since 1970."""

    namespace: str
    memory: str
    id: str
    head: str
    depth: int
    created: int
    changed: int


class Conversations:
    """The conversations in a ``journal``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def head(self, conversation: ConversationPlan) -> Head:
        """The head of a conversation; the empty one if it does not exist yet."""
        table = schema.conversations
        here = (table.c[name] == value for name, value in conversation.key.items())
        found = await self._journal.database.run(select(table.c.head, table.c.depth).where(*here))
        return Head(id=found[0].head, depth=found[0].depth) if found else Head()

    async def add(
        self, conversation: ConversationPlan, before: Head, items: Sequence[ConversationItem], key: str
    ) -> None:
        """Adds items to a conversation, after whatever others have added since it was at ``before``.

        ``key`` is the idempotency key: what an earlier attempt has added is not added again.
        """
        database = self._journal.database
        while True:
            current = await self.head(conversation)
            if await self._is_added(current, before, items, key):
                return
            place = hashlib.sha256(current.id.encode()).hexdigest()[:12]  # rows for another place have other ids
            head = await self._journal.append(current, items, f"{key}/{place}")
            if await database.run(move_conversation(database.engine.dialect, conversation.key, current, head)):
                return

    async def delete(self, conversation: ConversationPlan) -> bool:
        """Deletes a conversation, and says whether there was one; its messages go when the journal is pruned."""
        table = schema.conversations
        here = (table.c[name] == value for name, value in conversation.key.items())
        return bool(await self._journal.database.run(delete(table).where(*here).returning(table.c.id)))

    async def latest(self, limit: int) -> list[ConversationRecord]:
        """The conversations that were used last, the latest first."""
        latest = schema.conversations.c.changed.desc()
        found = await self._journal.database.run(select(schema.conversations).order_by(latest).limit(limit))
        return [ConversationRecord(**each._mapping) for each in found]

    async def _is_added(self, current: Head, before: Head, items: Sequence[ConversationItem], key: str) -> bool:
        """Whether the conversation holds, in what was added since ``before``, the last of the items or a copy of it."""
        if current in (before, Head()):
            return False
        last = items[-1].to.id if isinstance(items[-1], RowRange) else ""
        rows = await self._journal.read(current, lambda row: row.parent == before.id)
        return any(row.id == last or row.id.startswith(f"{key}/") for row in rows)
