"""The rows of the journal: their links, their encryption, and the statements that write them."""

import base64
import hashlib
import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Select,
    Table,
    bindparam,
    case,
    false,
    literal_column,
    select,
    update,
)
from sqlalchemy import Row as Record
from sqlalchemy.dialects import postgresql, sqlite

from ..contracts.errors import JournalDamaged, JournalUnavailable
from ..contracts.identity import Actor
from ..contracts.message import Head, Message
from ..contracts.requests import Bookmark
from ..contracts.settings import SettingsError
from ..resources.run_catalog import RunCatalog
from ..temporal.activity import in_thread_if_long
from ..temporal.encryption import Keys, UnknownKeyError, WrongKeyError
from . import schema
from .audit import AuditEntry, append
from .engine import Engine


@dataclass(frozen=True)
class Row:
    """A message in a conversation: ``parent`` is the id of the previous row, or empty; ``depth`` counts from 1."""

    id: str
    parent: str
    depth: int
    message: Message

    @property
    def head(self) -> Head:
        """The head of the conversation that ends with this row."""
        return Head(id=self.id, depth=self.depth)

    @property
    def before(self) -> Head:
        """The head of the conversation that this row continues."""
        return Head(id=self.parent, depth=self.depth - 1)

    @property
    def size(self) -> int:
        """The approximate size in memory, in characters."""
        return 500 + self.message.length


def chain(head: Head, messages: Iterable[tuple[str, Message]]) -> list[Row]:
    """Links messages, with the ids of their rows, to rows after a head."""
    rows: list[Row] = []
    for row_id, message in messages:
        rows.append(Row(row_id, head.id, head.depth + 1, message))
        head = rows[-1].head
    return rows


_INSERTS: dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


@cache
def insert_missing(dialect: str, table: Table) -> Executable:
    """Inserts the rows whose primary keys are not in the table yet, and returns the inserted keys.

    A SHARED row that is there is locked: if it is being deleted, as in ``without_shared``, the statement waits, and
    inserts the row again.
    """
    insert = _INSERTS[dialect](table)
    keys = [*table.primary_key]
    if table in schema.SHARED.values():
        same = {key.name: key for key in keys}
        return insert.on_conflict_do_update(index_elements=keys, set_=same, where=false()).returning(*keys)
    return insert.on_conflict_do_nothing().returning(*keys)


def without_shared(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """The rows to insert, without SHARED ones that are there: runs that begin with them don't wait for each other.

    One that is being deleted, because its new use came too late to be seen, is waited for, and then missing.
    """
    if table not in schema.SHARED.values():
        return rows
    here = table.c.sha.in_([row["sha"] for row in rows])
    found = {*connection.execute(select(table.c.sha).where(here).with_for_update(read=True, key_share=True)).scalars()}
    return [row for row in rows if row["sha"] not in found]


SELECT_ROW: Select[Any] = select(schema.messages).where(
    schema.messages.c.id == bindparam("row"), schema.messages.c.temporal_namespace == bindparam("namespace")
)
"""Selects the message ``row``; a row of another Temporal ``namespace`` counts as missing."""


def _select_back() -> Executable:
    chain = SELECT_ROW.cte("chain", recursive=True)
    before = schema.messages.alias()
    more = select(before).join(chain, before.c.id == chain.c.parent).where(before.c.depth > bindparam("after"))
    return select(chain.union_all(more))


SELECT_BACK = _select_back()
"""Selects the messages from the one of SELECT_ROW back to the first ``after`` a depth."""


def upsert_bookmark(dialect: str, namespace: str, mark: Bookmark, head: Head, *, new: bool) -> Executable:
    """Sets a bookmark to a head; only its owner may move it, but any run may replace it by a ``new`` one."""
    row = {**mark.model_dump(by_alias=False), "head": head.id, "depth": head.depth}
    table = schema.bookmarks
    condition = None if new else table.c.owner == mark.owner
    insert = _INSERTS[dialect](table).values(temporal_namespace=namespace, **row)
    return insert.on_conflict_do_update(index_elements=[*table.primary_key], set_=row, where=condition)


_CLOCKS = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch from clock_timestamp())",
}


def database_clock(dialect: str) -> ColumnElement[float]:
    """The seconds since 1970 by the clock of the database.

    A time that another machine compares is taken from it: the clocks of workers and clients differ.
    """
    return literal_column(_CLOCKS[dialect])


