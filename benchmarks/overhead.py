"""What does a turn cost beyond the least that a durable turn can? Time per turn, and turns per second of 100 teams.

python -m benchmarks.overhead [--pairs 15] [--peers FOLDER]

The floor and Baton take their turns one after the other, in one process and on one server; what counts is the ratio of
each pair. ``--peers`` measures the others on Temporal, too, each with a worker in a process of its own.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.floor import Floor
from benchmarks.ground import Baton, Ground, keep, versions
from benchmarks.others import ALL, Peer

Row = dict[str, Any]


@dataclass(frozen=True)
class Took:
    """Seconds that passed, and that the worker's process, which is also the client's, was busy on any core."""

    seconds: float
    busy: float


Play = Callable[[int, int], Awaitable[Took]]
"""Lets so many teams take so many turns at once."""

SIZE = 1_000
ONE, MANY = 48, 12
"""Turns of a team that discusses alone, and of each of many."""

TEAMS = 100


def here(play: Callable[[int, int], Awaitable[object]]) -> Play:
    """How a system plays in this process."""

    async def play_all(teams: int, turns: int) -> Took:
        began, busy = time.perf_counter(), time.process_time()
        await asyncio.gather(*(play(turns, SIZE) for _ in range(teams)))
        return Took(time.perf_counter() - began, time.process_time() - busy)

    return play_all


async def pairs(plays: Mapping[str, Play], teams: int, turns: int, count: int) -> dict[str, list[Took]]:
    """What each system took, alternating; the first round of all is not counted, and then each begins in turn."""
    found: dict[str, list[Took]] = {name: [] for name in plays}
    names = [*plays]
    for number in range(-1, count):
        for name in names if number % 2 else reversed(names):
            took = await plays[name](teams, turns)
            if number >= 0:
                found[name].append(took)
    return found


def playing(peer: Peer, ground: Ground, folder: Path) -> Play:
    """How another system plays, in a process of its own."""

    async def play(teams: int, turns: int) -> Took:
        said = (await peer.run(ground, folder, "", turns, SIZE, teams)).said
        assert said["ended"] == teams, said
        return Took(said["seconds"], said["busy"])

    return play


def rows(kind: str, found: Mapping[str, list[Took]], turns: int) -> list[Row]:
    """A line for each system; how much more than the floor it took is the median of the pairs."""
    lines = list[Row]()
    for name, took in found.items():
        pairs = [*zip(took, found["floor"], strict=True)]
        seconds, busy = median(each.seconds for each in took), median(each.busy for each in took)
        line = {"measured": kind, "system": name, "runs": len(took), "turns_per_second": round(turns / seconds, 1)}
        line |= {"ms_per_turn": round(seconds / turns * 1_000, 2), "busy_ms_per_turn": round(busy / turns * 1_000, 2)}
        line["times_floor"] = round(median(ours.seconds / floor.seconds for ours, floor in pairs), 3)
        line["busy_times_floor"] = round(median(ours.busy / floor.busy for ours, floor in pairs), 3)
        lines.append(line)
    return lines


async def measure(count: int, peers: Path | None) -> Row:
    """Everything, line by line."""
    async with (
        Ground.laid() as ground,
        Baton.working(ground) as baton,
        Floor.working(ground.address, ground.folder, ground.model) as floor,
    ):
        plays = {"floor": here(floor.play), "Baton": here(baton.play)}
        found = versions()
        for peer in ALL if peers else ():
            if peer.keeps == "history":
                assert peers
                found |= peer.versions(peers)
                plays[peer.name] = playing(peer, ground, peers)
        alone = await pairs(plays, 1, ONE, count)
        many = await pairs(plays, TEAMS, MANY, max(count // 3, 1))
    return {"versions": found, "rows": rows("one team", alone, ONE) + rows("100 teams", many, MANY * TEAMS)}


def main() -> None:
    """Measures, prints and keeps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=15, help="how often each is measured; 100 teams a third of it")
    parser.add_argument("--peers", type=Path, help="where the environments of other systems are")
    given = parser.parse_args()
    result = asyncio.run(measure(given.pairs, given.peers))
    print(json.dumps(result, indent=1))
    keep("overhead-peers" if given.peers else "overhead", result)


if __name__ == "__main__":
    main()
