"""The journal of all conversations: appends messages, reads conversations back from a head, stores pinned catalogs.

Rows are only ever added. A row's id is derived from the idempotency key of the activity that wrote it, so that a
retried activity writes nothing new.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from cachetools import LRUCache
from sqlalchemy import ColumnElement, Connection, Table, delete, or_, select

from ..contracts.errors import JournalLost, JournalUnavailable
from ..contracts.message import Head, Message, Quote, RowRange, openai_form
from ..contracts.plan import ConversationPlan
from ..contracts.requests import Bookmark, ConversationItem
from ..contracts.settings import SettingsError
from ..resources.run_catalog import RunCatalog
from ..temporal.activity import in_thread_if_long
from ..temporal.encryption import Keys
from ..temporal.personal_data import PersonalData
from ..temporal.threads import COMPUTING
from . import schema
from .database import Database, Rows, journal_lost
from .engine import Work
from .leases import LEASE_SECONDS, Lease, Leases
from .rows import SELECT_BACK, SELECT_ROW, Row, RowEncryption, chain, key_ids, move_conversation, upsert_bookmark
from .schema import begins_with

CACHE_SIZE = 64_000_000
"""Characters of rows in a worker's cache, and bytes of attachments in another one."""

PAGE_SIZE = 100
"""Rows that are read at once, backwards from the last one."""

NO_KEYS = Keys()

T = TypeVar("T")


