"""Applies, reads and deletes the manifests of the store in the journal's database, as ``baton apply`` does.

This requires write access to that database. Changes are validated against the store as it was read. If it has changed
meanwhile, nothing is written, and the operation starts again.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from temporalio.client import Client

from ...activities.runtime.settings import Settings
from ...activities.runtime.start_checks import manifests_digest
from ...contracts.errors import JournalUnavailable
from ...contracts.identity import Actor
from ...journal.journal import Journal
from ...journal.manifest_store import (
    MAX_MANIFEST_BYTES,
    MAX_MANIFESTS,
    MAX_STORE_BYTES,
    ManifestStore,
    WorkerManifests,
)
from ...journal.migrate import VERSION, version
from ...resources.base import Reference
from ...resources.catalog import KINDS, Catalog, Resource, catalog_of
from ...resources.loader import Loaded, OfWorkers
from ...resources.manifest import Manifest
from ...resources.problems import MAX_LINES, dotted_path
from ...resources.role import RIGHTS
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
from ..account import client_identity
from ..server.connection import temporal_namespace

Applied = Literal["created", "configured", "unchanged", "pruned"]
"""The result of applying a manifest, as reported by ``kubectl apply``."""

ATTEMPTS = 20
"""The number of attempts to change the store in case of concurrent changes."""


class StoreError(Exception):
    """The store lacks a manifest, is full, or others keep changing it; the text says which."""


class NeededError(StoreError):
    """What is to be deleted is needed by other manifests: those of ``needed``, with their references."""

    def __init__(self, needed: Sequence[tuple[Manifest, Reference]]) -> None:
        self.needed = needed
        hint = "delete or change the manifests that need it first, or use --force"
        super().__init__("; ".join(needs(needed)[:MAX_LINES]) + f"; nothing was deleted: {hint}")


class UnreadableError(StoreError):
    """A manifest in the store, that with the ``key``, can't be read by this release, or with its encryption keys."""

    def __init__(self, stored: StoredManifest, reason: str) -> None:
        self.key = stored.key
        super().__init__(f"the stored manifest {stored.place} can't be read: {reason}")


def needs(needed: Iterable[tuple[Manifest, Reference]]) -> list[str]:
    """Which manifests need what, in words."""
    return [f"{user.id}: {dotted_path(reference.path)}: needs {reference}" for user, reference in needed]


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
    """The store with validated changes, which are those of an ``actor``, by default of this process's account."""

    def __init__(self, journal: Journal, actor: Actor | None = None) -> None:
        super().__init__(journal)
        self.journal = journal
        self._actor = actor or Actor(client_identity(), "journal")

    async def contents(self) -> StoreContents:
        """The current contents."""
        changes = await self.changed_since(UNUSED)
        return StoreContents(changes.revision, {manifest.key: manifest for manifest in changes.manifests})

    async def apply(
        self,
        loaded: Loaded,
        *,
        force: bool = False,
        dry: bool = False,
        prune: Callable[[StoredManifest], bool] = lambda _: False,
        check: Callable[[StoreContents], None] = lambda _: None,
    ) -> Sequence[tuple[Key, Applied]]:
        """Writes all new or changed manifests of files, or none of them; with ``dry`` it only checks them.

        In the same change it deletes those that are not in the files and to be ``pruned``, but no Secrets: a repository
        does not have them.

        ``check`` raises if they may not replace the contents of the store: nothing else is written in between. It and
        ``prune`` are called in a thread, and again if others have changed the store meanwhile.
        Raises ManifestError for manifests that can't be stored or break a rule together with the store, and StoreError.
        With ``force`` references may be unresolved.
        """
        check_storable(loaded, encrypted=self.journal.encryption.first_key is not None)
        texts = {key_of(manifest): text_of(manifest) for manifest in loaded.manifests}

        def change(contents: StoreContents) -> Mapping[Key, str]:
            check(contents)
            changed = {key: text for key, text in texts.items() if contents.text(key) != text}
            if changed:
                check_with(loaded, contents.catalog(without=texts), force=force)
                _check_size(contents, changed)
            gone = [one.key for one in contents.existing if one.key not in texts and not one.is_secret and prune(one)]
            if gone and not force:
                _check_unused(contents, gone, replaced=loaded)
            return {**changed, **dict.fromkeys(gone, "")}

        if dry:
            before = await self.contents()
            changed = await asyncio.to_thread(change, before)
        else:
            before, changed = await self._change(change)
        pruned: list[tuple[Key, Applied]] = [(key, "pruned") for key, text in changed.items() if not text]
        return [*((key, _applied(before, changed, key)) for key in texts), *pruned]

    async def delete(
        self,
        keys: Collection[Key],
        *,
        force: bool = False,
        dry: bool = False,
        check: Callable[[StoreContents], None] = lambda _: None,
    ) -> None:
        """Deletes all of these manifests or none; their earlier versions remain, except those of Secrets.

        ``dry`` and ``check`` are those of ``apply``.

        Raises StoreError if one does not exist, or if another manifest still needs one of them, unless ``force``.
        """

        def change(contents: StoreContents) -> Mapping[Key, str]:
            check(contents)
            for key in keys:
                contents.get(key)
            if not force:
                _check_unused(contents, keys)
            return dict.fromkeys(keys, "")

        if dry:
            await asyncio.to_thread(change, await self.contents())
        else:
            await self._change(change)

    async def _change(
        self, change: Callable[[StoreContents], Mapping[Key, str]]
    ) -> tuple[StoreContents, Mapping[Key, str]]:
        """Writes the changes that ``change`` computes; returns the previous contents and the written changes."""
        for _ in range(ATTEMPTS):
            contents = await self.contents()
            changed = await asyncio.to_thread(change, contents)  # it reads and checks all that is stored
            if not changed or await self.write([*changed.items()], contents.revision, self._actor):
                return contents, changed
        raise StoreError("the store was changed concurrently too often: nothing was written")


