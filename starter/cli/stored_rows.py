"""Prints stored manifests: as a table, as manifests, or row by row as they change."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from pydantic import JsonValue
from rich.console import Console

from ...resources.problems import did_you_mean
from ...resources.stored import Key, StoredManifest, details, kind_of, kind_words
from ..console.status import print_table
from ..errors import UsageError
from ..operations.manifests import Store, StoreError
from ..text import format_age
from .terminal import dump, print_result, print_rows

WATCH_INTERVAL = 1.0
"""Seconds between two polls of the store's revision."""

COLUMNS = ("NAME", "NAMESPACE", "VERSION", "AGE")


@dataclass(frozen=True)
class Selection:
    """The manifests that a command selects: all or those of a kind, optionally in one namespace, or a single one."""

    kind: str | None
    name: str | None
    namespace: str | None
    version: int | None = None

    @classmethod
    def of(cls, kind: str, name: str | None, namespace: str | None, version: int | None = None) -> Self:
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
        return cls(known_kind, name, namespace or ("default" if name else None), version)

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
        )


def _unknown_kind(word: str) -> str:
    if word.lower() in ("schedule", "schedules"):
        return "schedules are stored in Temporal: list them with baton schedules list"
    if word.lower() in ("secret", "secrets"):
        return "Secrets are never stored: workers read them from files"
    return f"'{word}' is not a kind; {did_you_mean(word.lower(), (*kind_words(), 'all'))}"


async def print_manifests(store: Store, selection: Selection, output: str) -> None:
    """Prints the selected manifests once. Raises StoreError if there is no such resource or version."""
    selected = await _select(store, selection)
    if output in ("text", "wide"):
        rows = [(_cells(stored, selection, output), None) for stored in selected]
        print_rows(_columns(output), rows, output, "No manifests found in the store.")
        return
    for stored in selected:
        if stored.problem:
            raise StoreError(f"the stored manifest {stored.place} can't be read: {stored.problem}")
    manifests: list[JsonValue] = [json.loads(stored.manifest) for stored in selected]
    if selection.name:
        print_result(dump(manifests[0], output))
    else:
        print_result(dump({"apiVersion": "v1", "kind": "List", "items": manifests}, output))


async def watch_manifests(store: Store, selection: Selection, output: str) -> None:
    """Prints the selected manifests, and then a row for every change."""
    contents = await store.contents()
    rows = [_cells(stored, selection, output) for stored in contents.existing if selection.matches(stored)]
    print_table(Console(highlight=False), _columns(output), rows, "No manifests found in the store yet.")
    widths = [max(map(len, column)) for column in zip(_columns(output), *rows, strict=True)]
    revision = contents.revision
    while True:
        await asyncio.sleep(WATCH_INTERVAL)
        changed = await store.changed_since(revision) if await store.revision() > revision else []
        revision = max((stored.revision for stored in changed), default=revision)
        for stored in filter(selection.matches, changed):
            cells = zip(_cells(stored, selection, output), widths, strict=True)
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
    if selection.name:
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
