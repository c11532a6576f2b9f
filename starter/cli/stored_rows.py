"""Prints stored manifests: as a table, as manifests, or row by row as they change."""

import asyncio
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from pydantic import JsonValue
from rich.console import Console

from ...resources.loader import Loaded
from ...resources.problems import did_you_mean
from ...resources.stored import Key, StoredManifest, check_storable, details, key_of, kind_of, kind_words
from ..console.status import print_table
from ..errors import UsageError
from ..operations.manifests import Store, StoreError
from ..text import format_age
from .formats import TABLES, ListedItem, print_items
from .terminal import dump, print_result

WATCH_INTERVAL = 1.0
"""Seconds between two polls of the store's revision."""

COLUMNS = ("NAME", "NAMESPACE", "VERSION", "AGE")


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
            and (not self.labels or self._has_labels(stored))
        )

    def _has_labels(self, stored: StoredManifest) -> bool:
        manifest = json.loads(stored.manifest) if stored.manifest else {}
        labels = manifest.get("metadata", {}).get("labels", {})
        return all(key in labels and value in (None, labels[key]) for key, value in self.labels.items())

    @property
    def is_single(self) -> bool:
        """Whether it selects one manifest by its name."""
        return self.name is not None and self.namespace is not None and not self.labels


def _unknown_kind(word: str) -> str:
    if word.lower() in ("schedule", "schedules"):
        return "schedules are stored in Temporal: list them with baton schedules list"
    if word.lower() in ("secret", "secrets"):
        return "Secrets are never stored: workers read them from files"
    return f"'{word}' is not a kind; {did_you_mean(word.lower(), (*kind_words(), 'all'))}"


async def print_manifests(store: Store, selections: Sequence[Selection], output: str) -> None:
    """Prints the selected manifests once. Raises StoreError if there is no such resource or version."""
    selected = [stored for selection in selections for stored in await _select(store, selection)]
    values = [] if output in (*TABLES, "name") else [_manifest(stored) for stored in selected]
    items = [
        ListedItem(_cells(stored, selections[0], output), None, f"{stored.kind.lower()}/{stored.name}")
        for stored in selected
    ]
    is_list = len(selections) > 1 or not selections[0].is_single
    value: JsonValue = {"apiVersion": "v1", "kind": "List", "items": values} if is_list else next(iter(values), None)
    print_items(_columns(output), items, output, "No manifests found in the store.", value)


async def differences(store: Store, loaded: Loaded) -> list[str]:
    """The differences of the files from the store, as unified diffs of YAML, one for each manifest that differs.

    Raises ManifestError for manifests that can't be stored.
    """
    check_storable(loaded)
    contents = await store.contents()
    found: list[str] = []
    for manifest in loaded.catalog.manifests:
        stored = contents.newest.get(key_of(manifest))
        before = dump(_manifest(stored), "yaml").splitlines() if stored and not stored.is_deleted else []
        after = dump(json.loads(manifest.model_dump_json(exclude_unset=True)), "yaml").splitlines()
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
            print_result("  ".join(cell.ljust(width) for cell, width in cells).rstrip())


async def _select(store: Store, selection: Selection) -> list[StoredManifest]:
    if selection.version:
        versions = [stored for stored in await store.versions(selection.key) if not stored.is_deleted]
        for stored in versions:
            if stored.version == selection.version:
                return [stored]
        known = ", ".join(str(stored.version) for stored in versions) or "none"
        raise StoreError(f"{'/'.join(selection.key)} has no version {selection.version}; known: {known}")
    contents = await store.contents()
    if selection.is_single:
        return [contents.get(selection.key)]
    return [stored for stored in contents.existing if selection.matches(stored)]


def _columns(output: str) -> Sequence[str]:
    return (*COLUMNS, "DETAILS") if output == "wide" else COLUMNS


def _cells(stored: StoredManifest, selection: Selection, output: str) -> tuple[str, ...]:
    name = stored.name if selection.kind else f"{stored.kind.lower()}/{stored.name}"
    version = str(stored.version)
    if stored.is_deleted:
        version += " (deleted)"
    if stored.problem:
        version += " (unreadable)"
    cells = (name, stored.namespace, version, format_age(datetime.fromtimestamp(stored.changed, UTC)))
    return (*cells, _details(stored)) if output == "wide" else cells


def _details(stored: StoredManifest) -> str:
    try:
        resource = stored.resource()
    except ValueError as error:
        return str(error).splitlines()[0]
    return details(resource) if resource else ""
