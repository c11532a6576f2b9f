"""Prints what the store of manifests holds: as a table, as manifests, or row by row as it changes."""

import asyncio
import json
from collections.abc import Iterable, Sequence
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
from .formats import dump
from .terminal import print_result

WATCH_INTERVAL = 1.0
"""Seconds between two looks at the revision of the store."""

COLUMNS = ("NAME", "NAMESPACE", "VERSION", "AGE")


@dataclass(frozen=True)
class Selection:
    """The manifests that a command names: of a kind or of all, perhaps in one namespace, or a single one."""

    kind: str | None
    name: str | None
    namespace: str | None
    version: int | None = None

    @classmethod
    def of(cls, kind: str, name: str | None, namespace: str | None, version: int | None = None) -> Self:
        """What is written as ``KIND NAME`` or ``KIND/NAME``. Raises UsageError for a kind that is not stored."""
        word, slash, rest = kind.partition("/")
        if slash and name:
            raise UsageError(f"'{kind}' has a name already: write {word} {rest} {name} for two resources of a kind")
        found, name = kind_of(word), name or rest or None
        if found is None and (word.lower() != "all" or name):
            raise UsageError(_unknown_kind(word))
        return cls(found, name, namespace or ("default" if name else None), version)

    @property
    def key(self) -> Key:
        """Of a single one."""
        return self.kind or "", self.namespace or "", self.name or ""

    def fits(self, stored: StoredManifest) -> bool:
        """Whether it is one of them."""
        pairs = (self.kind, stored.kind), (self.namespace, stored.namespace), (self.name, stored.name)
        return all(wanted in (None, there) for wanted, there in pairs)


def _unknown_kind(word: str) -> str:
    if word.lower() in ("schedule", "schedules"):
        return "schedules are not in the store, but in Temporal: see them with baton schedules list"
    if word.lower() in ("secret", "secrets"):
        return "Secrets are not in the store: workers have them in their files"
    return f"'{word}' is not a kind; {did_you_mean(word.lower(), (*kind_words(), 'all'))}"


async def print_manifests(store: Store, wanted: Selection, form: str) -> None:
    """Prints them once. Raises StoreError if there is no such resource or version."""
    found = await _find(store, wanted)
    if form in ("text", "wide"):
        print_table(Console(highlight=False), _columns(form), _rows(found, wanted, form), "there are none in the store")
        return
    if unreadable := [each for each in found if each.problem]:
        raise StoreError(f"the stored manifest {unreadable[0].place} can't be read: {unreadable[0].problem}")
    items: list[JsonValue] = [json.loads(each.manifest) for each in found]
    several: JsonValue = {"apiVersion": "v1", "kind": "List", "items": items}
    print_result(dump(items[0] if wanted.name else several, form))


async def watch_manifests(store: Store, wanted: Selection, form: str) -> None:
    """Prints them, and then a row for each that changes."""
    contents = await store.contents()
    there, console = [each for each in contents.there if wanted.fits(each)], Console(highlight=False)
    rows, revision = _rows(there, wanted, form), contents.revision
    print_table(console, _columns(form), rows, "there are none in the store yet")
    widths = [max(map(len, column)) for column in zip(_columns(form), *rows, strict=True)]
    while True:
        await asyncio.sleep(WATCH_INTERVAL)
        changed = await store.changed_since(revision) if await store.revision() > revision else []
        revision = max((each.revision for each in changed), default=revision)
        for row in _rows(filter(wanted.fits, changed), wanted, form):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print_result("  ".join(cells).rstrip())


async def _find(store: Store, wanted: Selection) -> list[StoredManifest]:
    if wanted.version:
        kept = [each for each in await store.versions(wanted.key) if not each.is_deleted]
        if found := [each for each in kept if each.version == wanted.version]:
            return found
        known = ", ".join(str(each.version) for each in kept) or "none"
        raise StoreError(f"{'/'.join(wanted.key)} has no version {wanted.version}; known: {known}")
    contents = await store.contents()
    if wanted.name:
        return [contents.get(wanted.key)]
    return [each for each in contents.there if wanted.fits(each)]


def _columns(form: str) -> Sequence[str]:
    return (*COLUMNS, "DETAILS") if form == "wide" else COLUMNS


def _rows(found: Iterable[StoredManifest], wanted: Selection, form: str) -> list[tuple[str, ...]]:
    return [_row(each, wanted, form) for each in found]


def _row(stored: StoredManifest, wanted: Selection, form: str) -> tuple[str, ...]:
    name = stored.name if wanted.kind else f"{stored.kind.lower()}/{stored.name}"
    version = f"{stored.version}{' (deleted)' * stored.is_deleted}{' (unreadable)' * bool(stored.problem)}"
    cells = (name, stored.namespace, version, format_age(datetime.fromtimestamp(stored.changed, UTC)))
    return (*cells, _details(stored)) if form == "wide" else cells


def _details(stored: StoredManifest) -> str:
    try:
        found = stored.resource()
    except ValueError as error:
        return str(error).splitlines()[0]
    return details(found) if found else ""