class Journal:
    """The journal of all runs of a Temporal namespace, in a ``database``."""

    def __init__(
        self, database: Database, encryption: RowEncryption, leases: Leases, personal_data: PersonalData | None = None
    ) -> None:
        self.database = database
        self.leases = leases
        self.encryption = encryption
        self._personal_data = personal_data
        self._rows: LRUCache[str, Row] = LRUCache(CACHE_SIZE, getsizeof=lambda row: row.size)
        self._attachments: LRUCache[str, bytes] = LRUCache(CACHE_SIZE, getsizeof=len)
        self._catalogs: LRUCache[str, RunCatalog] = LRUCache(100)
        self._reading = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        url: str,
        namespace: str,
        keys: Keys = NO_KEYS,
        *,
        upgrade: bool = True,
        create: bool = True,
        lease_seconds: float = LEASE_SECONDS,
        personal_data: PersonalData | None = None,
        longest: float | None = None,
    ) -> "Journal":
        """Opens the journal at ``url`` for a Temporal ``namespace``; ``upgrade`` and ``create`` as for ``migrate``.

        ``keys`` encrypt what is written, and ``personal_data`` is redacted before. ``longest`` as for ``connect``.
        Raises JournalUnavailable if the database can't be used, and SettingsError if a key of the journal is missing.
        """
        database = await Database.connect(url, namespace, upgrade=upgrade, create=create, longest=longest)
        encryption = RowEncryption(keys)
        try:
            await encryption.register(database.engine)
        except (JournalUnavailable, SettingsError):
            await database.close()
            raise
        return cls(database, encryption, Leases(database, lease_seconds), personal_data)

    async def close(self) -> None:
        """Closes the connections once all running statements have ended."""
        await self.leases.close()
        await self.database.close()

    async def key_ids(self) -> Sequence[str]:
        """The ids of all keys with which this journal was ever written."""
        return await self.database.engine.run(key_ids)

    async def begin(
        self,
        catalog: RunCatalog,
        run: str,
        head: Head,
        question: Message,
        *,
        earlier: Sequence[Message] = (),
        namespace: str | None = None,
        then: Work[None] | None = None,
    ) -> list[Row]:
        """Stores a ``prepared`` catalog until ``run`` is pruned, appends a question after a head, and returns its row.

        ``namespace`` is that of the manifest with which the run begins: it decides how long its rows are retained.
        The question is the row ``run/1``, regardless of the activity that writes it. ``earlier`` messages of the same
        input precede it, in the result too, as the rows ``run/1/0``, ``run/1/1`` and so on. Existing rows are returned
        unchanged: an earlier attempt may have appended them after another head. ``then`` is called in the same
        transaction.
        """
        columns = await in_thread_if_long(len(catalog.canonical), lambda: self.encryption.encrypt_catalog(catalog))
        *earlier, question = await self.redacted([*earlier, question])
        numbered = ((f"{run}/1/{number}", message) for number, message in enumerate(earlier))
        rows = chain(head, [*numbered, (f"{run}/1", question)])
        # In this order, a concurrent prune deletes nothing that is needed.
        use = self._use(run, str(columns["sha"]), namespace)
        pinned: Rows = (schema.catalogs, [columns])
        is_new = await self._write(rows, use, pinned, then=then, atomic=then is not None)
        self._catalogs[str(columns["sha"])] = catalog
        return [self._cache(row) for row in rows] if is_new else await self._with_earlier(await self.row(rows[-1].id))

    async def pin(self, catalog: RunCatalog, run: str, namespace: str | None = None) -> None:
        """Stores a ``prepared`` catalog until ``run`` is pruned, without a question; ``namespace`` as for ``begin``."""
        columns = await in_thread_if_long(len(catalog.canonical), lambda: self.encryption.encrypt_catalog(catalog))
        use = self._use(run, str(columns["sha"]), namespace)
        pinned: Rows = (schema.catalogs, [columns])
        await self.database.insert(use, pinned)
        self._catalogs[str(columns["sha"])] = catalog

    def _use(self, run: str, sha: str, namespace: str | None) -> Rows:
        row = {"run": run, "sha": sha, "namespace": namespace, "temporal_namespace": self.database.namespace}
        return schema.uses, [row]

    async def attach(self, run: str, contents: Sequence[bytes]) -> list[str]:
        """Stores attachments until ``run`` is pruned, and returns their ids. The same content is stored once."""
        if self._personal_data:
            self._personal_data.check_attached(len(contents))
        ids = [self.encryption.attachment_id(run, content) for content in contents]

        def rows() -> list[dict[str, str]]:
            return [
                {
                    "id": attachment_id,
                    "temporal_namespace": self.database.namespace,
                    "content": self.encryption.encrypt_attachment(attachment_id, content),
                }
                for attachment_id, content in dict(zip(ids, contents, strict=True)).items()
            ]

        if ids:
            stored = await in_thread_if_long(sum(map(len, contents)), rows)
            await self.database.insert((schema.attachments, stored))
        return ids

    async def attachment(self, attachment_id: str) -> bytes:
        """The content of an attachment; raises JournalLost if there is none with that id."""
        content = self._attachments.get(attachment_id)
        if content is None:
            table = schema.attachments
            here = table.c.temporal_namespace == self.database.namespace
            rows = await self.database.run(select(table).where(table.c.id == attachment_id, here))
            if not rows:
                raise journal_lost(f"the attachment {attachment_id}")
            stored = rows[0]
            content = await in_thread_if_long(len(stored.content), lambda: self.encryption.decrypt_attachment(stored))
            if len(content) <= CACHE_SIZE:
                self._attachments[attachment_id] = content
        return content

    def catalog_name(self, catalog: RunCatalog) -> str:
        """The name under which ``begin`` stores a catalog."""
        return self.encryption.catalog_name(catalog)

    async def catalog(self, pinned: str) -> RunCatalog:
        """The catalog that was stored under the name ``pinned``; raises JournalLost if there is none."""
        if catalog := self._catalogs.get(pinned):
            return catalog
        async with self._reading:  # concurrent activities read the same catalog only once
            self._catalogs[pinned] = self._catalogs.get(pinned) or await self._read_catalog(pinned)
            return self._catalogs[pinned]

    async def _read_catalog(self, pinned: str) -> RunCatalog:
        rows = await self.database.run(select(schema.catalogs).where(schema.catalogs.c.sha == pinned))
        if not rows:
            raise journal_lost(f"the catalog {pinned}")
        return await COMPUTING.run(lambda: self.encryption.decrypt_catalog(rows[0]).prepared())

    async def append(self, head: Head, items: Iterable[ConversationItem], key: str) -> Head:
        """Appends items after a head, as the rows ``key/0``, ``key/1`` and so on, and returns the new head.

        Rows of another branch are copied, but a range that begins at the head is adopted without a copy. Raises
        JournalLost if required rows are missing.
        """
        messages: list[Message] = []
        for item in items:
            if isinstance(item, Message):
                messages.extend(await self.redacted([item]))
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

    async def append_once(self, head: Head, message: Message, row_id: str, *, is_record: bool = False) -> Row:
        """Appends a message as the row ``row_id``, and returns the row; an existing row is returned unchanged.

        Nobody has written a ``record`` of a call: its ids may look like personal data, and stay.
        """
        written = [message] if is_record else await self.redacted([message])
        rows = chain(head, [(row_id, message) for message in written])
        return self._cache(rows[0]) if await self._write(rows) else await self.row(row_id)

    async def restore(self, rows: Sequence[Row], attachments: Mapping[str, bytes]) -> None:
        """Stores rows and attachments of another journal under their ids, such as those of a recording."""
        contents = [
            {
                "id": attachment_id,
                "temporal_namespace": self.database.namespace,
                "content": self.encryption.encrypt_attachment(attachment_id, content),
            }
            for attachment_id, content in attachments.items()
        ]
        if contents:
            await self.database.insert((schema.attachments, contents))
        known = {row.id for row in rows}
        in_order = sorted(rows, key=lambda row: row.depth)
        if lost := [row.parent for row in in_order if row.parent and row.parent not in known]:
            raise journal_lost(f"the row {lost[0]}")
        await self._write([row for row in in_order if not row.parent])
        await self._write([row for row in in_order if row.parent])

    async def answer(self, lease: Lease, head: Head, message: Message, earlier: Sequence[Message] = ()) -> None:
        """Appends the answer of a call as its row; the same write marks the call as answered and charges its usage.

        ``earlier`` messages precede it: see ``earlier_rows``. If another attempt has answered the call meanwhile, its
        answer remains.
        """
        *earlier, message = await self.redacted([*earlier, message])
        numbered = ((f"{lease.call}/{number}", earlier_message) for number, earlier_message in enumerate(earlier))
        rows = chain(head, [*numbered, (lease.call, message)])
        answered = lease.answered(message.usage)
        is_new = await self._write(rows, then=answered, atomic=lease.is_charged)
        lease.is_answered = True
        if is_new and not earlier:  # of several rows, another attempt may have written some
            self._cache(rows[-1])

    @property
    def redacts(self) -> bool:
        """Whether this worker has a hook that redacts personal data."""
        return self._personal_data is not None

    async def redacted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as they are written: without personal data. Raises NotRedacted."""
        return await self._personal_data.messages(messages) if self._personal_data else [*messages]

    async def without_personal_data(self, catalog: RunCatalog) -> RunCatalog:
        """The catalog as ``begin`` and ``pin`` store it: with redacted Queries. Raises NotRedacted."""
        if self._personal_data is None:
            return catalog
        return await self._personal_data.catalog(catalog)

    async def earlier_rows(self, row: Row) -> list[Row]:
        """The rows of the ``earlier`` messages that were written together with a row."""
        return (await self._with_earlier(row))[:-1]

    async def _with_earlier(self, row: Row) -> list[Row]:
        """A row after the rows of its ``earlier`` messages."""
        own = f"{row.id}/"
        return await self.read(row.head, lambda row: not row.parent.startswith(own))

    async def find(self, row_id: str) -> Row | None:
        """The row with that id, or None."""
        if row := self._rows.get(row_id):
            return row
        rows = await self.database.run(SELECT_ROW, {"row": row_id, "namespace": self.database.namespace})
        return self._cache((await self.encryption.decrypt_rows(rows))[0]) if rows else None

    async def row(self, row_id: str) -> Row:
        """The row with that id; raises JournalLost if there is none."""
        if row := await self.find(row_id):
            return row
        raise journal_lost(f"the row {row_id}")

    async def set_bookmark(self, mark: Bookmark, head: Head, *, new: bool) -> None:
        """Moves a bookmark to a head, unless another run has replaced it by a ``new`` one under the same key."""
        database = self.database
        await database.run(upsert_bookmark(database.engine.dialect, database.namespace, mark, head, new=new))

    async def read_bookmark(self, session: str, key: str) -> Sequence[Row]:
        """The rows of the transcript under a key of a session; empty if there is no such bookmark."""
        return await self._marked(key, schema.bookmarks.c.session == session)

    async def read_shared(self, session: str, key: str) -> Sequence[Row]:
        """The same, where ``session`` may also be the id of a root run that shares the transcript in its scope."""
        marks = schema.bookmarks.c
        of_run = (begins_with(marks.owner, f"{session}{end}") for end in "@/")
        return await self._marked(key, or_(marks.session == session, *of_run), marks.session != session)

    async def _marked(self, key: str, condition: ColumnElement[bool], *order: ColumnElement[bool]) -> Sequence[Row]:
        marks = schema.bookmarks
        here = (marks.c.temporal_namespace == self.database.namespace, marks.c.key == key, condition)
        bookmarks = await self.database.run(select(marks).where(*here).order_by(*order, marks.c.session).limit(1))
        if not bookmarks:
            return ()
        first = bookmarks[0].begun + 1
        rows = await self.read(Head(id=bookmarks[0].head, depth=bookmarks[0].depth), lambda row: row.depth == first)
        return rows if rows and rows[0].depth == first else ()

    async def read(self, head: Head, is_first: Callable[[Row], bool] | None = None) -> list[Row]:
        """The conversation up to a head, in order, from the last row for which ``is_first`` is true, or from its start.

        Raises JournalLost if a part of it is missing.
        """
        rows: list[Row] = []
        page: dict[str, Row] = {}
        row_id = head.id
        depth = head.depth
        while row_id:
            row = self._rows.get(row_id) or page.get(row_id)
            if row is None:
                page = {row.id: row for row in await self._page(row_id, depth - PAGE_SIZE)}
                row = page.get(row_id)
            if row is None or row.depth != depth:
                raise journal_lost(f"the conversation up to {head.id}")
            rows.append(row)
            if is_first and is_first(row):
                break
            row_id = row.parent
            depth -= 1
        return rows[::-1]

    async def _between(self, rows_range: RowRange) -> list[Row]:
        """The rows of a range, without summaries of rows in it: the depths that they refer to would be wrong."""
        after = rows_range.after
        rows = [] if rows_range.to == after else await self.read(rows_range.to, lambda row: row.parent == after.id)
        return [row for row in rows if (row.message.summarizes or 0) <= after.depth]

    async def _write(
        self, rows: list[Row], *before: Rows, then: Work[None] | None = None, atomic: bool = False
    ) -> bool:
        """Writes missing rows, after those of other tables, and returns whether there were any."""
        if not rows:
            return False
        parent = rows[0].parent
        if parent and await self.find(parent) is None:
            raise journal_lost(f"the row {parent}")
        columns = await self.encryption.encrypt_rows(rows)
        written: Rows = (
            schema.messages,
            [{"temporal_namespace": self.database.namespace, **values} for values in columns],
        )
        return bool(await self.database.insert(*before, written, then=then, atomic=atomic))

    async def _page(self, last: str, after: int) -> list[Row]:
        """The rows from ``last`` back to the first after a depth."""
        rows = await self.database.run(SELECT_BACK, {"row": last, "namespace": self.database.namespace, "after": after})
        return [self._cache(row) for row in await self.encryption.decrypt_rows(rows)]

    def _cache(self, row: Row) -> Row:
        if row.size <= CACHE_SIZE:  # the cache rejects larger ones
            self._rows[row.id] = row
        return row


# A query's rows are written first. Then the conversation's head is moved with a compare-and-set. If another query has
# moved it meanwhile, the rows are copied after the other query's rows, and the move is tried again.


class _Heads:
    """The heads of the conversations in a ``table``: those of the journal's Temporal namespace."""

    def __init__(self, journal: Journal, table: Table) -> None:
        self._database = journal.database
        self._table = table

    def where(self, conversation: ConversationPlan) -> Iterator[ColumnElement[bool]]:
        """The conditions for the row of a conversation."""
        return (self._table.c[name] == value for name, value in self._key(conversation).items())

    async def read(self, conversation: ConversationPlan) -> Head:
        """The head of a conversation; an empty head if the table does not have it."""
        head = select(self._table.c.head, self._table.c.depth).where(*self.where(conversation))
        rows = await self._database.run(head)
        return Head(id=rows[0].head, depth=rows[0].depth) if rows else Head()

    async def move(self, conversation: ConversationPlan, expected: Head, head: Head) -> bool:
        """Moves a conversation to another head; returns False if its head is no longer the ``expected`` one."""
        key = self._key(conversation)
        return bool(
            await self._database.run(move_conversation(self._database.engine.dialect, self._table, key, expected, head))
        )

    def check(self, connection: Connection, conversation: ConversationPlan, expected: Head) -> None:
        """Keeps a conversation at a head until the transaction ends. Raises JournalLost if it is no longer there."""
        here = (*self.where(conversation), self._table.c.head == expected.id)
        if connection.execute(select(self._table.c.id).where(*here).with_for_update(read=True)).first() is None:
            raise journal_lost(f"the conversation {conversation.id} up to {expected.id}")

    def _key(self, conversation: ConversationPlan) -> dict[str, str]:
        return {"temporal_namespace": self._database.namespace, **conversation.key}


