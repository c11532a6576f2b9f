"""The manifests in the journal's database, encrypted with its keys: those of the store, and those of workers' files.

Every change of the store increments its revision and has a random id, which distinguishes changes with the same
revision after a backup was restored. The versions of a resource are counted from 1, and continue after it was deleted
and created again; the last ``MAX_VERSIONS`` are retained.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, func, insert, select, update
from sqlalchemy import Row as Record

from ..contracts.errors import JournalLost, JournalUnavailable
from ..contracts.identity import Actor
from ..resources.catalog import Catalog
from ..resources.secret import Secret
from ..resources.stored import UNUSED, Key, Revision, StoredManifest, latest_revision
from ..temporal.activity import in_thread_if_long
from . import schema
from .audit import AuditAction, AuditEntry, append
from .journal import Journal
from .quotas import database_time
from .rows import insert_missing

MAX_MANIFEST_BYTES = 2_000_000
MAX_MANIFESTS = 10_000
MAX_STORE_BYTES = 50_000_000
"""Limits on the JSON size of one manifest, their number, and their total size: every worker holds them in memory."""

MAX_VERSIONS = 20
"""The number of versions that are retained of every resource, except of Secrets: only the newest one is retained."""

_MAX_SEALED = MAX_MANIFEST_BYTES * 4 // 3 + 1_000
"""Characters of an encrypted manifest: longer ones are not read."""

_table = schema.manifests
_published = schema.worker_manifests
_KEY = (_table.c.kind, _table.c.namespace, _table.c.name)
_TEXT = case((func.length(_table.c.manifest) <= _MAX_SEALED, _table.c.manifest)).label("manifest")
_ALL = select(*_KEY, _table.c.version, _table.c.revision, _table.c.change, _table.c.changed, _table.c.author, _TEXT)
_REVISION = select(_table.c.revision, _table.c.change).order_by(_table.c.revision.desc()).limit(1)


class Changes(NamedTuple):
    """The newest versions of all resources that were changed after the revision ``since``, up to a ``revision``.

    They are sorted by kind, namespace and name.
    """

    since: Revision
    revision: Revision
    manifests: list[StoredManifest]


class ManifestStore:
    """The manifests in the database of a ``journal``."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._encryption = journal.encryption

    async def revision(self) -> Revision:
        """The revision of the last change."""
        rows = await self._database.run(_REVISION)
        return Revision(*rows[0]) if rows else UNUSED

    async def changed_since(self, known: Revision) -> Changes:
        """The changes since a ``known`` revision, or all since the first one if the store no longer has that change.

        Then the store was restored from a backup, or all versions that were written with that change were replaced.
        """
        this_change = _table.c.revision == known.number, _table.c.change == known.change
        has_known = await self._database.run(select(_table.c.revision).where(*this_change).limit(1))
        since = known if has_known else UNUSED
        manifests = await self._newest(_table.c.revision > since.number)
        return Changes(since, latest_revision(manifests) if manifests else since, manifests)

    async def secrets(self) -> list[StoredManifest]:
        """The newest versions of all Secrets, with their values."""
        return await self._newest(_table.c.kind == Secret.__name__)

    async def _newest(self, condition: ColumnElement[bool]) -> list[StoredManifest]:
        newest = select(*_KEY, func.max(_table.c.version).label("version")).group_by(*_KEY).subquery()
        same = (_table.c[name] == newest.c[name] for name in ("kind", "namespace", "name", "version"))
        return await self._read(_ALL.join(newest, and_(*same)).where(condition).order_by(*_KEY))

    async def versions(self, key: Key) -> list[StoredManifest]:
        """The retained versions of a resource, newest first."""
        here = (column == value for column, value in zip(_KEY, key, strict=True))
        return await self._read(_ALL.where(*here).order_by(_table.c.version.desc()))

    async def write(self, changes: Sequence[tuple[Key, str]], expected: Revision, actor: Actor) -> bool:
        """Writes a new version of every resource in one transaction; an empty text marks a deletion.

        The ``actor`` becomes the author, and the audit log gets a row for each change.

        Writes nothing, and returns False, if the store is no longer at the ``expected`` revision. Raises SettingsError
        for a Secret if there is no key.
        """

        def execute(connection: Connection) -> bool:
            current = connection.execute(_REVISION).one_or_none()
            if (Revision(*current) if current else UNUSED) != expected:
                return False
            written = Revision(expected.number + 1, secrets.token_hex(16))
            append(connection, [self._write(connection, key, text, written, actor) for key, text in changes])
            return True

        return await self._database.engine.run_exclusively(execute)

    def _write(self, connection: Connection, key: Key, text: str, revision: Revision, actor: Actor) -> AuditEntry:
        here = and_(*(column == value for column, value in zip(_KEY, key, strict=True)))
        last = connection.execute(
            select(_table.c.version, _table.c.manifest).where(here).order_by(_table.c.version.desc()).limit(1)
        ).first()
        version = last.version + 1 if last else 1
        new = StoredManifest(
            *key,
            version=version,
            revision=revision.number,
            change=revision.change,
            changed=int(time.time()),
            manifest=text,
            author=actor.who[:255],
        )
        encrypt = self._encryption.encrypt_secret if new.is_secret else self._encryption.encrypt_manifest
        sealed = encrypt(text, new.place) if text else ""
        retained = 1 if new.is_secret else MAX_VERSIONS
        row = {**new._asdict(), "manifest": sealed}
        connection.execute(insert(_table), {column.name: row[column.name] for column in _table.c})
        connection.execute(delete(_table).where(here, _table.c.version <= version - retained))
        action: AuditAction = "delete" if not text else "update" if last and last.manifest else "create"
        return AuditEntry.by(actor, ["manifest", revision.change], action, key, detail=f"version {version}")

    async def _read(self, statement: Select[Any]) -> list[StoredManifest]:
        rows = await self._database.run(statement)
        size = sum(len(row.manifest or "") for row in rows)
        return await in_thread_if_long(size, lambda: [self._decrypted(row) for row in rows])

    def _decrypted(self, record: Record[Any]) -> StoredManifest:
        """Decrypts a record; one that can't be read has a ``problem``."""
        stored = StoredManifest(**record._mapping)
        if record.manifest is None:
            return stored._replace(manifest="", problem="exceeds the maximum length of a manifest")
        try:
            text = self._encryption.decrypt_manifest(stored.manifest, stored.place)
        except (JournalLost, JournalUnavailable) as error:
            lacks_key = isinstance(error, JournalUnavailable)
            return stored._replace(manifest="", problem=error.message, lacks_key=lacks_key)
        if not stored.is_secret or not text:
            return stored._replace(manifest=text)
        if text == stored.manifest:
            return stored._replace(manifest="", problem="it is a Secret that is not encrypted")
        try:
            secret = Secret.model_validate_json(text)
        except ValidationError:  # its text has the values
            return stored._replace(manifest="", problem="it is not a Secret that this release can read")
        return stored._replace(manifest=json.dumps(secret.masked()), secret=secret)


