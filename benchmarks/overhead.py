"""What does a turn cost beyond the least that a durable turn can? Time per turn, and turns per second of 100 teams.

python -m benchmarks.overhead [--quick] [--peers FOLDER]

The floor and Baton take their turns one after the other, in one process and on one server; what counts is the ratio of
each pair. ``--peers`` measures the others on Temporal, too, each with a worker in a process of its own.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.floor import Floor
from benchmarks.ground import Baton, Ground, keep, versions
from benchmarks.others import ALL, Peer

Row = dict[str, Any]
Play = Callable[[int, int, int], Awaitable[float]]
"""Lets so many teams take so many turns, with replies of so many characters, at once; the seconds that it took."""

SIZE = 1_000
ONE, MANY = 48, 12
"""Turns of a team that discusses alone, and of each of many."""

TEAMS = 100


async def seconds(plays: list[Awaitable[object]]) -> float:
    """How long they take together."""
    began = time.perf_counter()
    await asyncio.gather(*plays)
    return time.perf_counter() - began


async def pairs(plays: Mapping[str, Play], teams: int, turns: int, count: int) -> dict[str, list[float]]:
    """The seconds of each system, alternating; the first round of all is not counted, and then each begins in turn."""
    found: dict[str, list[float]] = {name: [] for name in plays}
    names = [*plays]
    for number in range(-1, count):
        for name in names if number % 2 else reversed(names):
            took = await plays[name](teams, turns, SIZE)
            if number >= 0:
                found[name].append(took)
    return found


def playing(peer: Peer, ground: Ground, folder: Path) -> Play:
    """How another system plays, in a process of its own."""

    async def play(teams: int, turns: int, size: int) -> float:
        played = await peer.run(ground, folder, "", turns, size, teams)
        assert played.said["ended"] == teams, played.said
        return float(played.said["seconds"])

    return play


def rows(kind: str, found: Mapping[str, list[float]], turns: int) -> list[Row]:
    """A line for each system: how much longer than the floor's it took, pair by pair, and the median of that."""
    lines = list[Row]()
    for name, took in found.items():
        ratios = [ours / floor for ours, floor in zip(took, found["floor"], strict=True)]
        middle = median(took)
        line = {"measured": kind, "system": name, "runs": len(took), "ms_per_turn": round(middle / turns * 1_000, 2)}
        lines.append({**line, "turns_per_second": round(turns / middle, 1), "times_floor": round(median(ratios), 3)})
    return lines


async def measure(*, quick: bool, peers: Path | None) -> Row:
    """Everything, line by line."""
    async with (
        Ground.laid() as ground,
        Baton.working(ground) as baton,
        Floor.working(ground.address, ground.folder, ground.model) as floor,
    ):
        plays: dict[str, Play] = {
            "floor": lambda teams, turns, size: seconds([floor.play(turns, size) for _ in range(teams)]),
            "Baton": lambda teams, turns, size: seconds([baton.play(turns, size) for _ in range(teams)]),
        }
        found = versions()
        for peer in ALL if peers else ():
            if peer.keeps == "history":
                assert peers
                found |= peer.versions(peers)
                plays[peer.name] = playing(peer, ground, peers)
        alone = await pairs(plays, 1, ONE, 5 if quick else 15)
        many = await pairs(plays, TEAMS, MANY, 2 if quick else 5)
    return {"versions": found, "rows": rows("one team", alone, ONE) + rows("100 teams", many, MANY * TEAMS)}


def main() -> None:
    """Measures, prints and keeps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="with few pairs")
    parser.add_argument("--peers", type=Path, help="where the environments of other systems are")
    given = parser.parse_args()
    result = asyncio.run(measure(quick=given.quick, peers=given.peers))
    print(json.dumps(result, indent=1))
    if not given.quick:
        keep("overhead", result)


if __name__ == "__main__":
    main()