def database_second(dialect: str) -> ColumnElement[int]:
    """The whole seconds of ``database_clock``."""
    clock = _CLOCKS[dialect]
    return literal_column(f"cast({clock} as integer)" if dialect == "sqlite" else f"cast(floor({clock}) as bigint)")


def move_conversation(dialect: str, table: Table, names: Mapping[str, str], expected: Head, head: Head) -> Executable:
    """Moves a conversation from the ``expected`` head to another and returns its id, or nothing if its head differs.

    ``names`` is its key in the ``table``. A conversation that is not there yet has an empty head.
    """
    now = database_second(dialect)
    moved = {"head": head.id, "depth": head.depth, "changed": now}
    if not expected.id:
        insert = _INSERTS[dialect](table).values(**names, **moved, created=now)
        return insert.on_conflict_do_nothing().returning(table.c.id)
    here = (table.c[name] == value for name, value in names.items())
    return update(table).where(*here, table.c.head == expected.id).values(moved).returning(table.c.id)


def upsert_hold(dialect: str, namespace: str, family: str, sha: str) -> Executable:
    """Records that a family of workflows needs a value, and when it was last stored."""
    now = database_second(dialect)
    table = schema.holds
    insert = _INSERTS[dialect](table).values(temporal_namespace=namespace, family=family, sha=sha, at=now)
    return insert.on_conflict_do_update(index_elements=[*table.primary_key], set_={"at": now})


def upsert_worker(dialect: str, worker: str, renewed: int) -> Executable:
    """Renews the leases of a worker with an increasing value, even if its clock was set back."""
    table = schema.workers
    insert = _INSERTS[dialect](table).values(id=worker, renewed=renewed)
    larger = case((table.c.renewed < renewed, renewed), else_=table.c.renewed + 1)
    return insert.on_conflict_do_update(index_elements=["id"], set_={"renewed": larger})


def upsert_wait(dialect: str, row: Mapping[str, Any]) -> Executable:
    """Records that a run waits for a Quota; one that waits already does so ``until`` the later time."""
    table = schema.quota_waits
    insert = _INSERTS[dialect](table).values(**row)
    later = case((table.c.until < row["until"], row["until"]), else_=table.c.until)
    return insert.on_conflict_do_update(index_elements=[*table.primary_key], set_={"until": later})


_BYTES = 24


def catalog_id(catalog: RunCatalog) -> str:
    """The first 192 bits of the catalog's SHA-256, in 32 characters of base64."""
    return base64.urlsafe_b64encode(bytes.fromhex(catalog.sha)[:_BYTES]).decode()