PUBLISHED_SECONDS = 86_400
"""Seconds after which unused manifests are deleted; Temporal may list a worker only some time after its start."""


class WorkerManifests:
    """The manifests with which the workers of a task queue were started, in the database of a ``journal``.

    ``namespace`` is the id of Temporal's namespace. A worker's identity ends with the digest of its manifests.
    """

    def __init__(self, journal: Journal, namespace: str, task_queue: str) -> None:
        self._database = journal.database
        self._encryption = journal.encryption
        self._place = {"namespace": namespace, "task_queue": task_queue}

    async def publish(self, digest: str, own: Catalog, live: Collection[str]) -> None:
        """Writes a worker's manifests. Deletes old ones, except those with the digests of ``live`` workers."""
        text = self._encryption.encrypt_manifest(own.canonical, self._name(digest))

        def execute(connection: Connection) -> None:
            now = int(database_time(connection))  # other workers compare it
            row = {**self._place, "digest": digest, "published": now, "catalog": text}
            connection.execute(insert_missing(self._database.engine.dialect, _published), row)
            connection.execute(update(_published).where(*self._here, _published.c.digest == digest).values(row))
            ended = _published.c.digest.not_in([*live, digest]), _published.c.published < now - PUBLISHED_SECONDS
            connection.execute(delete(_published).where(*self._here, *ended))

        await self._database.transact(execute)

    async def read(self, digests: Collection[str]) -> dict[str, Catalog]:
        """The published manifests with these digests, except those that this release or its keys can't read."""
        statement = select(_published.c.digest, _published.c.catalog)
        rows = await self._database.run(statement.where(*self._here, _published.c.digest.in_(digests)))
        catalogs: dict[str, Catalog] = {}
        for row in rows:
            digest, text = row.digest, row.catalog
            with contextlib.suppress(JournalLost, JournalUnavailable, ValidationError):
                plain = self._encryption.decrypt_manifest(text, self._name(digest))
                catalogs[digest] = Catalog.model_validate_json(plain)
        return catalogs

    @property
    def _here(self) -> Iterable[ColumnElement[bool]]:
        return [_published.c[name] == value for name, value in self._place.items()]

    def _name(self, digest: str) -> str:
        return f"of workers {'/'.join(self._place.values())}/{digest}"
