"""Measures the time of a turn compared with the baseline: of one team, and of 100 teams at once.

python -m benchmarks.overhead [--pairs 15] [--peers FOLDER] [--long] [--postgres]

The baseline and Baton are measured alternately, in one process and on one server; what counts is the ratio of each
pair. ``--peers`` also measures the other systems on Temporal, each with a worker in a process of its own. ``--long``
also measures 100 teams of 48 turns each, once. ``--postgres`` keeps Baton's journal in PostgreSQL, and the rows of the
baseline in SQLite as ever.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.baseline import Baseline
from benchmarks.environment import Baton, BenchmarkEnvironment, versions, write
from benchmarks.peers_runner import ALL, Peer
from tests.harness.postgres import PostgresServer

Row = dict[str, Any]


@dataclass(frozen=True)
class Duration:
    """Wall-clock seconds, and CPU seconds of the process of the worker and the client."""

    seconds: float
    busy: float


Play = Callable[[int, int], Awaitable[Duration]]
"""Runs so many teams at once, for so many turns each."""

SIZE = 1_000
ONE, MANY = 48, 12
"""Turns of a team that runs alone, and of each of many teams."""

TEAMS = 100


def here(play: Callable[[int, int], Awaitable[object]]) -> Play:
    """Runs a system in this process."""

    async def play_all(teams: int, turns: int) -> Duration:
        began, busy = time.perf_counter(), time.process_time()
        await asyncio.gather(*(play(turns, SIZE) for _ in range(teams)))
        return Duration(time.perf_counter() - began, time.process_time() - busy)

    return play_all


async def pairs(
    plays: Mapping[str, Play], teams: int, turns: int, count: int, *, warm: bool = False
) -> dict[str, list[Duration]]:
    """The durations of each system, measured alternately; each begins in turn.

    There is one more round at first that is not counted, unless the systems are ``warm``.
    """
    found: dict[str, list[Duration]] = {name: [] for name in plays}
    names = [*plays]
    for number in range(0 if warm else -1, count):
        for name in names if number % 2 else reversed(names):
            duration = await plays[name](teams, turns)
            if number >= 0:
                found[name].append(duration)
    return found


def playing(peer: Peer, env: BenchmarkEnvironment, folder: Path) -> Play:
    """Runs another system in a process of its own."""

    async def play(teams: int, turns: int) -> Duration:
        said = (await peer.run(env, folder, "", turns, SIZE, teams)).said
        assert said["ended"] == teams, said
        return Duration(said["seconds"], said["busy"])

    return play


def rows(kind: str, found: Mapping[str, list[Duration]], turns: int) -> list[Row]:
    """A row for each system; its ratio to the baseline is the median of the pairs' ratios."""
    lines = list[Row]()
    for name, duration in found.items():
        pairs = [*zip(duration, found["baseline"], strict=True)]
        seconds, busy = median(each.seconds for each in duration), median(each.busy for each in duration)
        line = {"measured": kind, "system": name, "runs": len(duration), "turns_per_second": round(turns / seconds, 1)}
        line |= {"ms_per_turn": round(seconds / turns * 1_000, 2), "busy_ms_per_turn": round(busy / turns * 1_000, 2)}
        line["times_baseline"] = round(median(ours.seconds / baseline.seconds for ours, baseline in pairs), 3)
        line["busy_times_baseline"] = round(median(ours.busy / baseline.busy for ours, baseline in pairs), 3)
        lines.append(line)
    return lines


async def measure(count: int, peers: Path | None, *, long: bool, postgres: bool) -> Row:
    """All rows."""
    async with contextlib.AsyncExitStack() as stack:
        env = await stack.enter_async_context(BenchmarkEnvironment.running())
        server = stack.enter_context(PostgresServer.running(fsync=True)) if postgres else None
        journal = {"BATON_JOURNAL_URL": await server.database()} if server else {}
        baton = await stack.enter_async_context(Baton.running(env, **journal))
        baseline = await stack.enter_async_context(Baseline.running(env.address, env.folder, env.model))
        plays = {"baseline": here(baseline.run_team), "Baton": here(baton.run_team)}
        found = versions()
        for peer in ALL if peers else ():
            if peer.keeps == "history":
                assert peers
                found |= peer.versions(peers)
                plays[peer.name] = playing(peer, env, peers)
        alone = await pairs(plays, 1, ONE, count)
        many = await pairs(plays, TEAMS, MANY, max(count // 3, 1))
        measured = rows("one team", alone, ONE) + rows("100 teams", many, MANY * TEAMS)
        if long:
            measured += rows("100 long teams", await pairs(plays, TEAMS, ONE, 1, warm=True), ONE * TEAMS)
    return {"versions": found, "rows": measured}


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=15, help="how often each is measured; 100 teams a third of it")
    parser.add_argument("--peers", type=Path, help="the folder of the virtual environments of other systems")
    parser.add_argument("--long", action="store_true", help="also 100 teams of 48 turns each, once")
    parser.add_argument("--postgres", action="store_true", help="keep Baton's journal in a PostgreSQL of its own")
    given = parser.parse_args()
    result = asyncio.run(measure(given.pairs, given.peers, long=given.long, postgres=given.postgres))
    print(json.dumps(result, indent=1))
    kinds = {"peers": given.peers, "postgres": given.postgres, "long": given.long}
    write("-".join(("overhead", *(name for name, chosen in kinds.items() if chosen))), result)


if __name__ == "__main__":
    main()
