"""Lists, reads and deletes the conversations in the journal: those of one Temporal namespace."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence

from ...activities.runtime.settings import Settings
from ...contracts.message import Head, Message
from ...contracts.panel import Contribution, contributions_in
from ...contracts.plan import ConversationPlan
from ...journal.journal import ConversationRecord, Conversations, Journal
from ...temporal.encryption import Keys


@contextlib.asynccontextmanager
async def _journal(temporal_namespace: str, environ: Mapping[str, str]) -> AsyncIterator[Journal]:
    """The journal of BATON_JOURNAL_URL. Raises JournalUnavailable if it can't be read."""
    keys = Keys.from_environment(environ)
    journal = await Journal.open(Settings.of(environ).journal, temporal_namespace, keys, upgrade=False, create=False)
    try:
        yield journal
    finally:
        await journal.close()


async def list_conversations(
    temporal_namespace: str, limit: int, environ: Mapping[str, str] = os.environ
) -> Sequence[ConversationRecord]:
    """The most recently used conversations, latest first."""
    async with _journal(temporal_namespace, environ) as journal:
        return await Conversations(journal).latest(limit)


async def read_conversation(
    temporal_namespace: str, conversation: ConversationPlan, limit: int, environ: Mapping[str, str] = os.environ
) -> list[Message] | None:
    """The last messages of a conversation, in order; None if there is no such conversation."""
    async with _journal(temporal_namespace, environ) as journal:
        head = await Conversations(journal).head(conversation)
        first = head.depth - limit + 1
        rows = await journal.read(head, lambda row: row.depth <= first)
        return None if head == Head() else [row.message for row in rows]


async def delete_conversation(
    temporal_namespace: str, conversation: ConversationPlan, environ: Mapping[str, str] = os.environ
) -> bool:
    """Deletes a conversation; returns whether it existed."""
    async with _journal(temporal_namespace, environ) as journal:
        return await Conversations(journal).delete(conversation)


async def read_contributions(
    temporal_namespace: str, session: str, key: str, environ: Mapping[str, str] = os.environ
) -> tuple[Contribution, ...]:
    """The contributions to the latest panel that ran under this key of a session; empty if there is none.

    Raises JournalUnavailable if the journal of BATON_JOURNAL_URL can't be read.
    """
    async with _journal(temporal_namespace, environ) as journal:
        return contributions_in(row.message for row in await journal.read_shared(session, key))
