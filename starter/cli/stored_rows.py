"""Prints the manifests that workers have: as a table, as manifests, or row by row as they change."""

import asyncio
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Self

from pydantic import JsonValue
from rich.console import Console
from temporalio.client import Client

from ...contracts.text import format_time
from ...resources.catalog import Resource, catalog_of
from ...resources.loader import Loaded
from ...resources.problems import did_you_mean
from ...resources.query import Query
from ...resources.secret import Secret
from ...resources.stored import (
    Key,
    StoredManifest,
    check_storable,
    details,
    key_of,
    kind_of,
    kind_words,
    refers_to,
    text_of,
)
from ..console.status import print_table
from ..errors import UsageError
from ..operations.manifests import Store, StoreError, WorkerFiles, missing_manifest, read_worker_files
from ..operations.remote import Described, RemoteGateway
from ..text import field_lines, format_age
from .formats import TABLES, ListedItem, print_items
from .terminal import dump, print_line, print_message, print_result, print_rows

WATCH_INTERVAL = 1.0
"""Seconds between two polls of the store's revision."""

COLUMNS = ("NAME", "NAMESPACE", "VERSION", "AGE")
SOURCE = "SOURCE"


def is_kind(word: str) -> bool:
    """Whether a word of a command names a kind, such as ``team`` or ``team/NAME``, or stands for all of them."""
    return word.lower() == "all" or kind_of(word.partition("/")[0]) is not None


@dataclass(frozen=True)
class Selection:
    """The manifests that a command selects: all or those of a kind, in one namespace or with labels, or a single one.

    The value None of a label stands for any value.
    """

    kind: str | None
    name: str | None
    namespace: str | None
    version: int | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kind: str,
        name: str | None,
        namespace: str | None,
        version: int | None = None,
        labels: Mapping[str, str | None] | None = None,
        *,
        all_namespaces: bool = False,
    ) -> Self:
        """Parses ``KIND NAME`` or ``KIND/NAME``. Raises UsageError for a kind that is not storable."""
        word, slash, rest = kind.partition("/")
        if slash and name:
            raise UsageError(
                f"'{kind}' already contains a name: write {word} {rest} {name} for two resources of a kind"
            )
        name = name or rest or None
        known_kind = kind_of(word)
        if known_kind is None and (word.lower() != "all" or name):
            raise UsageError(_unknown_kind(word))
        if name and not all_namespaces:
            namespace = namespace or "default"
        return cls(known_kind, name, namespace, version, labels or {})

    @property
    def key(self) -> Key:
        """The key of a single manifest."""
        return self.kind or "", self.namespace or "", self.name or ""

    def matches(self, stored: StoredManifest) -> bool:
        """Whether a stored manifest is selected."""
        return (
            self.kind in (None, stored.kind)
            and self.namespace in (None, stored.namespace)
            and self.name in (None, stored.name)
            and (not self.labels or stored.has_labels(self.labels))
        )

    @property
    def is_single(self) -> bool:
        """Whether it selects one manifest by its name."""
        return self.name is not None and self.namespace is not None and not self.labels


def _unknown_kind(word: str) -> str:
    if word.lower() in ("schedule", "schedules"):
        return "schedules are stored in Temporal: list them with baton schedules list"
    return f"'{word}' is not a kind; {did_you_mean(word.lower(), (*kind_words(), 'all'))}"


class ListedManifest(NamedTuple):
    """A manifest of the store or of workers' files, which have no versions, and the text that says which."""

    manifest: StoredManifest
    source: str


async def print_manifests(store: Store, client: Client | None, selections: Sequence[Selection], output: str) -> None:
    """Prints the selected manifests of the store once, and those in the files of workers if there is a ``client``.

    Raises StoreError if there is no such resource or version.
    """
    files = WorkerFiles()
    if client and not any(selection.version for selection in selections):
        files = await read_worker_files(store.journal, client)
    if files.unknown:
        whose = "a worker" if files.unknown == 1 else f"{files.unknown} workers"
        print_message(f"note: the files of {whose} are not shown: they are not in this journal")
    in_files = [ListedManifest(_of_file(manifest), _source(count, files)) for manifest, count in files.manifests]
    selected = [listed for selection in selections for listed in await _select(store, in_files, selection)]
    _print_listed(selected, selections, output)


