"""Applies, reads and deletes the manifests of the store in the journal's database, as ``baton apply`` does.

This requires write access to that database. Changes are validated against the store as it was read. If it has changed
meanwhile, nothing is written, and the operation starts again.
"""

import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from temporalio.client import Client

from ...activities.runtime.settings import Settings
from ...activities.runtime.start_checks import manifests_digest
from ...contracts.errors import JournalUnavailable
from ...journal.journal import Journal
from ...journal.manifest_store import (
    MAX_MANIFEST_BYTES,
    MAX_MANIFESTS,
    MAX_STORE_BYTES,
    ManifestStore,
    WorkerManifests,
)
from ...journal.migrate import VERSION, version
from ...resources.catalog import Catalog, Resource, catalog_of
from ...resources.loader import Loaded, OfWorkers
from ...resources.manifest import Manifest
from ...resources.problems import MAX_LINES, dotted_path
from ...resources.stored import (
    UNUSED,
    Key,
    Revision,
    StoredManifest,
    check_storable,
    check_with,
    key_of,
    text_of,
    users,
)
from ...temporal.client import task_queue
from ...temporal.encryption import Keys
from ...temporal.search_attributes import describe_namespace, live_workers
from ..server.connection import temporal_namespace

Applied = Literal["created", "configured", "unchanged"]
"""The result of applying a manifest, as reported by ``kubectl apply``."""

ATTEMPTS = 20
"""The number of attempts to change the store in case of concurrent changes."""


class StoreError(Exception):
    """The store lacks a manifest, is full, or others keep changing it; the text says which."""


class StoreContents(NamedTuple):
    """The newest versions in the store at a revision, by kind, namespace and name."""

    revision: Revision
    newest: Mapping[Key, StoredManifest]

    @property
    def existing(self) -> list[StoredManifest]:
        """The manifests that are not deleted."""
        return [stored for stored in self.newest.values() if not stored.is_deleted]

    @property
    def readable(self) -> list[Resource]:
        """The manifests that this release can read, with its keys; without Secrets, which no catalog has."""
        return [resource for stored in self.existing if (resource := _readable(stored))]

    def get(self, key: Key) -> StoredManifest:
        """The newest version of a resource. Raises StoreError if it does not exist."""
        stored = self.newest.get(key)
        if stored is None or stored.is_deleted:
            raise missing_manifest(key, [manifest.key for manifest in self.existing], "in the store")
        return stored

    def catalog(self, without: Collection[Key] = ()) -> Catalog:
        """The manifests, ``without`` some, and without Secrets. Raises StoreError for one that can't be read."""
        others = (manifest for manifest in self.existing if manifest.key not in without and not manifest.is_secret)
        return catalog_of(filter(None, map(_resource, others)))

    def text(self, key: Key) -> str:
        """The newest manifest of a resource as the JSON that is stored; empty if there is none."""
        stored = self.newest.get(key)
        return (text_of(stored.secret) if stored.secret else stored.manifest) if stored else ""


class Store(ManifestStore):
    """The store with validated changes."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.journal = journal

    async def contents(self) -> StoreContents:
        """The current contents."""
        changes = await self.changed_since(UNUSED)
        return StoreContents(changes.revision, {manifest.key: manifest for manifest in changes.manifests})

    async def apply(
        self, loaded: Loaded, *, force: bool = False, dry: bool = False
    ) -> Sequence[tuple[Manifest, Applied]]:
        """Writes all new or changed manifests of files, or none of them; with ``dry`` it only checks them.

        Raises ManifestError for manifests that can't be stored or break a rule together with the store, and StoreError.
        With ``force`` references may be unresolved.
        """
        check_storable(loaded, encrypted=self.journal.encryption.first_key is not None)
        texts = {key_of(manifest): text_of(manifest) for manifest in loaded.manifests}

        def change(contents: StoreContents) -> Mapping[Key, str]:
            changed = {key: text for key, text in texts.items() if contents.text(key) != text}
            if changed:
                check_with(loaded, contents.catalog(without=texts), force=force)
                _check_size(contents, changed)
            return changed

        if dry:
            before = await self.contents()
            changed = change(before)
        else:
            before, changed = await self._change(change)
        return [(manifest, _applied(before, changed, key_of(manifest))) for manifest in loaded.manifests]

    async def delete(self, keys: Collection[Key], *, force: bool = False) -> None:
        """Deletes all of these manifests or none; their earlier versions remain, except those of Secrets.

        Raises StoreError if one does not exist, or if another manifest still needs one of them, unless ``force``.
        """

        def change(contents: StoreContents) -> Mapping[Key, str]:
            for key in keys:
                contents.get(key)
            if not force:
                _check_unused(contents, keys)
            return dict.fromkeys(keys, "")

        await self._change(change)

    async def _change(
        self, change: Callable[[StoreContents], Mapping[Key, str]]
    ) -> tuple[StoreContents, Mapping[Key, str]]:
        """Writes the changes that ``change`` computes; returns the previous contents and the written changes."""
        for _ in range(ATTEMPTS):
            contents = await self.contents()
            changed = change(contents)
            if not changed or await self.write([*changed.items()], contents.revision):
                return contents, changed
        raise StoreError("the store was changed concurrently too often: nothing was written")


@contextlib.asynccontextmanager
async def open_store(environ: Mapping[str, str] = os.environ) -> AsyncIterator[Store]:
    """The store in the journal of BATON_JOURNAL_URL. Raises JournalUnavailable if that can't be used."""
    settings = Settings.of(environ)
    settings.make_journal_file()
    keys = Keys.from_environment(environ)
    journal = await Journal.open(settings.journal, temporal_namespace(), keys, upgrade=False)
    try:
        current = await journal.database.engine.run(version)
        if current < VERSION:
            raise JournalUnavailable(
                f"the journal's tables have version {current}, and the store needs version {VERSION}: "
                "start a worker of this release, or run: baton migrate"
            )
        yield Store(journal)
    finally:
        await journal.close()


