"""Kills workers and servers under running teams and compares each run with an undisturbed one.

``python -m tests.chaos.kills [--each 2]``. Each kill hits eight runs: one of each strategy, a panel, and a query
to one agent. A killed process is started again at once. Compared are a run's result, every message, and every row of
the journal.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tests.chaos.environment import ProcessEnvironment
from tests.chaos.kill_points import HOLDING, IS_HIT, KILL_POINTS, Runs
from tests.chaos.report import Report, arguments, percentiles
from tests.chaos.teams import RUNS, MarkingModel, TeamRun
from tests.harness.environment import Json

TARGETS = {
    "worker": {"worker": True, "server": False},
    "server": {"worker": False, "server": True},
    "both": {"worker": True, "server": True},
}


@dataclass
class Kill:
    """One kill under eight runs, and what was found.

    ``wrong`` lists differences from an undisturbed run, ``repeated`` counts calls that were made again, ``hit`` the
    runs that were exactly at the kill point, ``waits`` are seconds from the restart to a run's next model call.
    """

    kill_point: str
    target: str
    workers: int
    wrong: list[str] = field(default_factory=list)
    repeated: int = 0
    hit: int = 0
    waits: list[float] = field(default_factory=list)


class KillTest:
    """Runs seven teams at a time, and kills their worker, their server or both."""

    def __init__(self, env: ProcessEnvironment, model: MarkingModel) -> None:
        self.env, self.model, self._number = env, model, 0
        self.expected: dict[str, Json] = {}

    async def start(self, delay: float = 0) -> Runs:
        """Starts one team of each strategy; the delayed model call takes ``delay`` seconds."""
        self.model.delay, self._number = delay, self._number + 1
        number = f"{self._number:04d}"
        return await asyncio.gather(*(TeamRun.start(self.env, self.model, each, number) for each in RUNS))

    async def run_undisturbed(self) -> None:
        """Runs all teams without a kill, and keeps their results as the expected ones."""
        for run in await self.start():
            self.expected[run.strategy] = await run.end()

    async def kill_at(self, kill_point: str, target: str) -> Kill:
        """Runs all teams, kills at the kill point, and examines every run."""
        delay, wait = KILL_POINTS[kill_point]
        self.env.model._released.clear()
        self.model.holds = kill_point in HOLDING
        runs = await self.start(delay)
        await asyncio.wait_for(wait(self.env, runs, runs[self._number % len(runs)]), 200)
        written = {run.label: run.marks for run in runs}
        kill = Kill(kill_point, target, len(self.env.workers))
        kill.hit = sum(IS_HIT[kill_point](self.model, run, written[run.label]) for run in runs)
        before = self.model.said
        restarted = await self.env.kill(**TARGETS[target])
        for run in runs:
            await self._examine(kill, run, written[run.label], restarted)
        kill.waits = [*self._waits(runs, before, restarted)]
        return kill

    async def _examine(self, kill: Kill, run: TeamRun, written: dict[str, int], restarted: float) -> None:
        """Compares a run with the expected result.

        ``written`` are the replies that stood in the journal at the kill. A call that was made after the restart was
        not in flight at the kill, so it must not be made again.
        """
        try:
            end = await run.end()
        except Exception as error:  # whatever it is, the run has not ended as it should
            kill.wrong.append(f"{run.label}: {type(error).__name__}: {error}")
            return
        wrong = [key for key, value in self.expected[run.strategy].items() if end[key] != value]
        kill.wrong += [f"{run.label}: {key}: {end[key]}" for key in wrong]
        repeated = self.model.repeated(run.label)
        asked = self.env.model.requests
        again = [number for number in repeated if f"<{number}>" in written or asked[number - 1].received_at > restarted]
        kill.wrong += [f"{run.label}: answer {number} was not in flight, and asked for again" for number in again]
        kill.repeated += len(repeated)

    def _waits(self, runs: Runs, before: int, restarted: float) -> Iterator[float]:
        """Seconds from the restart to the next model call of each run, without the time that the model itself takes."""
        for run in runs:
            asked = [
                each.received_at for each in self.env.model.requests[before:] if run.label in str(each.body["messages"])
            ]
            due = [at for at in asked if at > restarted]
            if due:
                yield due[0] - max(restarted, self._answered(run, restarted))

    def _answered(self, run: TeamRun, restarted: float) -> float:
        """The time of the reply to the run's delayed call, if that call was in flight over the restart; else 0."""
        number = self.model.delayed_call(run.label)
        if number is None or number in self.model.repeated(run.label):
            return 0
        asked = self.env.model.requests[number - 1].received_at
        return asked + self.model.delay if asked < restarted else 0


async def run_kills(workers: int, kills: Sequence[tuple[str, str]]) -> tuple[list[Kill], Json]:
    """Makes all kills in one environment; what was found, and what a search for secrets has found."""
    model = MarkingModel()
    async with ProcessEnvironment.running(model.answer, workers) as env:
        tests = KillTest(env, model)
        await tests.run_undisturbed()
        done = list[Kill]()
        for number, (kill_point, target) in enumerate(kills):
            done.append(await tests.kill_at(kill_point, target))
            await env.workers_ready()
            print(f"{workers} workers, kill {number + 1} of {len(kills)}: {done[-1]}", flush=True)
        return done, await env.search()


def summary(kills: Sequence[Kill]) -> Json:
    """All kills of one kind as one row of the table."""
    waits = [wait for kill in kills for wait in kill.waits]
    row: dict[str, Any] = {"kill point": kills[0].kill_point, "killed": kills[0].target, "workers": kills[0].workers}
    wrong = [text for kill in kills for text in kill.wrong]
    counts = {"kills": len(kills), "runs": len(kills) * len(RUNS), "hit": sum(kill.hit for kill in kills)}
    return {**row, **counts, "wrong": wrong, "repeated": sum(each.repeated for each in kills), **percentiles(waits)}


async def main() -> None:
    """Runs everything, prints the table and writes the results."""
    given = arguments(__doc__, each=2, seed=2026)
    kinds, found = [*product(KILL_POINTS, TARGETS)], Report("kills", given)
    for workers in (1, 2):
        kills = kinds * given["each"]
        random.Random(given["seed"]).shuffle(kills)
        done, leaks = await run_kills(workers, kills)
        found.leaks(f"{workers} workers", leaks)
        for kind in kinds:
            found.row(summary([kill for kill in done if (kill.kill_point, kill.target) == kind]))
    found.write()


if __name__ == "__main__":
    asyncio.run(main())