def print_remote(gateway: RemoteGateway, selections: Sequence[Selection], output: str) -> None:
    """Prints the selected manifests that a gateway shows. Raises UsageError."""
    needs_text = output not in ("text", "name") or any(selection.labels for selection in selections)
    known = gateway.manifests()
    selected: list[ListedManifest] = []
    for selection in selections:
        if selection.is_single:
            manifest = gateway.manifest(selection.key, selection.version)
            sources = [source for stored, source in known if stored.key == manifest.key]
            selected.append(ListedManifest(manifest, next(iter(sources), "store")))
            continue
        without_labels = Selection(selection.kind, selection.name, selection.namespace)
        for stored, source in known:
            if without_labels.matches(stored):
                whole = gateway.manifest(stored.key) if needs_text and not stored.problem else stored
                if selection.matches(whole):
                    selected.append(ListedManifest(whole, source))
    _print_listed(selected, selections, output)


def _print_listed(selected: Sequence[ListedManifest], selections: Sequence[Selection], output: str) -> None:
    values = [] if output in (*TABLES, "name") else [_manifest(listed.manifest) for listed in selected]
    items = []
    for stored, source in selected:
        name = f"{stored.kind.lower()}/{stored.name}"
        items.append(ListedItem(_cells(stored, selections[0], output, source), None, name))
    is_list = len(selections) > 1 or not selections[0].is_single
    value: JsonValue = {"apiVersion": "v1", "kind": "List", "items": values} if is_list else next(iter(values), None)
    print_items(_columns(output, SOURCE), items, output, "No manifests found.", value)


def print_versions(versions: Sequence[StoredManifest], output: str) -> None:
    """Prints the versions of a manifest, the newest first, with their authors."""
    rows: list[tuple[Sequence[str], JsonValue]] = []
    for stored in versions:
        at = datetime.fromtimestamp(stored.changed, UTC)
        what = "deleted" if stored.is_deleted else "unreadable" if stored.problem else "written"
        cells = (str(stored.version), f"{at:%Y-%m-%d %H:%M:%S}", stored.author or "unknown", what)
        value: JsonValue = {
            "version": stored.version,
            "changed": format_time(at),
            "author": stored.author,
            "deleted": stored.is_deleted,
        }
        rows.append((cells, value))
    print_rows(("VERSION", "CHANGED", "AUTHOR", "WHAT"), rows, output, "There are no versions.")


def version_differences(versions: Sequence[StoredManifest]) -> Iterator[str]:
    """What each version has changed, the newest first, under a line with its author and time."""
    older = [*versions[1:], None]
    for stored, before in zip(versions, older, strict=True):
        at = datetime.fromtimestamp(stored.changed, UTC)
        title = f"version {stored.version}, {at:%Y-%m-%d %H:%M:%S} UTC, by {stored.author or 'an unknown person'}"
        if stored.problem or (before and before.problem):
            yield f"{title}\nit can't be compared: {stored.problem or (before and before.problem)}"
            continue
        lines = difflib.unified_diff(
            _lines(before),
            _lines(stored),
            f"version {before.version}" if before else "nothing that is kept",
            f"version {stored.version}",
            lineterm="",
        )
        yield "\n".join((title, *lines))


def _lines(stored: StoredManifest | None) -> list[str]:
    return dump(json.loads(stored.manifest), "yaml").splitlines() if stored and stored.manifest else []


def _of_file(manifest: Resource) -> StoredManifest:
    text = manifest.model_dump_json(exclude_unset=True)
    return StoredManifest(*key_of(manifest), version=0, revision=0, change="", changed=0, manifest=text)


