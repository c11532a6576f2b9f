"""Encrypts everything in the journal again with the first key, even while workers use the journal.

A batch of rows is one transaction. The command encrypts only texts that the first key has not encrypted, so running it
again completes one that was interrupted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, and_, delete, not_, select, tuple_, update
from sqlalchemy import Row as Record

from ..contracts.errors import JournalLost
from ..resources.stored import StoredManifest
from ..temporal.activity import in_thread_if_long
from ..temporal.encryption import SEALED_PREFIX
from . import schema
from .database import Database
from .journal import Journal
from .prune import remove_traces
from .rows import key_ids, place_of
from .schema import begins_with

BATCH_SIZE = 100
"""Rows in one transaction."""


class EncryptedColumn(NamedTuple):
    """A column with texts that the journal's keys encrypt. ``place`` returns the associated data of a row's text."""

    name: str
    column: Column[str]
    place: Callable[[Record[Any]], str]

    def encrypted_with(self, key: str) -> ColumnElement[bool]:
        """Whether a text is encrypted with a key."""
        return begins_with(self.column, f"{SEALED_PREFIX}:{key}:")


ENCRYPTED = (
    EncryptedColumn("messages", schema.messages.c.message, place_of),
    EncryptedColumn("attachments", schema.attachments.c.content, lambda row: f"attachment {row.id}"),
    EncryptedColumn("catalogs", schema.catalogs.c.catalog, lambda row: f"catalog {row.sha}"),
    EncryptedColumn(
        "versions of manifests",
        schema.manifests.c.manifest,
        lambda row: f"manifest {StoredManifest(**row._mapping).place}",
    ),
    EncryptedColumn(
        "files of workers",
        schema.worker_manifests.c.catalog,
        lambda row: f"manifest of workers {row.namespace}/{row.task_queue}/{row.digest}",
    ),
)
"""All columns with such texts. Add those of new tables here; a test finds a text that is missing."""


@dataclass
class Reencrypted:
    """What was encrypted. ``counts`` has the number of rows of each column.

    ``key`` is the id of the key that has encrypted them. ``unneeded`` are the ids of keys that the journal no longer
    needs. ``unreadable`` says why rows are unchanged, such as those that were modified in the database.
    """

    key: str
    counts: dict[str, int] = field(default_factory=dict)
    unneeded: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


async def reencrypt(journal: Journal, key: str) -> Reencrypted:
    """Encrypts all texts with the first key of the journal, whose id is ``key``, and forgets keys without any text.

    No worker may still encrypt with another key. Raises JournalUnavailable.
    """
    result = Reencrypted(key)
    for encrypted in ENCRYPTED:
        result.counts[encrypted.name] = await _reencrypt_column(journal, encrypted, result)
    result.unneeded = await journal.database.transact(lambda connection: _forget_keys(connection, key))
    engine = journal.database.engine
    await engine.run(partial(remove_traces, dialect=engine.dialect))
    return result


async def _reencrypt_column(journal: Journal, encrypted: EncryptedColumn, result: Reencrypted) -> int:
    """Returns the number of rows that were encrypted."""
    table = encrypted.column.table
    key = tuple_(*table.primary_key)
    todo = and_(not_(encrypted.encrypted_with(result.key)), encrypted.column != "")
    batch = select(table).order_by(*table.primary_key).limit(BATCH_SIZE)
    count = 0
    last: Sequence[object] | None = None
    while rows := await journal.database.run(batch.where(todo, key > last) if last else batch.where(todo)):
        changes = await _texts(journal, encrypted, rows, result)
        await _write(journal.database, encrypted, changes)
        count += len(changes)
        last = _key_of(rows[-1], encrypted)
    return count


async def _texts(
    journal: Journal, encrypted: EncryptedColumn, rows: Sequence[Record[Any]], result: Reencrypted
) -> list[tuple[Record[Any], str]]:
    """The rows with their new texts; those that can't be read are left out, and reported in the ``result``."""

    def encrypt() -> list[tuple[Record[Any], str]]:
        changes = []
        for row in rows:
            text = row._mapping[encrypted.column]
            try:
                changes.append((row, journal.encryption.encrypt_again(text, encrypted.place(row))))
            except JournalLost as lost:
                result.unreadable.append(lost.message)
        return changes

    return await in_thread_if_long(sum(len(row._mapping[encrypted.column]) for row in rows), encrypt)


async def _write(database: Database, encrypted: EncryptedColumn, changes: Sequence[tuple[Record[Any], str]]) -> None:
    table = encrypted.column.table

    def execute(connection: Connection) -> None:
        for row, text in changes:
            here = tuple_(*table.primary_key) == _key_of(row, encrypted)
            connection.execute(update(table).where(here).values({encrypted.column: text}))

    await database.transact(execute)


def _key_of(row: Record[Any], encrypted: EncryptedColumn) -> tuple[object, ...]:
    return tuple(row._mapping[column] for column in encrypted.column.table.primary_key)


def _forget_keys(connection: Connection, first: str) -> list[str]:
    """Removes the keys with which no text is encrypted any more, and returns their ids."""
    unneeded = [
        key
        for key in key_ids(connection)
        if key != first
        and not any(
            connection.execute(
                select(1).select_from(texts.column.table).where(texts.encrypted_with(key)).limit(1)
            ).all()
            for texts in ENCRYPTED
        )
    ]
    if unneeded:
        connection.execute(delete(schema.keys).where(schema.keys.c.id.in_(unneeded)))
    return unneeded
