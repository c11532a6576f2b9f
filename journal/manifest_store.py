"""The manifests in the journal's database, encrypted with its keys: those of the store, and those of workers' files.

Every change of the store increments its revision. The versions of a resource are counted from 1, and continue after it
was deleted and created again; the last ``MAX_VERSIONS`` are retained.
"""

import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, func, insert, select, update
from sqlalchemy import Row as Record

from ..contracts.errors import JournalLost, JournalUnavailable
from ..resources.catalog import Catalog
from ..resources.stored import Key, StoredManifest
from ..temporal.activity import in_thread_if_long
from . import schema
from .journal import Journal
from .rows import insert_missing

MAX_MANIFEST_BYTES = 2_000_000
MAX_MANIFESTS = 10_000
MAX_STORE_BYTES = 50_000_000
"""Limits on the JSON size of one manifest, their number, and their total size: every worker holds them in memory."""

MAX_VERSIONS = 20
"""The number of versions that are retained of every resource."""

_MAX_SEALED = MAX_MANIFEST_BYTES * 4 // 3 + 1_000
"""Characters of an encrypted manifest: longer ones are not read."""

_table = schema.manifests
_published = schema.worker_manifests
_KEY = (_table.c.kind, _table.c.namespace, _table.c.name)
_TEXT = case((func.length(_table.c.manifest) <= _MAX_SEALED, _table.c.manifest)).label("manifest")
_ALL = select(*_KEY, _table.c.version, _table.c.revision, _table.c.changed, _TEXT)
_REVISION = select(func.max(_table.c.revision))


class ManifestStore:
    """The manifests in the database of a ``journal``."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._encryption = journal.encryption

    async def revision(self) -> int:
        """The revision of the last change; 0 for a store that was never used."""
        return (await self._database.run(_REVISION))[0][0] or 0

    async def changed_since(self, revision: int) -> list[StoredManifest]:
        """The newest versions of all resources changed after a revision, sorted by kind, namespace and name."""
        newest = select(*_KEY, func.max(_table.c.version).label("version")).group_by(*_KEY).subquery()
        same = (_table.c[name] == newest.c[name] for name in ("kind", "namespace", "name", "version"))
        matching = _ALL.join(newest, and_(*same)).where(_table.c.revision > revision).order_by(*_KEY)
        return await self._read(matching)

    async def versions(self, key: Key) -> list[StoredManifest]:
        """The retained versions of a resource, newest first."""
        here = (column == value for column, value in zip(_KEY, key, strict=True))
        return await self._read(_ALL.where(*here).order_by(_table.c.version.desc()))

    async def write(self, changes: Sequence[tuple[Key, str]], expected: int) -> bool:
        """Writes a new version of every resource in one transaction; an empty text marks a deletion.

        Writes nothing, and returns False, if the store is no longer at the ``expected`` revision.
        """

        def execute(connection: Connection) -> bool:
            if (connection.execute(_REVISION).scalar() or 0) != expected:
                return False
            for key, text in changes:
                self._write(connection, key, text, expected + 1)
            return True

        return await self._database.engine.run_exclusively(execute)

    def _write(self, connection: Connection, key: Key, text: str, revision: int) -> None:
        here = and_(*(column == value for column, value in zip(_KEY, key, strict=True)))
        version = (connection.execute(select(func.max(_table.c.version)).where(here)).scalar() or 0) + 1
        new = StoredManifest(*key, version, revision, int(time.time()), text)
        sealed = self._encryption.encrypt_manifest(text, new.place) if text else ""
        row = {**new._asdict(), "manifest": sealed}
        connection.execute(insert(_table), {column.name: row[column.name] for column in _table.c})
        connection.execute(delete(_table).where(here, _table.c.version <= version - MAX_VERSIONS))

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
            return stored._replace(manifest=self._encryption.decrypt_manifest(stored.manifest, stored.place))
        except (JournalLost, JournalUnavailable) as error:
            lacks_key = isinstance(error, JournalUnavailable)
            return stored._replace(manifest="", problem=error.message, lacks_key=lacks_key)


PUBLISHED_SECONDS = 86_400
"""Seconds after which the manifests of workers that have ended are deleted; one may be listed only after its start."""


class WorkerManifests:
    """The manifests with which the workers of a task queue were started, in the database of a ``journal``.

    ``namespace`` is the id of Temporal's namespace. A worker's identity ends with the digest of its manifests.
    """

    def __init__(self, journal: Journal, namespace: str, task_queue: str) -> None:
        self._database = journal.database
        self._encryption = journal.encryption
        self._place = {"namespace": namespace, "task_queue": task_queue}

    async def publish(self, digest: str, own: Catalog, live: Collection[str]) -> None:
        """Writes a worker's manifests. Deletes those that no worker has, except the digests of ``live`` workers."""
        now = int(time.time())
        text = self._encryption.encrypt_manifest(own.canonical, self._name(digest))
        row = {**self._place, "digest": digest, "published": now, "catalog": text}

        def execute(connection: Connection) -> None:
            connection.execute(insert_missing(self._database.engine.dialect, _published), row)
            connection.execute(update(_published).where(*self._here, _published.c.digest == digest).values(row))
            ended = _published.c.digest.not_in([*live, digest]), _published.c.published < now - PUBLISHED_SECONDS
            connection.execute(delete(_published).where(*self._here, *ended))

        await self._database.transact(execute)

    async def read(self, digests: Collection[str]) -> dict[str, Catalog]:
        """The manifests with these digests that are published, can be decrypted, and are of this release's kinds."""
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