def _place(*parts: str | Message) -> str:
    """A part of the ids of rows, so that they differ if they are after another head, or are other messages."""
    texts = (part.model_dump_json() if isinstance(part, Message) else part for part in parts)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


class ConversationRecord(NamedTuple):
    """A conversation of the journal; ``depth`` is its number of messages, the times are in seconds since 1970."""

    temporal_namespace: str
    namespace: str
    memory: str
    id: str
    head: str
    depth: int
    created: int
    changed: int


class Conversations:
    """The conversations in a ``journal``: those of its Temporal namespace."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._heads = _Heads(journal, schema.conversations)

    async def head(self, conversation: ConversationPlan) -> Head:
        """The head of a conversation; an empty head if it does not exist yet."""
        return await self._heads.read(conversation)

    async def begin(
        self, conversation: ConversationPlan, write: Callable[[Head, Work[None] | None], Awaitable[T]]
    ) -> T:
        """Writes a query's first rows after the head of a conversation; an empty head if it does not exist yet.

        ``write`` gets the head, and what it has to call in its transaction after it has written the rows. So a deletion
        of the conversation, as by ``forget``, either sees these rows or is noticed: then ``write`` is called again.
        """

        async def attempt(head: Head) -> T:
            check = partial(self._heads.check, conversation=conversation, expected=head) if head.id else None
            return await write(head, check)

        return await self._from_head(conversation, attempt)

    async def add(
        self, conversation: ConversationPlan, before: Head, items: Sequence[ConversationItem], key: str
    ) -> None:
        """Appends items to a conversation, after all rows that others have added since it was at ``before``.

        ``key`` is the idempotency key: items added by an earlier attempt are not added again.
        """

        async def attempt(current: Head) -> bool:
            if await self._is_added(current, before, items, key):
                return True
            head = await self._journal.append(current, items, f"{key}/{_place(current.id)}")
            return await self._heads.move(conversation, current, head)

        while not await self._from_head(conversation, attempt):
            pass

    async def _from_head(self, conversation: ConversationPlan, attempt: Callable[[Head], Awaitable[T]]) -> T:
        """Goes on from the head, and again if it was moved or forgotten: its rows may have been deleted meanwhile."""
        while True:
            head = await self.head(conversation)
            try:
                return await attempt(head)
            except JournalLost:
                if await self.head(conversation) == head:
                    raise

    async def delete(self, conversation: ConversationPlan) -> bool:
        """Deletes a conversation; returns whether it existed. Its messages are deleted when the journal is pruned."""
        table = schema.conversations
        deleted = delete(table).where(*self._heads.where(conversation)).returning(table.c.id)
        return bool(await self._journal.database.run(deleted))

    async def latest(self, limit: int) -> list[ConversationRecord]:
        """The most recently changed conversations, latest first."""
        table = schema.conversations
        here = table.c.temporal_namespace == self._journal.database.namespace
        latest = select(table).where(here).order_by(table.c.changed.desc()).limit(limit)
        return [ConversationRecord(**row._mapping) for row in await self._journal.database.run(latest)]

    async def _is_added(self, current: Head, before: Head, items: Sequence[ConversationItem], key: str) -> bool:
        """Whether the rows added since ``before`` contain the last of the items or a copy of it."""
        if current in (before, Head()):
            return False
        last = items[-1].to.id if isinstance(items[-1], RowRange) else ""
        rows = await self._journal.read(current, lambda row: row.parent == before.id)
        return any(row.id == last or row.id.startswith(f"{key}/") for row in rows)


class Copies:
    """The copies in a ``journal`` of conversations that Memories' services store.

    Messages that an earlier query has copied, or added to the service itself, are not copied again. Other clients may
    have changed or deleted messages at the service: a copy is continued after its rows that are still equal.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._heads = _Heads(journal, schema.copies)

    async def add_question(
        self, conversation: ConversationPlan, messages: Sequence[Message], question: Message, key: str
    ) -> Row:
        """Returns the row of a question after the messages that a service has now.

        ``key`` is the idempotency key. The rows are written before the copy's head is moved, even if it stays the same.
        A prune forgets the copy before it deletes rows: either it has seen these rows, or the move fails and they are
        written again.
        """
        while True:
            copied = await self._heads.read(conversation)
            equal, count = await self._equal_part(copied, messages)
            new = messages[count:]
            size = sum(message.length for message in new)
            place = await in_thread_if_long(size, _place, copied.id, equal.id, *new)
            head = await self._journal.append(equal, new, f"{key}/{place}")
            row = await self._journal.append_once(head, question, f"{key}/{place}/question")
            if await self._heads.move(conversation, copied, head):
                return row

    async def extend(self, conversation: ConversationPlan, before: Head, head: Head) -> None:
        """Continues a copy with the rows of a query, whose messages the service has now, unless others have moved it.

        These rows have what the service does not keep, such as transfers, and summaries.
        """
        await self._heads.move(conversation, before, head)

    async def _equal_part(self, copied: Head, messages: Sequence[Message]) -> tuple[Head, int]:
        """The last head of a copy at which it has the first of these messages, and no others; and how many they are."""
        equal = Head()
        count = 0
        with contextlib.suppress(JournalLost):  # its rows were lost: a new copy begins
            for row in await self._journal.read(copied):
                if row.message.summarizes is None:  # which no service has
                    if count == len(messages) or openai_form(row.message) != openai_form(messages[count]):
                        break
                    count += 1
                equal = row.head
        return equal, count
