"""Encrypts messages and catalogs before they are written to the journal; ids and depths stay readable.

An encrypted text is ``sealed:KEY-ID:BASE64``. Its place in the journal is authenticated with it, so that it can't be
moved to another place. A text without that prefix is plain JSON, written by a worker without a key.
"""

import base64
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy import Row as Record

from ...conversation.errors import JournalLost, JournalUnavailable
from ...conversation.messages.message import Message
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.encryption import Keys, UnknownKeyError, WrongKeyError
from ...resources.catalog import Catalog
from ..runtime.threads import in_thread_if_long
from . import schema
from .catalog_id import catalog_id
from .engine import Engine
from .row import Row
from .statements import insert_missing

_PREFIX = "sealed"


class RowEncryption:
    """Encrypts with the first key, and decrypts with any of them. Without keys, nothing is encrypted."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def encrypt_rows(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """The columns of rows to write."""
        return await in_thread_if_long(sum(row.size for row in rows), lambda: [self._encrypt_row(row) for row in rows])

    async def decrypt_rows(self, records: Sequence[Record[Any]]) -> list[Row]:
        """Rows that were read; raises JournalUnavailable without their key, and JournalLost if one was changed."""
        size = sum(len(record.message) for record in records)
        return await in_thread_if_long(size, lambda: [self._decrypt_row(record) for record in records])

    def _encrypt_row(self, row: Row) -> dict[str, object]:
        message = self._encrypt(row.message.model_dump_json(exclude_unset=True), _place(row))
        return {"id": row.id, "parent": row.parent, "depth": row.depth, "message": message}

    def _decrypt_row(self, record: Record[Any]) -> Row:
        message = Message.model_validate_json(self._decrypt(record.message, _place(record)))
        return Row(record.id, record.parent, record.depth, message)

    def encrypt_catalog(self, catalog: Catalog) -> dict[str, object]:
        """The columns of a catalog to write.

        With a key its name is not the plain id, by which anybody could test guesses of what a catalog holds.
        """
        name = self.catalog_names(catalog_id(catalog))[0]
        return {"sha": name, "catalog": self._encrypt(catalog.canonical, f"catalog {name}")}

    def decrypt_catalog(self, record: Record[Any]) -> Catalog:
        """A catalog that was read; raises the same errors as ``decrypt_rows``."""
        return Catalog.model_validate_json(self._decrypt(record.catalog, f"catalog {record.sha}"))

    def catalog_names(self, pinned: str) -> list[str]:
        """The names under which a catalog may have been written, with any key or with none; the first is used now."""
        return [*(key.keyed_hash(pinned) for key in self._keys.all), pinned]

    def encrypt_manifest(self, text: str, place: str) -> str:
        """The text of a stored manifest to write; ``place`` is its id and version."""
        return self._encrypt(text, f"manifest {place}")

    def decrypt_manifest(self, text: str, place: str) -> str:
        """The text of a stored manifest that was read; raises the same errors as ``decrypt_rows``."""
        return self._decrypt(text, f"manifest {place}")

    async def register(self, engine: Engine) -> None:
        """Writes the id of the first key to the journal.

        Raises SettingsError if a key is missing or differs with which others have written to the journal.
        """
        await self._check_keys(engine)
        if self._keys.all:
            first = self._keys.all[0].id
            row = {"id": first, "proof": self._encrypt("", f"key {first}")}
            insert = insert_missing(engine.dialect, schema.keys)
            await engine.run(lambda connection: connection.execute(insert, row).all())
            await self._check_keys(engine)  # again: another worker may have registered a key of that id meanwhile

    async def _check_keys(self, engine: Engine) -> None:
        registered = await engine.run(lambda connection: connection.execute(select(schema.keys)).all())
        try:
            for each in registered:
                self._decrypt_with_key(each.proof, f"key {each.id}")
        except SettingsError as error:
            raise SettingsError(f"the journal can't be read: {error}") from None

    def _encrypt(self, text: str, place: str) -> str:
        if not self._keys.all:
            return text
        key = self._keys.all[0]
        encrypted = key.encrypt(text.encode(), _associated_data(key.id, place))
        return f"{_PREFIX}:{key.id}:{base64.b64encode(encrypted).decode()}"

    def _decrypt(self, text: str, place: str) -> str:
        if not text.startswith(f"{_PREFIX}:"):
            return text
        try:
            return self._decrypt_with_key(text, place)
        except UnknownKeyError as error:
            raise JournalUnavailable(f"the journal can't be read: {error}") from None  # another worker has the key
        except WrongKeyError as error:
            raise JournalLost(f"the journal's {place} can't be read: {error}") from None

    def _decrypt_with_key(self, text: str, place: str) -> str:
        _, key_id, encrypted = text.split(":")
        return self._keys.decrypt(key_id, base64.b64decode(encrypted), _associated_data(key_id, place)).decode()


def key_ids(connection: Connection) -> Sequence[str]:
    """The ids of all keys with which anything was ever written to this journal."""
    return connection.execute(select(schema.keys.c.id).order_by(schema.keys.c.id)).scalars().all()


def _place(row: Row | Record[Any]) -> str:
    return f"row {row.id} at {row.depth} after {row.parent}"


def _associated_data(key_id: str, place: str) -> bytes:
    return f"baton journal\n{key_id}\n{place}".encode()