class RowEncryption:
    """Encrypts with the first key, and decrypts with any of them. Without keys, nothing is encrypted.

    A text that is not sealed is plain JSON, written by a worker without a key.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def encrypt_rows(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """The columns of rows to write."""
        return await in_thread_if_long(sum(row.size for row in rows), lambda: [self._encrypt_row(row) for row in rows])

    async def decrypt_rows(self, records: Sequence[Record[Any]]) -> list[Row]:
        """Decrypts records; raises JournalUnavailable if a key is missing, JournalDamaged if a record was modified."""
        size = sum(len(record.message) for record in records)
        return await in_thread_if_long(size, lambda: [self._decrypt_row(record) for record in records])

    def _encrypt_row(self, row: Row) -> dict[str, object]:
        message = self._encrypt(row.message.model_dump_json(exclude_unset=True), place_of(row))
        return {"id": row.id, "parent": row.parent, "depth": row.depth, "message": message}

    def _decrypt_row(self, record: Record[Any]) -> Row:
        message = Message.model_validate_json(self._decrypt(record.message, place_of(record)))
        return Row(record.id, record.parent, record.depth, message)

    def catalog_name(self, catalog: RunCatalog) -> str:
        """The name under which a catalog is stored from now on.

        With a key it is a keyed hash: the plain id would let anybody verify a guess of the catalog's content.
        """
        plain = catalog_id(catalog)
        return self._keys.all[0].keyed_hash(plain) if self._keys.all else plain

    def attachment_id(self, run: str, content: bytes) -> str:
        """The id of an attachment that a run stores. With a key, as for a catalog, its hash is a keyed one."""
        plain = hashlib.sha256(content).hexdigest()
        return f"{run}/{self._keys.all[0].keyed_hash(plain) if self._keys.all else plain}"

    def encrypt_attachment(self, attachment_id: str, content: bytes) -> str:
        """The content of an attachment as it is stored."""
        return self._encrypt(base64.b64encode(content).decode(), f"attachment {attachment_id}")

    def decrypt_attachment(self, record: Record[Any]) -> bytes:
        """Decrypts an attachment; raises the errors of ``decrypt_rows``."""
        return base64.b64decode(self._decrypt(record.content, f"attachment {record.id}"))

    def encrypt_catalog(self, catalog: RunCatalog) -> dict[str, object]:
        """The columns of a catalog to write."""
        name = self.catalog_name(catalog)
        return {"sha": name, "catalog": self._encrypt(catalog.canonical, f"catalog {name}")}

    def decrypt_catalog(self, record: Record[Any]) -> RunCatalog:
        """Decrypts a catalog; raises the errors of ``decrypt_rows``."""
        return RunCatalog.model_validate_json(self._decrypt(record.catalog, f"catalog {record.sha}"))

    def encrypt_manifest(self, text: str, place: str) -> str:
        """Encrypts the text of a stored manifest; ``place`` is its id and version."""
        return self._encrypt(text, f"manifest {place}")

    def encrypt_secret(self, text: str, place: str) -> str:
        """Encrypts the text of a stored Secret; raises SettingsError without a key."""
        if not self._keys.all:
            raise SettingsError("a Secret is only stored encrypted, and there is no key: set BATON_ENCRYPTION_KEYS")
        return self.encrypt_manifest(text, place)

    def decrypt_manifest(self, text: str, place: str) -> str:
        """Decrypts the text of a stored manifest; raises the errors of ``decrypt_rows``."""
        return self._decrypt(text, f"manifest {place}")

    @property
    def first_key(self) -> str | None:
        """The id of the key that encrypts."""
        return self._keys.ids[0] if self._keys.ids else None

    def encrypt_again(self, text: str, place: str) -> str:
        """Decrypts the text at a place with any key, and encrypts it with the first; raises JournalLost."""
        return self._encrypt(self._decrypt(text, place), place)

    async def register(self, engine: Engine) -> None:
        """Registers the first key in the journal.

        Raises SettingsError if a key with which the journal was written is missing or differs.
        """
        await check_keys(engine, self._keys)
        if self._keys.all:
            first = self._keys.all[0].id
            row = {"id": first, "proof": self._encrypt("", f"key {first}")}
            insert = insert_missing(engine.dialect, schema.keys)

            def execute(connection: Connection) -> None:
                if connection.execute(insert, row).all():
                    actor = Actor(platform.node(), "journal")
                    append(connection, [AuditEntry.by(actor, ["key"], "key", ("key", "", first))])

            await engine.run_in_transaction(execute)
            await check_keys(engine, self._keys)  # again: another worker may have registered that id meanwhile

    def _encrypt(self, text: str, place: str) -> str:
        return self._keys.seal(text, place)

    def _decrypt(self, text: str, place: str) -> str:
        try:
            return self._keys.unseal(text, place)
        except UnknownKeyError as error:
            raise JournalUnavailable(f"the journal can't be read: {error}") from None  # another worker has the key
        except WrongKeyError as error:
            raise JournalDamaged(f"the journal's {place} can't be read: {error}") from None


async def check_keys(engine: Engine, keys: Keys) -> None:
    """Raises SettingsError if a key with which the journal was written is missing or differs."""
    registered = await engine.run(lambda connection: connection.execute(select(schema.keys)).all())
    try:
        for key in registered:
            keys.unseal(key.proof, f"key {key.id}")
    except SettingsError as error:
        raise SettingsError(f"the journal can't be read: {error}") from None


def key_ids(connection: Connection) -> Sequence[str]:
    """The ids of all keys with which this journal was ever written."""
    return connection.execute(select(schema.keys.c.id).order_by(schema.keys.c.id)).scalars().all()


def place_of(row: Row | Record[Any]) -> str:
    """The place of a row in the journal: the associated data of its text."""
    return f"row {row.id} at {row.depth} after {row.parent}"


def missing_rows(connection: Connection, namespace: str, ids: Collection[str]) -> set[str]:
    """Those of the ids that no row of a Temporal namespace has."""
    ordered = sorted(ids)
    found = set[str]()
    for start in range(0, len(ordered), MAX_LOOKED_UP):
        here = (
            schema.messages.c.temporal_namespace == namespace,
            schema.messages.c.id.in_(ordered[start : start + MAX_LOOKED_UP]),
        )
        found.update(connection.execute(select(schema.messages.c.id).where(*here)).scalars())
    return {*ids} - found


MAX_LOOKED_UP = 500
"""Ids in one statement."""