@contextlib.asynccontextmanager
async def open_store(environ: Mapping[str, str] = os.environ, actor: Actor | None = None) -> AsyncIterator[Store]:
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
        yield Store(journal, actor)
    finally:
        await journal.close()


class WorkerFiles(NamedTuple):
    """The manifests in the files of live workers, with the number of ``workers`` that have each.

    Workers may have different versions of one: all of them are here. What ``unknown`` workers have is not known.
    """

    workers: int = 0
    unknown: int = 0
    manifests: Sequence[tuple[Resource, int]] = ()

    @property
    def is_complete(self) -> bool:
        """Whether it is known what workers have: while none is live, the next one may have anything."""
        return self.workers > 0 and not self.unknown


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


def has_journal(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the settings name a journal, or there is that of this machine's local server."""
    settings = Settings.of(environ)
    return bool(settings.journal_url) or (settings.state_dir / "journal.db").exists()


async def manifests_of_workers(client: Client | None, environ: Mapping[str, str] = os.environ) -> OfWorkers:
    """The manifests that workers have in the store and in their files; without a ``client``, no worker runs.

    What some worker has is there. It is complete if the journal is that of the workers, and all of it can be read.
    """
    if not has_journal(environ):
        return OfWorkers(Catalog(), is_complete=client is None)
    async with open_store(environ) as store:
        contents = await store.contents()
        stored = catalog_of(contents.readable)
        secrets = [manifest for manifest in contents.existing if manifest.is_secret]
        names = frozenset((secret.namespace, secret.name) for secret in secrets)
        all_readable = len(stored.manifests) + len(secrets) == len(contents.existing)
        if client is None:
            return OfWorkers(stored, is_complete=all_readable, secrets=names, is_store_readable=all_readable)
        files = await read_worker_files(store.journal, client, environ.get("BATON_TASK_QUEUE"))
        of_files = catalog_of({manifest.id: manifest for manifest, _ in files.manifests}.values())
        rights = [each for each in contents.existing if KINDS.get(each.kind) in RIGHTS]
        return OfWorkers(
            of_files.overlaid_on(stored),
            is_complete=all_readable and files.is_complete,
            secrets=names,
            workers=files.workers,
            in_files=frozenset(manifest.id for manifest in of_files.manifests),
            is_store_readable=all_readable,
            knows_rights=files.is_complete and len(stored.rights) == len(rights),
        )


def _readable(stored: StoredManifest) -> Resource | None:
    try:
        return stored.resource()
    except ValueError:
        return None


def _check_unused(contents: StoreContents, keys: Collection[Key], replaced: Loaded | None = None) -> None:
    """Raises NeededError if a manifest needs one of these; those of ``replaced`` replace stored ones."""
    catalog = contents.catalog()
    if replaced:
        catalog = replaced.catalog.overlaid_on(catalog)
    if needed := [*users(catalog, {"/".join(key) for key in keys})]:
        raise NeededError(needed)


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
        raise UnreadableError(stored, str(error)) from None
