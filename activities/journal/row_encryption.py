"""What can be read in the journal's database without a key? Ids and depths, but nothing that was said.

A sealed text is ``sealed:KEY-ID:BASE64``. It is bound to its place, so that it can't be moved to another one. A text
that isn't sealed is JSON, of the time before there was a key.
"""

import base64
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy import Row as Found

from ...conversation.errors import JournalLost, JournalUnavailable
from ...conversation.messages.message import Message
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.encryption import Keys, UnknownKeyError, WrongKeyError
from ...resources.catalog import Catalog
from . import schema
from .engine import Engine
from .row import Row
from .statements import insert_new

_SEALED = "sealed"


class Seal:
    """Seals what is written with the first key, and reads what any of the keys has sealed."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def row(self, row: Row) -> dict[str, object]:
        """A row as it is written."""
        message = self._closed(row.message.model_dump_json(exclude_unset=True), _place(row))
        return {"id": row.id, "parent": row.parent, "depth": row.depth, "message": message}

    def read_row(self, found: Found[Any]) -> Row:
        """A row that was found; raises JournalUnavailable without its key, and JournalLost if it was changed."""
        return Row(found.id, found.parent, found.depth, self._message(found))

    def _message(self, found: Found[Any]) -> Message:
        return Message.model_validate_json(self._opened(found.message, _place(found)))

    def catalog(self, catalog: Catalog) -> dict[str, object]:
        """A catalog as it is written: a plain SHA-256 would let anybody try out which question it holds."""
        name = self.names(catalog.sha)[0]
        return {"sha": name, "catalog": self._closed(catalog.canonical, f"catalog {name}")}

    def read_catalog(self, found: Found[Any]) -> Catalog:
        """A catalog that was found; raises what ``read_row`` does."""
        return Catalog.model_validate_json(self._opened(found.catalog, f"catalog {found.sha}"))

    def names(self, sha: str) -> list[str]:
        """The names under which a catalog may have been written, that of today first."""
        return [*(key.name(sha) for key in self._keys.all), sha]

    async def agree(self, engine: Engine) -> None:
        """Notes which key seals here; raises SettingsError where this worker could not read what others have sealed."""
        await self._try(engine)
        if self._keys.all:
            first = self._keys.all[0].id
            row = {"id": first, "proof": self._closed("", f"key {first}")}
            note = insert_new(engine.dialect, schema.keys)
            await engine.run(lambda connection: connection.execute(note, row).all())
            await self._try(engine)  # another worker may have brought another key of that id meanwhile

    async def _try(self, engine: Engine) -> None:
        noted = await engine.run(lambda connection: connection.execute(select(schema.keys)).all())
        try:
            for each in noted:
                self._decrypted(each.proof, f"key {each.id}")
        except SettingsError as error:
            raise SettingsError(f"the journal can't be read: {error}") from None

    def _closed(self, text: str, place: str) -> str:
        if not self._keys.all:
            return text
        key = self._keys.all[0]
        sealed = key.seal(text.encode(), _about(key.id, place))
        return f"{_SEALED}:{key.id}:{base64.b64encode(sealed).decode()}"

    def _opened(self, text: str, place: str) -> str:
        if not text.startswith(f"{_SEALED}:"):
            return text
        try:
            return self._decrypted(text, place)
        except UnknownKeyError as error:
            raise JournalUnavailable(f"the journal can't be read: {error}") from None  # another worker has the key
        except WrongKeyError as error:
            raise JournalLost(f"the journal's {place} can't be read: {error}") from None

    def _decrypted(self, text: str, place: str) -> str:
        _, key_id, sealed = text.split(":")
        return self._keys.open(key_id, base64.b64decode(sealed), _about(key_id, place)).decode()


def key_ids(connection: Connection) -> Sequence[str]:
    """The ids of all keys that this journal has ever been sealed with."""
    return connection.execute(select(schema.keys.c.id).order_by(schema.keys.c.id)).scalars().all()


def _place(row: "Row | Found[Any]") -> str:
    return f"row {row.id} at {row.depth} after {row.parent}"


def _about(key_id: str, place: str) -> bytes:
    return f"baton journal\n{key_id}\n{place}".encode()
