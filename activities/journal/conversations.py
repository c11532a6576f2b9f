"""The conversations that queries go on with: each is a pointer to a head in the journal, which only moves forward.

What a query adds is written first; then the pointer is moved, by a statement that changes nothing if another query has
moved it meanwhile. In that case the query's rows are copied after the other's, and it tries again.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import delete, select

from ...conversation.contracts.conversation_plan import ConversationPlan
from ...conversation.contracts.requests import ConversationItem
from ...conversation.messages.message import Head, Span
from . import schema
from .journal import Journal
from .statements import move_conversation


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
        last = items[-1].to.id if isinstance(items[-1], Span) else ""
        rows = await self._journal.read(current, lambda row: row.parent == before.id)
        return any(row.id == last or row.id.startswith(f"{key}/") for row in rows)