def _source(count: int, files: WorkerFiles) -> str:
    return "files" if count == files.workers else f"files of {count} of {files.workers} workers"


async def describe_manifests(store: Store, client: Client | None, selections: Sequence[Selection]) -> None:
    """Prints the selected manifests in readable text, with what they refer to, what refers to them, and their versions.

    Raises StoreError if there is no such resource.
    """
    files = await read_worker_files(store.journal, client) if client else WorkerFiles()
    in_files = [ListedManifest(_of_file(manifest), _source(count, files)) for manifest, count in files.manifests]
    known = [manifest for manifest, _ in files.manifests] + (await store.contents()).readable
    selected = [listed for selection in selections for listed in await _select(store, in_files, selection)]
    described = [await _described(store, listed, known) for listed in selected]
    print_result("\n\n".join(map(_description, described)))


def describe_remote(gateway: RemoteGateway, selections: Sequence[Selection]) -> None:
    """The same for the manifests that a gateway shows. Raises UsageError."""
    described = [gateway.described(selection.key) for selection in selections]
    print_result("\n\n".join(map(_description, described)))


async def _described(store: Store, listed: ListedManifest, known: Sequence[Resource]) -> Described:
    resource = listed.manifest.resource()
    references = resource.references if resource else ()
    return Described(
        manifest=listed.manifest,
        source=listed.source,
        refers_to=[*dict.fromkeys(str(one) for one in references if not one.optional)],
        used_by=[*dict.fromkeys(_users(listed.manifest.key, known))],
        versions=await store.versions(listed.manifest.key),
    )


def _description(described: Described) -> str:
    stored = described.manifest
    manifest = _manifest(stored)
    assert isinstance(manifest, dict)
    metadata = manifest.pop("metadata", {})
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    content = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind")}
    versions = [version for version in described.versions if stored.version and not version.is_deleted]
    age = datetime.fromtimestamp(stored.changed, UTC)
    fields = {
        "Name": stored.name,
        "Kind": stored.kind,
        "Namespace": stored.namespace,
        "Source": f"store, version {stored.version}, {format_age(age)} ago" if stored.version else described.source,
        "Labels": ", ".join(f"{name}={value}" for name, value in labels.items()) if isinstance(labels, dict) else "",
        "Annotations": dump(annotations, "yaml").rstrip() + "\n" if annotations else "",
        **{name.capitalize(): dump(value, "yaml").rstrip() + "\n" for name, value in content.items()},
        "Refers to": ", ".join(described.refers_to),
        "Used by": ", ".join(described.used_by) or "no other manifest",
        "Versions": ", ".join(
            f"{version.version} ({format_age(datetime.fromtimestamp(version.changed, UTC))})" for version in versions
        ),
    }
    return "\n".join(field_lines({name: value for name, value in fields.items() if value}))


def _users(key: Key, known: Sequence[Resource]) -> Iterator[str]:
    """The manifests that refer to a resource, also by a selector."""
    catalog = catalog_of({manifest.id: manifest for manifest in known}.values())
    for user in known:
        targets = catalog.targets(user) if isinstance(user, Query) else ()
        for reference in (*user.references, *targets):
            if refers_to(reference, key, catalog):
                yield f"{user.kind} {user.namespace}/{user.name}"


async def differences(store: Store, loaded: Loaded) -> list[str]:
    """The differences of the files from the store, as unified diffs of YAML, one for each manifest that differs.

    Values of Secrets are not shown, only which ones differ.

    Raises ManifestError for manifests that can't be stored.
    """
    check_storable(loaded, encrypted=True)  # nothing is stored
    return _differences(loaded, (await store.contents()).newest)


def remote_differences(gateway: RemoteGateway, loaded: Loaded) -> list[str]:
    """The same for the store behind a gateway, as far as the key's holder may see it.

    Raises ManifestError, and UsageError, also for Secrets, which are not compared.
    """
    check_storable(loaded, encrypted=True)
    return _differences(loaded, gateway.newest(loaded))


