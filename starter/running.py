"""How does ``baton run`` run? Manifests in, queries started and followed, results out."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from temporalio.client import Client

from conversation.status import Status
from conversation.wire import connect
from resources.base import JsonObject, Metadata
from resources.catalog import Catalog, Resource
from resources.loader import Loaded, load_files
from resources.query import Query, QuerySpec, Target, TargetType
from starter.follow import follow
from starter.local import Place
from starter.narrate import Narrator, tell_end
from starter.runs import Handle, as_list, as_manifest, final_status, start_query, status_of

TARGETS: dict[str, TargetType] = {"agent": "agent", "team": "team"}


class UsageError(Exception):
    """The command line asks for what can't be done."""


@dataclass(frozen=True)
class Started:
    """A query, what it needs, and its run."""

    query: Query
    catalog: Catalog
    handle: Handle


def load(paths: Sequence[Path], console: Console) -> Loaded:
    """Reads manifests and says what was passed over; raises ManifestError."""
    loaded = load_files(paths)
    if loaded.passed_over:
        passed = ", ".join(loaded.passed_over)
        console.print(f"note: passed over, as no run needs it: {passed}", style="dim", soft_wrap=True, markup=False)
    return loaded


def chosen(loaded: Loaded, target: str | None, text: str | None, namespace: str) -> list[Query]:
    """The queries to run: all of the files, the one named, or one made of a target and an input.

    Raises UsageError.
    """
    if target is None:
        queries = [each for each in loaded.catalog.manifests if isinstance(each, Query)]
        if not queries:
            raise UsageError('the files hold no Query: add one, or name a target, as in: team/NAME "your question"')
        return queries
    kind, _, name = target.partition("/")
    found = loaded.catalog.get(kind.capitalize(), namespace, name)
    if found is None:
        known = ", ".join(f"{each.kind.lower()}/{each.name}" for each in loaded.catalog.manifests) or "none"
        raise UsageError(f"'{target}' is not in the files in namespace '{namespace}'; known: {known}")
    if isinstance(found, Query):
        return [found]
    if kind not in TARGETS or not text:
        raise UsageError(f"'{target}' needs an input" if kind in TARGETS else f"a {kind} can't be asked yet")
    return [_query(found, TARGETS[kind], text)]


def _query(found: Resource, kind: TargetType, text: str) -> Query:
    target = Target(type=kind, name=found.name)
    metadata = Metadata(name=found.name, namespace=found.namespace)
    spec = QuerySpec(input=text, targets=(target,))
    return Query(api_version="ark.mckinsey.com/v1alpha1", kind="Query", metadata=metadata, spec=spec)


async def start_all(
    client: Client,
    place: Place,
    loaded: Loaded,
    queries: list[Query],
    paths: Sequence[Path],
    run_id: str | None = None,
) -> list[Started]:
    """Starts a run of each query; raises ManifestError, before any is started, if one of them can't be run."""
    needs = [loaded.reach(query) for query in queries]
    started = []
    for query, catalog in zip(queries, needs, strict=True):
        if place.home and loaded.secrets:
            place.home.write_sources(catalog.sha, [*paths])
        started.append(Started(query, catalog, await start_query(client, query, catalog, run_id)))
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
) -> list[tuple[Query, Status]]:
    """Starts queries and follows them to their end, unless ``detach``; what they are and how they stand then."""
    if run_id and len(queries) > 1:
        raise UsageError("an id is for one run: name the Query that it is meant for")
    client = await connect(place.address)
    started = await start_all(client, place, loaded, queries, paths, run_id)
    for each in started:
        console.print(f"started {each.handle.id}{_link(place, each.handle)}", style="dim", soft_wrap=True)
    if detach:
        return [(each.query, await status_of(each.handle)) for each in started]
    narrator = Narrator(console, len(started))
    try:
        await asyncio.gather(*(follow(client, each.handle, narrator.tell) for each in started))
    except asyncio.CancelledError:
        back = " or ".join(f"baton watch {each.query.name}" for each in started)
        console.print(f"detached: the run goes on. Come back with: {back}", soft_wrap=True)
        raise
    ended = [(each, await final_status(each.handle)) for each in started]
    for each, status in ended:
        tell_end(console, each.handle.id, status)
    return [(each.query, status) for each, status in ended]


def _link(place: Place, handle: Handle) -> str:
    return f"  {place.ui}/namespaces/default/workflows/{handle.id}" if place.ui else ""


def printed(results: list[tuple[Query, Status]], form: str) -> str:
    """The results as text, JSON or YAML."""
    if form == "text":
        several = len(results) > 1
        return "\n\n".join(f"{query.name}:\n{s.message}" if several else s.message for query, s in results)
    return dumped(as_list(as_manifest(query, status) for query, status in results), form)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dumped(value: JsonObject, form: str) -> str:
    """A value as JSON or YAML."""
    if form == "yaml":
        return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120).rstrip()
    return json.dumps(value, indent=2, ensure_ascii=False)
