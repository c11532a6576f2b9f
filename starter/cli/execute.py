"""Starts runs of queries, follows them to their end, and writes their results."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from pydantic import JsonValue
from temporalio.client import Client
from temporalio.service import RPCError

from ...contracts.message import TokenUsage
from ...contracts.status import Status
from ...contracts.text import format_time
from ...resources.base import JsonObject
from ...resources.loader import Loaded
from ...resources.query import Query, QueryName
from ..console.status import print_status
from ..console.watch import Watch
from ..errors import ConnectionLostError, UsageError
from ..history.fork import FAILURE, ForkChanges, find_source, start_fork, why_fork_waits
from ..runs.listing import reset_time
from ..runs.runs import RunHandle, final_status, find_run, why_not_served
from ..runs.start import (
    QueryStart,
    in_ark_dialect,
    named_start,
    query_start,
    retry_run,
    run_manifest,
    start_run,
)
from ..server.connection import ServerLocation
from ..text import escape_line
from .terminal import dump, print_message, stderr_console


class RunResults(NamedTuple):
    """Queries with their status, the ids of their runs, and the text last printed in full while they were followed."""

    queries: list[JsonObject]
    ids: tuple[str, ...]
    last_text: str = ""


async def run_queries(
    server: ServerLocation,
    loaded: Loaded,
    queries: Sequence[Query | QueryName],
    *,
    run_id: str | None = None,
    detach: bool = False,
) -> RunResults:
    """Starts queries and, unless ``detach``, follows them to their end; returns the queries with their status."""
    if run_id and len(queries) > 1:
        raise UsageError("--id is for a single run: name a Query, as in: query/NAME")
    client = await server.connect()
    started = await start_all(client, server, loaded, queries, run_id)
    return await _follow_started(server, client, started, "started", detach=detach)


async def _follow_started(
    server: ServerLocation, client: Client, started: list[RunHandle], word: str, *, detach: bool
) -> RunResults:
    """Says which runs were started and, unless ``detach``, follows them to their end."""
    with _explain_return(started):
        for handle in started:
            print_message(f"{word} {escape_line(handle.id)}{_link(server, client, handle)}", style="dim")
        if reason := await why_not_served(client, (await started[0].describe()).task_queue if started else None):
            print_message(f"note: {reason}")
        if detach:
            running = Status(phase="Running", token_usage=TokenUsage(), start_time=format_time(datetime.now(UTC)))
            manifests = [await run_manifest(client, handle, running) for handle in started]
            return RunResults(manifests, tuple(handle.id for handle in started))
        return await _follow_to_end(client, started)


async def retry_failed(server: ServerLocation, name: str, namespace: str, *, detach: bool = False) -> RunResults:
    """Retries a failed run and, unless ``detach``, follows the new run to its end."""
    client = await server.connect()
    handle = await retry_run(client, await find_run(client, name, namespace))
    return await _follow_started(server, client, [handle], "retrying", detach=detach)


async def fork_runs(
    server: ServerLocation,
    loaded: Loaded | None,
    name: str,
    namespace: str,
    at: str | None,
    changes: ForkChanges,
    *,
    times: int = 1,
    run_id: str | None = None,
    detach: bool = False,
) -> RunResults:
    """Forks a run and, unless ``detach``, follows the new runs to their end. Without ``at`` it is one that has failed.

    ``loaded`` are the manifests that are changed.
    """
    client = await server.connect()
    handle = await find_run(client, name, namespace)
    if loaded and (here := server.state_dir):
        here.write_sources(loaded.catalog.sha, [Path(file) for file in sorted(loaded.secret_files)])
    source = await find_source(client, handle, at or FAILURE)
    started = [await start_fork(client, source, changes, run_id) for _ in range(times)]
    if reason := why_fork_waits(source.run):
        print_message(f"note: {reason}")
    return await _follow_started(server, client, started, f"forking {handle.id} as", detach=detach)


async def start_all(
    client: Client,
    server: ServerLocation,
    loaded: Loaded,
    queries: Sequence[Query | QueryName],
    run_id: str | None = None,
) -> list[RunHandle]:
    """Starts a run per query; raises ManifestError before any is started if one of them can't be run."""
    starts = [_start(server, loaded, query) for query in queries]
    return [await start_run(client, start, run_id) for start in starts]