def _differences(loaded: Loaded, newest: Mapping[Key, StoredManifest]) -> list[str]:
    found: list[str] = []
    for manifest in loaded.manifests:
        stored = newest.get(key_of(manifest))
        old = _manifest(stored) if stored and not stored.is_deleted else None
        new: JsonValue = None
        if not isinstance(manifest, Secret):
            new = json.loads(text_of(manifest))
        elif stored and stored.secret:
            old = stored.secret.masked(manifest, "before")
            new = manifest.masked(stored.secret, "after")
        else:
            new = manifest.masked()
        before = dump(old, "yaml").splitlines() if old else []
        after = dump(new, "yaml").splitlines()
        name = f"{manifest.kind.lower()}/{manifest.name}"
        lines = difflib.unified_diff(before, after, f"store/{name}", f"files/{name}", lineterm="")
        if text := "\n".join(lines):
            found.append(text)
    return found


def _manifest(stored: StoredManifest) -> JsonValue:
    if stored.problem:
        raise StoreError(f"the stored manifest {stored.place} can't be read: {stored.problem}")
    manifest: JsonValue = json.loads(stored.manifest)
    return manifest


async def watch_manifests(store: Store, selections: Sequence[Selection], output: str) -> None:
    """Prints the selected manifests, and then a row for every change."""

    def matches(stored: StoredManifest) -> bool:
        return any(selection.matches(stored) for selection in selections)

    contents = await store.contents()
    rows = [_cells(stored, selections[0], output) for stored in contents.existing if matches(stored)]
    print_table(Console(highlight=False), _columns(output), rows, "No manifests found in the store yet.")
    widths = [max(map(len, column)) for column in zip(_columns(output), *rows, strict=True)]
    revision = contents.revision
    while True:
        await asyncio.sleep(WATCH_INTERVAL)
        if await store.revision() == revision:
            continue
        changes = await store.changed_since(revision)
        revision = changes.revision
        for stored in filter(matches, changes.manifests):
            cells = zip(_cells(stored, selections[0], output), widths, strict=True)
            print_line("  ".join(cell.ljust(width) for cell, width in cells).rstrip())


async def _select(store: Store, in_files: Sequence[ListedManifest], selection: Selection) -> Sequence[ListedManifest]:
    if selection.version:
        versions = [version for version in await store.versions(selection.key) if not version.is_deleted]
        for version in versions:
            if version.version == selection.version:
                return [ListedManifest(version, "store")]
        known = ", ".join(str(version.version) for version in versions) or "none"
        raise StoreError(f"{'/'.join(selection.key)} has no version {selection.version}; known: {known}")
    contents = await store.contents()
    stored = [ListedManifest(manifest, "store") for manifest in contents.existing]
    # A run uses the manifest of its worker's file, if that has one.
    selected = [listed for listed in (*in_files, *stored) if selection.matches(listed.manifest)]
    if selection.is_single and not selected:
        existing = [listed.manifest.key for listed in (*in_files, *stored)]
        raise missing_manifest(selection.key, existing, "in the store or in the workers' files")
    return sorted(selected, key=lambda listed: listed.manifest.key)


def _columns(output: str, *more: str) -> Sequence[str]:
    return (*COLUMNS, *more, "DETAILS") if output == "wide" else (*COLUMNS, *more)


def _cells(stored: StoredManifest, selection: Selection, output: str, *more: str) -> tuple[str, ...]:
    name = stored.name if selection.kind else f"{stored.kind.lower()}/{stored.name}"
    version = str(stored.version or "-")
    if stored.is_deleted:
        version += " (deleted)"
    if stored.problem:
        version += " (unreadable)"
    age = format_age(datetime.fromtimestamp(stored.changed, UTC)) if stored.version else "-"
    cells = (name, stored.namespace, version, age, *more)
    return (*cells, _details(stored)) if output == "wide" else cells


def _details(stored: StoredManifest) -> str:
    try:
        resource = stored.resource()
    except ValueError as error:
        return str(error).splitlines()[0]
    return details(resource) if resource else ""
