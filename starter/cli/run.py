"""How does ``baton run`` run? Manifests in, queries started and followed, results out."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml
from pydantic import JsonValue
from rich.console import Console
from temporalio.client import Client
from temporalio.service import RPCError

from ...conversation.contracts.status import Status, instant
from ...resources.base import JsonObject
from ...resources.loader import Loaded
from ...resources.query import Query
from ..console.printer import tell_end
from ..console.watch import Watch
from ..history.follow import follow
from ..runs.runs import Handle, described, final_status, has_worker, start_query
from ..server.connection import Place
from .targets import UsageError


class LostError(Exception):
    """Temporal was lost while runs were followed."""


async def start_all(
    client: Client,
    place: Place,
    loaded: Loaded,
    queries: list[Query],
    paths: Sequence[Path],
    run_id: str | None = None,
) -> list[Handle]:
    """Starts a run of each query; raises ManifestError, before any is started, if one of them can't be run."""
    needs = [loaded.reach(query, elsewhere=place.home is None) for query in queries]
    started = []
    for query, catalog in zip(queries, needs, strict=True):
        if place.home and loaded.secrets:
            place.home.write_sources(catalog.sha, [*paths])
        started.append(await start_query(client, query, catalog, run_id))
    return started


async def run_queries(
    place: Place,
    loaded: Loaded,
    queries: list[Query],
    paths: Sequence[Path],
    console: Console,
    *,
    run_id: str | None = None,
    detach: bool = False,
) -> list[JsonObject]:
    """Starts queries and follows them to their end, unless ``detach``; the queries with their status."""
    if run_id and len(queries) > 1:
        raise UsageError("an id is for one run: name the Query that it is meant for")
    client = await place.connect()
    started = await start_all(client, place, loaded, queries, paths, run_id)
    with _coming_back(started, console):
        for handle in started:
            console.print(f"started {handle.id}{_link(place, client, handle)}", style="dim", soft_wrap=True)
        if not await has_worker(client):
            console.print("note: no worker runs; start one with: python worker.py", soft_wrap=True)
        if detach:
            running = Status(phase="Running", start_time=instant(datetime.now(UTC)))
            return [await described(client, handle, running) for handle in started]
        return await _to_the_end(client, started, console)


async def _to_the_end(client: Client, started: list[Handle], console: Console) -> list[JsonObject]:
    """Tells what happens in runs until they are over, and how they ended; the queries with their status."""
    watch = Watch(client, console, len(started))
    async with watch.shown():
        await asyncio.gather(*(follow(client, handle, watch.tell) for handle in started))
    results = []
    for handle in started:
        status = await final_status(handle)
        tell_end(console, handle.id, status)
        results.append(await described(client, handle, status))
    return results


@contextlib.contextmanager
def _coming_back(started: list[Handle], console: Console) -> Iterator[None]:
    """Says how to come back to runs, where whoever follows them goes or loses Temporal."""
    try:
        yield
    except (asyncio.CancelledError, RPCError) as end:
        back = " or ".join(f"baton watch {handle.id}" for handle in started)
        lost = "lost: the run goes on as soon as Temporal and a worker are back"
        what = lost if isinstance(end, RPCError) else "detached: the run goes on"
        console.print(f"{what}. Come back with: {back}", soft_wrap=True)
        if isinstance(end, RPCError):  # whatever it says: a server that ends may say anything
            raise LostError(end.message) from None
        raise


def _link(place: Place, client: Client, handle: Handle) -> str:
    return f"  {place.ui}/namespaces/{client.namespace}/workflows/{handle.id}" if place.ui else ""


def printed(results: list[JsonObject], form: str) -> str:
    """The results as text, JSON or YAML: one object, or a List of several, as ``kubectl get`` prints them."""
    if form != "text":
        several: JsonObject = {"apiVersion": "v1", "kind": "List", "items": [*results]}
        return dumped(results[0] if len(results) == 1 else several, form)
    texts = [(str(_at(each, "metadata", "name")), str(_at(each, "status", "message") or "")) for each in results]
    return "\n\n".join(f"{name}:\n{text}" if len(texts) > 1 else text for name, text in texts)


def ended_well(result: JsonObject) -> bool:
    """Whether a query is completed."""
    return _at(result, "status", "phase") == "Completed"


def _at(value: JsonValue, *keys: str) -> JsonValue:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dumped(value: JsonValue, form: str) -> str:
    """A value as JSON or YAML."""
    if form == "yaml":
        return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120).rstrip()
    return json.dumps(value, indent=2, ensure_ascii=False)
