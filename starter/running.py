"""How does ``baton run`` run? Manifests in, queries started and followed, results out."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import yaml
from pydantic import JsonValue
from rich.console import Console
from temporalio.client import Client

from conversation.status import Status, instant
from conversation.wire import connect
from resources.base import JsonObject
from resources.catalog import Resource
from resources.documents import Document
from resources.loader import Loaded, load_files
from resources.manifest import Metadata
from resources.query import Query, QuerySpec, Target, TargetType
from resources.values import Parameter
from starter.local import Place
from starter.narrate import follow_all, tell_end
from starter.runs import Handle, described, final_status, has_worker, start_query

TARGETS: dict[str, TargetType] = {"Agent": "agent", "Team": "team", "Model": "model", "Tool": "tool"}


class UsageError(Exception):
    """The command line asks for what can't be done."""


def load(paths: Sequence[Path], console: Console, parameters: Sequence[Parameter] = ()) -> Loaded:
    """Reads manifests, the queries with ``parameters`` added, and says what was passed over; raises ManifestError."""
    loaded = load_files(paths, partial(_with_parameters, parameters))
    if loaded.passed_over:
        passed = ", ".join(loaded.passed_over)
        console.print(f"note: passed over, as no run needs it: {passed}", style="dim", soft_wrap=True, markup=False)
    return loaded


def read_parameters(given: Sequence[str]) -> list[Parameter]:
    """Parameters written as ``name=value``; raises UsageError for what isn't."""
    pairs = [each.partition("=") for each in given]
    for name, equals, value in pairs:
        if not (name and value):
            raise UsageError(f"'{name}{equals}{value}' is no parameter: write -p name=value")
    return [Parameter(name=name, value=value) for name, _, value in pairs]


def _with_parameters(parameters: Sequence[Parameter], document: Document) -> Document:
    """A document that, if it is a Query, has these parameters in place of its own of the same names."""
    data = document.data
    spec = data.get("spec") if isinstance(data, dict) and data.get("kind") == "Query" else None
    own = spec.get("parameters", []) if isinstance(spec, dict) else None
    if not (parameters and isinstance(data, dict) and isinstance(spec, dict) and isinstance(own, list)):
        return document
    names = [parameter.name for parameter in parameters]
    kept = [each for each in own if not (isinstance(each, dict) and each.get("name") in names)]
    added = [each.model_dump(mode="json", exclude_unset=True) for each in parameters]
    return replace(document, data={**data, "spec": {**spec, "parameters": [*kept, *added]}})


def chosen(
    loaded: Loaded, target: str | None, text: str | None, namespace: str | None, parameters: Sequence[Parameter] = ()
) -> list[Query]:
    """The queries to run: those of the files (in a namespace), the one named, or one made of a target and an input.

    Raises UsageError.
    """
    if target is None:
        queries = [each for each in loaded.catalog.manifests if isinstance(each, Query)]
        wanted = [each for each in queries if namespace in (None, each.namespace)]
        if not wanted:
            raise UsageError(
                'the files hold no Query to run: add one, or name a target, as in: team/NAME "your question"'
            )
        return wanted
    kind, _, name = target.partition("/")
    found = loaded.catalog.get(kind.capitalize(), namespace or "default", name)
    if found is None:
        known = ", ".join(f"{each.kind.lower()}/{each.name}" for each in loaded.catalog.manifests) or "none"
        raise UsageError(f"'{target}' is not in the files in namespace '{namespace or 'default'}'; known: {known}")
    if isinstance(found, Query) and not text:
        return [found]
    if found.kind not in TARGETS or not text:
        raise UsageError(f"'{target}' takes no input" if text else f"'{target}' needs an input")
    return [_query(found, TARGETS[found.kind], text, parameters)]


def _query(found: Resource, kind: TargetType, text: str, parameters: Sequence[Parameter]) -> Query:
    target = Target(type=kind, name=found.name)
    metadata = Metadata(name=found.name, namespace=found.namespace)
    spec = QuerySpec.model_validate({"input": text, "targets": (target,), "parameters": tuple(parameters)})
    return Query(api_version="ark.mckinsey.com/v1alpha1", kind="Query", metadata=metadata, spec=spec)


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
    client = await connect(place.address)
    started = await start_all(client, place, loaded, queries, paths, run_id)
    for handle in started:
        console.print(f"started {handle.id}{_link(place, client, handle)}", style="dim", soft_wrap=True)
    if not await has_worker(client):
        console.print("note: no worker runs; start one with: python worker.py", soft_wrap=True)
    if detach:
        running = Status(phase="Running", start_time=instant(datetime.now(UTC)))
        return [await described(handle, running) for handle in started]
    await follow_all(client, started, console)
    results = []
    for handle in started:
        status = await final_status(handle)
        tell_end(console, handle.id, status)
        results.append(await described(handle, status))
    return results


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


def dumped(value: JsonObject, form: str) -> str:
    """A value as JSON or YAML."""
    if form == "yaml":
        return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120).rstrip()
    return json.dumps(value, indent=2, ensure_ascii=False)
