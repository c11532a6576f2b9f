"""Completes kinds, names and runs in the shell. It reads what there is, starts nothing, and is silent about errors."""

import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import typer

T = TypeVar("T")

TIMEOUT = 3.0
"""Seconds after which nothing is completed."""

MAX_RUNS = 100
"""The number of newest runs that are completed."""


def complete_kinds(incomplete: str) -> list[str]:
    """The kinds of manifests in the store, in lower case."""
    from ...resources.stored import STORABLE

    return _starting(incomplete, ("all", *(kind.lower() for kind in STORABLE)))


def complete_names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of stored manifests of the kind that the command line names."""
    from ...resources.stored import kind_of

    kind = kind_of(str(context.params.get("kind") or ""))
    return _starting(incomplete, {name for stored, name in _stored() if stored == kind})


def complete_targets(context: typer.Context, incomplete: str) -> list[str]:
    """What a query can be sent to, as KIND/NAME: in the files of the command line, or otherwise in the store."""
    from ...resources.query import TARGETS

    named = _in_files(context.params.get("file") or ()) or _stored()
    words = {kind: kind.lower() for kind in (*TARGETS, "Query")}
    return _starting(incomplete, {f"{words[kind]}/{name}" for kind, name in named if kind in words})


def complete_described(incomplete: str) -> list[str]:
    """The kinds of manifests, the stored manifests as KIND/NAME, and the newest runs."""
    stored = (f"{kind.lower()}/{name}" for kind, name in _stored())
    return _starting(incomplete, (*complete_kinds(incomplete), *stored, *complete_runs(incomplete)))


def complete_runs(incomplete: str) -> list[str]:
    """The ids of the newest runs, and the names of their Queries."""
    from ..runs.listing import recent_runs
    from ..server.connection import use_server
    from .client import silence_sdk

    def names() -> list[str]:
        silence_sdk()
        with use_server(lambda _: None, start=False) as server:

            async def recent() -> list[str]:
                runs = await recent_runs(await server.connect(), None, MAX_RUNS)
                return [*(run.id for run in runs), *(run.name for run in runs if run.name)]

            return _in_time(recent())

    return _starting(incomplete, _or_nothing(names))


Named = list[tuple[str, str]]
"""Kinds and names of manifests."""


def _stored() -> Named:
    from ..operations.manifests import open_store

    async def keys() -> Named:
        async with open_store() as store:
            return [(stored.kind, stored.name) for stored in (await store.contents()).existing]

    return _or_nothing(lambda: _in_time(keys()))


def _in_files(paths: Iterable[str | os.PathLike[str]]) -> Named:
    """Those in files; a stream is left to the command, which can read it once only."""
    from pathlib import Path

    from ...resources.documents import is_stream
    from ...resources.loader import load_files

    def names() -> Named:
        files = [file for file in map(Path, paths) if not is_stream(file)]
        return [(manifest.kind, manifest.name) for manifest in load_files(files).catalog.manifests]

    return _or_nothing(names)


def _or_nothing(read: Callable[[], list[T]]) -> list[T]:
    """What can be read; nothing after any error, which would be printed into the user's command line."""
    try:
        return read()
    except Exception:
        return []


def _in_time(work: Coroutine[Any, Any, list[T]]) -> list[T]:
    import asyncio

    async def limited() -> list[T]:
        async with asyncio.timeout(TIMEOUT):
            return await work

    return asyncio.run(limited())


def _starting(incomplete: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(incomplete)})
