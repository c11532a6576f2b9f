"""Measures writes to a journal of millions of messages while most of it is deleted, beside running teams.

python -m benchmarks.large_journal [--messages 3000000] [--databases sqlite postgresql]

The journal is filled with conversations of runs that ended long ago. Then teams run without a pause, and a probe writes
a message every 20 ms on a connection of its own, as another worker would: first alone, then beside ``baton prune``
and queries whose ``ttl`` is over at once. It prints the duration of the probe's writes and the rows deleted per second.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from statistics import quantiles
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from baton.contracts.message import Head, Message
from baton.journal.journal import Journal
from benchmarks.environment import QUESTION, Baton, BenchmarkEnvironment, manifests, versions, write
from tests.harness.postgres import PostgresServer, execute

Row = dict[str, Any]

MESSAGES_OF_RUN = 100
BATCH = 50_000
TEXT = "x" * 300
TEAMS = 4
"""Teams that run at once, each with four turns."""

COLUMNS = ("id", "temporal_namespace", "parent", "depth", "message")
NAMESPACE = "default"


def made_at(days_ago: int) -> uuid.UUID:
    """The id of a run that was started so many days ago."""
    at = int((time.time() - days_ago * 86_400) * 1_000)
    return uuid.UUID(int=(at << 80) | (7 << 76) | (2 << 62) | uuid.uuid4().int >> 66)


def old_messages(count: int) -> Iterator[tuple[str, str, str, int, str]]:
    """The rows of runs that began and ended 60 days ago."""
    message = Message(role="assistant", content=TEXT).model_dump_json(exclude_unset=True)
    for number in range(count):
        depth = number % MESSAGES_OF_RUN + 1
        if depth == 1:
            run = made_at(days_ago=60)
        parent = f"{run}/{depth - 1}" if depth > 1 else ""
        yield f"{run}/{depth}", NAMESPACE, parent, depth, message


async def fill(url: str, count: int) -> None:
    """Makes a journal with so many messages, without the durability of each write."""
    await (await Journal.open(url, NAMESPACE)).close()
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
            database.execute("pragma synchronous=off")
            places = ", ".join("?" * len(COLUMNS))
            database.executemany(f"insert into baton_messages values ({places})", old_messages(count))
        return
    connection = await asyncpg.connect(url)
    rows = old_messages(count)
    while batch := [*islice(rows, BATCH)]:
        await connection.copy_records_to_table("baton_messages", records=batch, columns=COLUMNS)
    await connection.execute("vacuum analyze baton_messages")
    await connection.close()


@asynccontextmanager
async def running_teams(baton: Baton, ttl: str | None) -> AsyncIterator[None]:
    """Runs teams, one after the other, while the block runs; each is the target of a query with this ``ttl``."""

    async def run() -> None:
        spec = {"input": QUESTION, "targets": [{"type": "team", "name": "team"}], **({"ttl": ttl} if ttl else {})}
        query = {"spec": spec, "resources": manifests(4, len(TEXT))}
        while True:
            workflow_id = f"query-{uuid.uuid4().hex}"
            await baton.client.execute_workflow("query", query, id=workflow_id, task_queue=baton.task_queue)

    tasks = [asyncio.create_task(run()) for _ in range(TEAMS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


async def probe(url: str, stopped: asyncio.Event) -> list[float]:
    """The durations of writes, in ms, until the event is set."""
    journal = await Journal.open(url, NAMESPACE)
    head = Head()
    durations = []
    while not stopped.is_set():
        began = time.monotonic()
        head = await journal.append(head, [Message(role="user", content=TEXT)], f"{made_at(days_ago=0)}/1")
        durations.append((time.monotonic() - began) * 1_000)
        await asyncio.sleep(0.02)
    await journal.close()
    return durations


async def prune(env: BenchmarkEnvironment, url: str, limit: float) -> Row:
    """Runs the command for at most so many seconds; the old messages that it has deleted, and how long it took."""
    given = {"TEMPORAL_ADDRESS": env.address, "BATON_JOURNAL_URL": url, "BATON_HOME": str(env.folder)}
    command = [sys.executable, "-m", "baton.starter", "prune", "--older-than", "1d"]
    before = await count_old(url)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **given})
    ending = asyncio.create_task(process.wait())
    deleting_since = began
    while not (await asyncio.wait([ending], timeout=1))[0] and time.monotonic() - deleting_since < limit:
        if deleting_since == began and await count_old(url) < before:
            deleting_since = time.monotonic()
    seconds = time.monotonic() - deleting_since
    if not ending.done():
        process.terminate()
    await ending
    deleted = before - await count_old(url)
    searched = round(deleting_since - began, 1)
    return {
        "searched_s": searched,
        "deleted": deleted,
        "deleted_s": round(seconds, 1),
        "rows_per_s": round(deleted / seconds),
    }


async def count_old(url: str) -> int:
    """The messages that the journal was filled with and still has."""
    [(count,)] = await execute(url, f"select count(*) from baton_messages where id < '{made_at(days_ago=1)}'")
    return int(str(count))


def summary(durations: list[float]) -> Row:
    """How long writes took, in ms."""
    cuts = quantiles(durations, n=100)
    return {
        "writes": len(durations),
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "max_ms": round(max(durations), 1),
    }


async def compare(env: BenchmarkEnvironment, url: str, messages: int, seconds: float, limit: float) -> list[Row]:
    """Two rows: writes without and beside the deletion."""
    rows = []
    async with Baton.running(env, BATON_JOURNAL_URL=url) as baton:
        for deleting in (False, True):
            stopped = asyncio.Event()
            probing = asyncio.create_task(probe(url, stopped))
            async with running_teams(baton, "1s" if deleting else None):
                deletion = await prune(env, url, limit) if deleting else {}
                await asyncio.sleep(0 if deleting else seconds)
            stopped.set()
            rows.append({"messages": messages, "beside": "prune, ttl" if deleting else "-"})
            rows[-1] |= summary(await probing) | deletion
            print(*rows[-1].values(), sep="\t", flush=True)
    return rows


async def measure(messages: int, seconds: float, limit: float, databases: list[str]) -> Row:
    """All rows."""
    rows = list[Row]()
    for database in databases:
        async with BenchmarkEnvironment.running() as env:
            with contextlib.ExitStack() as stack:
                if database == "sqlite":
                    url = f"sqlite:///{env.folder / 'journal.db'}"
                else:
                    url = await stack.enter_context(PostgresServer.running(fsync=True)).database()
                began = time.monotonic()
                await fill(url, messages)
                print(f"{database}: filled in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
                rows += [{"journal": database, **row} for row in await compare(env, url, messages, seconds, limit)]
    return {"versions": versions(), "rows": rows}


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=3_000_000, help="messages in the journal")
    parser.add_argument("--seconds", type=float, default=30, help="duration of the measurement without a deletion")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which the deletion is interrupted")
    parser.add_argument("--databases", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    given = parser.parse_args()
    result = asyncio.run(measure(given.messages, given.seconds, given.limit, given.databases))
    print(json.dumps(result, indent=1))
    write("large_journal", result)


if __name__ == "__main__":
    main()