def _start(server: ServerLocation, loaded: Loaded, query: Query | QueryName) -> QueryStart:
    if isinstance(query, QueryName):
        return named_start(query)
    here = server.state_dir
    catalog = loaded.needed_by(query, elsewhere=here is None)
    if here:
        here.write_sources(catalog.sha, [Path(file) for file in sorted(loaded.secret_files)])
    return query_start(query, catalog)


RETRIED = ("AuthenticationError", "MemoryError", "ModelError", "TimeoutError", "ToolError")
"""The families of failures whose cause may be outside of the run, so that a retry may succeed."""

NOT_RETRIED = ("MaxTurnsReached", "MaxIterationsReached")
"""Failures of these families that a retry only repeats."""


async def _follow_to_end(client: Client, started: list[RunHandle]) -> RunResults:
    """Prints the progress of runs until they are over, and their final status."""
    console = stderr_console()
    watch = Watch(client, console, len(started))
    async with watch.live_view():
        await asyncio.gather(*(watch.follow(handle) for handle in started))
    results = []
    for handle in started:
        status = await final_status(client, handle)
        print_status(console, handle.id, status, await reset_time(client, handle))
        if status.failure and status.failure.family in RETRIED and status.failure.type not in NOT_RETRIED:
            print_message(f"Resume it from the failed call: baton retry {escape_line(handle.id)}")
        results.append(await run_manifest(client, handle, status))
    return RunResults(results, tuple(handle.id for handle in started), watch.last_text)


@contextlib.contextmanager
def _explain_return(started: list[RunHandle]) -> Iterator[None]:
    """Prints how to follow the runs again if the user detaches from them or the connection is lost."""
    try:
        yield
    except (asyncio.CancelledError, RPCError) as end:
        watch = " or ".join(f"baton watch {escape_line(handle.id)}" for handle in started)
        lost = "Connection lost; the run continues when Temporal and a worker are back."
        reason = lost if isinstance(end, RPCError) else "Detached; the run continues."
        print_message(f"{reason} Follow it with: {watch}")
        if isinstance(end, RPCError):  # with any status: a server that is shutting down may respond with any of them
            raise ConnectionLostError(end.message) from None
        raise


def _link(server: ServerLocation, client: Client, handle: RunHandle) -> str:
    """Where a run is shown: in the console, if one is served here, or else in Temporal's UI."""
    if server.console:
        return f"  {server.console}/#/runs/{quote(handle.id, safe='')}"
    return f"  {server.ui}/namespaces/{client.namespace}/workflows/{quote(handle.id, safe='')}" if server.ui else ""


def printed(results: list[JsonObject], form: str) -> str:
    """Results as text, JSON or YAML: an object, or a List of several, like the output of ``kubectl get``."""
    if form == "text":
        texts = [Status.model_validate(result["status"]).said for result in results]
        if len(texts) == 1:
            return texts[0]
        names = [_at(result, "metadata", "name") for result in results]
        return "\n\n".join(f"{name}:\n{text}" for name, text in zip(names, texts, strict=True))
    if form.startswith("ark"):
        results = [in_ark_dialect(result) for result in results]
    if len(results) == 1:
        return dump(results[0], form)
    return dump({"apiVersion": "v1", "kind": "List", "items": [*results]}, form)


def ended_well(result: JsonObject) -> bool:
    """Whether a query has the phase Completed."""
    return _at(result, "status", "phase") == "Completed"


def _at(value: JsonValue, *keys: str) -> JsonValue:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
