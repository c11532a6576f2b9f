"""What does a turn leave behind, and does a long run's cost more? Bytes of history and journal per turn.

python -m benchmarks.flat [--quick] [--peers FOLDER]

Two members speak in turn, and each hears all that was said; long runs have ``contextWindow: {maxMessages: 20}``.
``--peers`` measures others instead, whose environments it makes in the FOLDER.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.ground import Baton, Ground, keep, versions
from benchmarks.others import ALL, Peer
from tests.harness.postgres import PostgresServer

Row = dict[str, Any]

TURNS, SIZES = (12, 48, 96), (1_000, 10_000)
LONG, WINDOW = (1_000, 10_000), 20
DEADLY = (120, 10_000)
"""Turns and characters of a reply with which a history of whole conversations is longer than Temporal's limit."""

PLAYS = (*((turns, size) for size in SIZES for turns in TURNS), DEADLY)


async def ours(ground: Ground, *, quick: bool) -> AsyncIterator[Row]:
    """What Baton leaves."""
    short = [(turns, size, None) for turns, size in PLAYS]
    long = [(turns, SIZES[0], WINDOW) for turns in LONG[: 1 if quick else None]]
    async with Baton.working(ground) as baton:
        for turns, size, window in (*short, *long):
            before = baton.journal()
            run = await baton.play(turns, size, window)
            history, journal = await ground.history(run), baton.journal() - before
            yield row("Baton", turns, size, history, journal)


async def theirs(peer: Peer, ground: Ground, folder: Path, postgres: PostgresServer) -> AsyncIterator[Row]:
    """What another system leaves; each of its runs has a database of its own, of which the empty tables don't count."""
    empty = 0
    if peer.keeps == "tables":
        url = await postgres.database()
        played = await peer.run(ground, folder, url, 0, SIZES[0], teams=0)
        empty = await peer.kept(ground, played, url)
    for turns, size in PLAYS:
        url = await postgres.database()
        played = await peer.run(ground, folder, url, turns, size)
        kept = await peer.kept(ground, played, url) - empty
        history = kept if peer.keeps == "history" else 0
        yield row(peer.name, turns, size, history, kept - history, played.said)


def row(system: str, turns: int, size: int, history: int, stored: int, said: Row | None = None) -> Row:
    """One line of the table."""
    total = {"history": history, "stored": stored, "per_turn": round((history + stored) / turns)}
    return {"system": system, "turns": turns, "reply": size, **total, "error": (said or {}).get("error")}


async def measure(*, quick: bool) -> Row:
    """What Baton leaves, line by line."""
    async with Ground.laid() as ground:
        return {"versions": versions(), "rows": [told(each) async for each in ours(ground, quick=quick)]}


async def measure_others(folder: Path) -> Row:
    """What the others leave, line by line."""
    rows, found = list[Row](), versions()
    async with Ground.laid() as ground:
        with PostgresServer.running() as postgres:
            for peer in ALL:
                found |= peer.versions(folder)
                rows += [told(each) async for each in theirs(peer, ground, folder, postgres)]
    return {"versions": found, "rows": rows}


def told(line: Row) -> Row:
    """Prints a line at once: the long ones take minutes."""
    print(*line.values(), sep="\t", flush=True)
    return line


def main() -> None:
    """Measures, prints and keeps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="without the run of 10,000 turns")
    parser.add_argument("--peers", type=Path, help="measures the others, whose environments are in this folder")
    given = parser.parse_args()
    if given.peers:
        keep("flat-peers", asyncio.run(measure_others(given.peers)))
    else:
        result = asyncio.run(measure(quick=given.quick))
        if not given.quick:
            keep("flat", result)


if __name__ == "__main__":
    main()
