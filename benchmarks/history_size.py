"""Measures bytes of history and journal per turn, in runs of up to 10,000 turns.

python -m benchmarks.history_size [--quick] [--peers FOLDER]

Two members take turns, and each gets the whole conversation; long runs have ``contextWindow: {maxMessages: 20}``.
``--peers`` measures other systems instead, and makes their virtual environments in FOLDER.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.environment import Baton, BenchmarkEnvironment, versions, write
from benchmarks.peers_runner import ALL, Peer
from tests.harness.postgres import PostgresServer

Row = dict[str, Any]

TURNS, SIZES = (12, 48, 96), (1_000, 10_000)
LONG, WINDOW = (1_000, 10_000), 20
TOO_LONG = (120, 10_000)
"""Turns and characters of a reply with which a history that holds whole conversations exceeds Temporal's limit."""

RUNS = (*((turns, size) for size in SIZES for turns in TURNS), TOO_LONG)


async def ours(env: BenchmarkEnvironment, *, quick: bool) -> AsyncIterator[Row]:
    """Measures Baton."""
    short = [(turns, size, None) for turns, size in RUNS]
    long = [(turns, SIZES[0], WINDOW) for turns in LONG[: 1 if quick else None]]
    async with Baton.running(env) as baton:
        for turns, size, window in (*short, *long):
            before = baton.journal()
            run = await baton.run_team(turns, size, window)
            history, journal = await env.history(run), baton.journal() - before
            yield row("Baton", turns, size, history, journal)


async def theirs(peer: Peer, env: BenchmarkEnvironment, folder: Path, postgres: PostgresServer) -> AsyncIterator[Row]:
    """Measures another system. Each run has a database of its own; the size of empty tables is subtracted."""
    empty = 0
    if peer.keeps == "tables":
        url = await postgres.database()
        played = await peer.run(env, folder, url, 0, SIZES[0], teams=0)
        empty = await peer.kept(env, played, url)
    for turns, size in RUNS:
        url = await postgres.database()
        played = await peer.run(env, folder, url, turns, size)
        kept = await peer.kept(env, played, url) - empty
        history = kept if peer.keeps == "history" else 0
        yield row(peer.name, turns, size, history, kept - history, played.said)


def row(system: str, turns: int, size: int, history: int, stored: int, said: Row | None = None) -> Row:
    """One row of the table."""
    total = {"history": history, "stored": stored, "per_turn": round((history + stored) / turns)}
    return {"system": system, "turns": turns, "reply": size, **total, "error": (said or {}).get("error")}


async def measure(*, quick: bool) -> Row:
    """All rows of Baton."""
    async with BenchmarkEnvironment.running() as env:
        return {"versions": versions(), "rows": [printed(each) async for each in ours(env, quick=quick)]}


async def measure_others(folder: Path) -> Row:
    """All rows of the other systems."""
    rows, found = list[Row](), versions()
    async with BenchmarkEnvironment.running() as env:
        with PostgresServer.running() as postgres:
            for peer in ALL:
                found |= peer.versions(folder)
                rows += [printed(each) async for each in theirs(peer, env, folder, postgres)]
    return {"versions": found, "rows": rows}


def printed(line: Row) -> Row:
    """Prints a row at once, since long runs take minutes."""
    print(*line.values(), sep="\t", flush=True)
    return line


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="without the run of 10,000 turns")
    parser.add_argument("--peers", type=Path, help="measures other systems, with virtual environments in this folder")
    given = parser.parse_args()
    if given.peers:
        write("history-size-peers", asyncio.run(measure_others(given.peers)))
    else:
        result = asyncio.run(measure(quick=given.quick))
        if not given.quick:
            write("history-size", result)


if __name__ == "__main__":
    main()
