"""What is lost when processes are killed at any moment?  ``python -m tests.chaos.death [--each 2]``

Each blow hits seven runs, one of each strategy. A killed process is started again at once. What comes of a run is
compared with what came of one that nobody disturbed: its end, every message, and every row of the journal.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tests.chaos.ground import Ground
from tests.chaos.moments import HITS, MOMENTS, Runs
from tests.chaos.report import Report, arguments, percentiles
from tests.chaos.teams import TEAMS, Cast, Played
from tests.harness.environment import Json

VICTIMS = {"worker": (True, False), "server": (False, True), "both": (True, True)}


@dataclass
class Blow:
    """One blow at seven runs, and what has come of them."""

    moment: str
    victim: str
    workers: int
    wrong: list[str] = field(default_factory=list)
    repeated: int = 0
    hit: int = 0
    waits: list[float] = field(default_factory=list)


class Killer:
    """Plays seven teams at a time, and kills what carries them."""

    def __init__(self, ground: Ground, cast: Cast) -> None:
        self.ground, self.cast, self._number = ground, cast, 0
        self.expected: dict[str, Json] = {}

    async def begin(self, hold: float = 0) -> Runs:
        """Starts one team of each strategy."""
        self.cast.hold, self._number = hold, self._number + 1
        number = f"{self._number:04d}"
        return await asyncio.gather(*(Played.begin(self.ground, self.cast, each, number) for each in TEAMS))

    async def rehearse(self) -> None:
        """Plays all teams undisturbed: so it is to be."""
        for run in await self.begin():
            self.expected[run.strategy] = await run.end()

    async def strike(self, moment: str, victim: str) -> Blow:
        """Plays all teams, kills at the moment, and looks at what has come of them."""
        hold, wait = MOMENTS[moment]
        runs = await self.begin(hold)
        await asyncio.wait_for(wait(self.ground, runs, runs[self._number % len(runs)]), 60)
        kept = {run.label: run.marks for run in runs}
        blow = Blow(moment, victim, len(self.ground.workers))
        blow.hit = sum(HITS[moment](self.cast, run, kept[run.label]) for run in runs)
        before = self.cast.said
        restarted = await self._kill(*VICTIMS[victim])
        for run in runs:
            await self._examine(blow, run, kept[run.label], restarted)
        blow.waits = [*self._waits(runs, before, restarted)]
        return blow

    async def _kill(self, worker: bool, server: bool) -> float:
        """Kills, and starts again at once; the time of that."""
        if worker:
            self.ground.workers[0].kill()
        if server:
            await self.ground.kill_server()
        else:
            self.ground.server_process.resume()
        restarted = time.time()
        if worker:
            self.ground.workers[0].start()
        if server:
            await self.ground.server.start()
        return restarted

    async def _examine(self, blow: Blow, run: Played, kept: dict[str, int], restarted: float) -> None:
        """``kept`` are the answers that stood in the journal; what was asked since the restart was not in flight."""
        try:
            end = await run.end()
        except Exception as error:  # whatever it is, the run has not ended as it should
            blow.wrong.append(f"{run.label}: {type(error).__name__}: {error}")
            return
        wrong = [key for key, value in self.expected[run.strategy].items() if end[key] != value]
        blow.wrong += [f"{run.label}: {key}: {end[key]}" for key in wrong]
        repeated = self.cast.repeated(run.label)
        asked = self.ground.model.asked
        again = [number for number in repeated if f"<{number}>" in kept or asked[number - 1].at > restarted]
        blow.wrong += [f"{run.label}: answer {number} was not in flight, and asked for again" for number in again]
        blow.repeated += len(repeated)

    def _waits(self, runs: Runs, before: int, restarted: float) -> Iterator[float]:
        """Seconds from the restart to the next call of each run, without those that the model itself has taken."""
        for run in runs:
            asked = [each.at for each in self.ground.model.asked[before:] if run.label in str(each.request["messages"])]
            due = [at for at in asked if at > restarted]
            if due:
                yield due[0] - max(restarted, self._answered(run, restarted))

    def _answered(self, run: Played, restarted: float) -> float:
        """When the answer came for which the run's call went on to wait, if it did."""
        number = self.cast.held(run.label)
        if number is None or number in self.cast.repeated(run.label):
            return 0
        asked = self.ground.model.asked[number - 1].at
        return asked + self.cast.hold if asked < restarted else 0


async def play(workers: int, blows: Sequence[tuple[str, str]]) -> tuple[list[Blow], Json]:
    """Strikes so many blows on one ground; what has come of them, and what a search for secrets has found."""
    cast = Cast()
    async with Ground.laid(cast.answer, workers) as ground:
        killer = Killer(ground, cast)
        await killer.rehearse()
        done = list[Blow]()
        for number, (moment, victim) in enumerate(blows):
            done.append(await killer.strike(moment, victim))
            await ground.at_work()
            print(f"{workers} workers, blow {number + 1} of {len(blows)}: {done[-1]}", flush=True)
        return done, await ground.search()


def summary(blows: Sequence[Blow]) -> Json:
    """Blows of one kind in a row of a table."""
    waits = [wait for blow in blows for wait in blow.waits]
    row: dict[str, Any] = {"moment": blows[0].moment, "victim": blows[0].victim, "workers": blows[0].workers}
    wrong = [text for blow in blows for text in blow.wrong]
    counts = {"blows": len(blows), "runs": len(blows) * len(TEAMS), "hit": sum(blow.hit for blow in blows)}
    return {**row, **counts, "wrong": wrong, "repeated": sum(each.repeated for each in blows), **percentiles(waits)}


async def main() -> None:
    """Kills, prints and keeps."""
    given = arguments(__doc__, each=2, seed=2026)
    kinds, found = [*product(MOMENTS, VICTIMS)], Report("death", given)
    for workers in (1, 2):
        blows = kinds * given["each"]
        random.Random(given["seed"]).shuffle(blows)
        done, leaks = await play(workers, blows)
        found.leaks(f"{workers} workers", leaks)
        for kind in kinds:
            found.row(summary([blow for blow in done if (blow.moment, blow.victim) == kind]))
    found.keep()


if __name__ == "__main__":
    asyncio.run(main())