class WorkerFiles(NamedTuple):
    """The manifests in the files of live workers, with the number of ``workers`` that have each.

    Workers may have different versions of one: all of them are here. What ``unknown`` workers have is not known.
    """

    workers: int = 0
    unknown: int = 0
    manifests: Sequence[tuple[Resource, int]] = ()


async def read_worker_files(journal: Journal, client: Client, queue: str | None = None) -> WorkerFiles:
    """The manifests of the live workers of a task queue, as they have published them in the journal.

    Raises RPCError, and JournalUnavailable.
    """
    queue = queue or task_queue()
    workers = Counter(manifests_digest(worker.identity) for worker in await live_workers(client, queue))
    namespace = (await describe_namespace(client)).namespace_info.id
    published = await WorkerManifests(journal, namespace, queue).read([*workers])
    variants: dict[str, tuple[Resource, int]] = {}
    for digest, catalog in published.items():
        for manifest in catalog.manifests:
            variant = manifest.model_dump_json(exclude_unset=True)
            variants[variant] = manifest, workers[digest] + variants.get(variant, (manifest, 0))[1]
    return WorkerFiles(
        workers=workers.total(),
        unknown=sum(count for digest, count in workers.items() if digest not in published),
        manifests=sorted(variants.values(), key=lambda variant: variant[0].id),
    )


async def manifests_of_workers(client: Client | None, environ: Mapping[str, str] = os.environ) -> OfWorkers:
    """The manifests that workers have in the store and in their files; without a ``client``, no worker runs.

    What some worker has is there. It is complete if the journal is that of the workers, and all of it can be read.
    """
    settings = Settings.of(environ)
    if not (settings.journal_url or (settings.state_dir / "journal.db").exists()):
        return OfWorkers(Catalog(), is_complete=client is None)
    async with open_store(environ) as store:
        contents = await store.contents()
        stored = catalog_of(contents.readable)
        secrets = [manifest for manifest in contents.existing if manifest.is_secret]
        names = frozenset((secret.namespace, secret.name) for secret in secrets)
        all_readable = len(stored.manifests) + len(secrets) == len(contents.existing)
        if client is None:
            return OfWorkers(stored, is_complete=all_readable, secrets=names)
        files = await read_worker_files(store.journal, client, environ.get("BATON_TASK_QUEUE"))
        of_files = catalog_of({manifest.id: manifest for manifest, _ in files.manifests}.values())
        is_complete = all_readable and files.workers > 0 and not files.unknown
        return OfWorkers(of_files.overlaid_on(stored), is_complete, secrets=names)


def _readable(stored: StoredManifest) -> Resource | None:
    try:
        return stored.resource()
    except ValueError:
        return None


def _check_unused(contents: StoreContents, keys: Collection[Key]) -> None:
    needed = users(contents.catalog(), {"/".join(key) for key in keys})
    if texts := [f"{user.id}: {dotted_path(reference.path)}: needs {reference}" for user, reference in needed]:
        hint = "delete or change the manifests that need it first, or use --force"
        raise StoreError("; ".join(texts[:MAX_LINES]) + f"; nothing was deleted: {hint}")


def missing_manifest(key: Key, existing: Iterable[Key], where: str) -> StoreError:
    """The error for a resource that is not among the ``existing`` ones."""
    kind, namespace, name = key
    known = ", ".join(dict.fromkeys(other[2] for other in existing if other[:2] == (kind, namespace))) or "none"
    return StoreError(f"there is no {kind} '{name}' {where} in the namespace '{namespace}'; known: {known}")


def _check_size(contents: StoreContents, changed: Mapping[Key, str]) -> None:
    sizes = {stored.key: len(stored.manifest.encode()) for stored in contents.existing}
    sizes |= {key: len(text.encode()) for key, text in changed.items()}
    for key in changed:
        if sizes[key] > MAX_MANIFEST_BYTES:
            size = f"{sizes[key]:,} bytes, more than the limit of {MAX_MANIFEST_BYTES:,}"
            raise StoreError(f"{'/'.join(key)} has {size}: nothing was written")
    if len(sizes) > MAX_MANIFESTS or sum(sizes.values()) > MAX_STORE_BYTES:
        limits = f"{MAX_MANIFESTS:,} manifests and {MAX_STORE_BYTES:,} bytes in total"
        raise StoreError(f"the store is limited to {limits}: nothing was written")


def _applied(before: StoreContents, changed: Mapping[Key, str], key: Key) -> Applied:
    if key not in changed:
        return "unchanged"
    return "configured" if key in before.newest and not before.newest[key].is_deleted else "created"


def _resource(stored: StoredManifest) -> Resource | None:
    try:
        return stored.resource()
    except ValueError as error:
        raise StoreError(f"the stored manifest {stored.place} can't be read: {error}") from None
