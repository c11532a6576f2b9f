"""Sends storms of signals and updates to running teams, and counts what is lost: ``python -m tests.chaos.control``.

``--each 4`` runs of every shape get, by names and JSON alone, messages (``steer``), ``pause`` and ``resume``, and
values of the session, as fast as they take them: with and without a kill of the worker, and with histories so short
that runs continue as new in the storm. A message that was accepted is lost if no row of the journal has it. A run is
stuck if it is open, and for 60 s neither it nor its worker has done anything. ``--application 1``: all runs are child
workflows of an application.
"""

import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from baton.testing import Reply, Request, ScriptedToolCall
from tests.chaos.environment import ProcessEnvironment, batched
from tests.chaos.report import Report, arguments
from tests.harness.environment import Handle, Json, agent, manifest, team
from tests.replay.scenarios import SHORT_HISTORIES

WORD, LABEL = re.compile(r"word-[\w.-]+\d"), re.compile(r"run-[\w-]+")
BOUND: Json = {"onMaxTurns": "complete"}
STILL = 60.0
"""Seconds without a model call and an end after which a run counts as stuck."""

_AGENTS = [*map(agent, "abcd")]
_PANEL = {"strategy": "round-robin", "members": [{"name": n, "role": f"the {n}"} for n in "ab"], "maxRounds": 2}
_INNER = [
    team("inner", "a", "b", maxTurns=2, **BOUND),
    team("chosen", "a", "b", "c", strategy="selector", maxTurns=3, **BOUND),
    team("both", "a", "b", strategy="parallel"),
    manifest("Team", "panel", _PANEL),
]
_TEAMS: dict[str, Json] = {
    "sequential": team("team", "a", "b", "c", "d", strategy="sequential"),
    "round-robin": team("team", "a", "b", "c", maxTurns=3, **BOUND),
    "selector": team("team", "a", "b", "c", strategy="selector", maxTurns=4, **BOUND),
    "graph": team(
        "team",
        "a",
        "b",
        "c",
        strategy="graph",
        graph={"edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}]},
        maxTurns=4,
        **BOUND,
    ),
    "parallel": team("team", "a", "b", "c", strategy="parallel", aggregator="d"),
    "handoff": team("team", "a", "b", "c", strategy="handoff", maxTurns=4, **BOUND),
    "panel": manifest("Team", "team", _PANEL),
    "debate": manifest(
        "Team",
        "team",
        {"strategy": "debate", "members": [{"name": n, "stance": f"Stance {n}"} for n in "ab"], "maxRounds": 2},
    ),
    "nested round-robin": team("team", "inner", "c", maxTurns=2, **BOUND),
    "nested selector": team("team", "chosen", "inner", strategy="selector", maxTurns=2, **BOUND),
    "parallel teams": team("team", "inner", "chosen", "both", "a", strategy="parallel"),
    "nested panel": team("team", "panel", "c", maxTurns=2, **BOUND),
}
_TARGETS = {
    "query": [("team", "team")],
    "query of one": [("agent", "a")],
    "query of all": [("team", "inner"), ("agent", "a"), ("team", "both")],
}
SHAPES = ("agent", *_TEAMS, *_TARGETS)


def answer(request: Request) -> Reply:
    """The reply of every member, selector and judge, after 20 to 120 ms."""
    delay = random.uniform(0.02, 0.12)
    system = str(request["messages"][0]["content"])
    if "You judge a debate" in system:
        return Reply(text='{"verdict": "So.", "winner": "Stance a", "reasoning": "So."}', delay=delay)
    if candidates := re.findall(r"which of them \((.*?)\)", system):
        choice = {"name": random.choice(candidates[0].split(", "))}
        return Reply(text="", calls=[ScriptedToolCall(name="select-next-speaker", arguments=choice)], delay=delay)
    names = [tool["function"]["name"] for tool in request.get("tools", [])]
    if transfers := [name for name in names if name.startswith("transfer_to_")]:
        call = ScriptedToolCall(name=random.choice(transfers), arguments={"message": "Over to you."})
        return Reply(text="", calls=[call], delay=delay)
    return Reply(text="I see.", delay=delay)


@dataclass
class StormedRun:
    """A run, what it was told, and what became of it."""

    shape: str
    label: str
    handle: Handle
    accepted: list[str] = field(default_factory=list)
    refused: int = 0
    unclear: int = 0
    values: int = 0
    canceled_after: int | None = None
    stuck: bool = False
    end: str = ""

    async def storm(self, seed: int, actions: int) -> None:
        """Tells the run so many things, as fast as it takes them; one of four runs is canceled meanwhile."""
        chance = random.Random(seed)
        told = (self._steer, self._pause_and_resume, self._change)
        self.canceled_after = chance.choice((None, None, None, chance.randrange(actions)))
        for number in range(actions):
            if self.end:
                return
            await asyncio.sleep(chance.uniform(0, 0.15))
            try:
                if number == self.canceled_after:
                    await self.handle.cancel()
                await chance.choices(told, (4, 2, 1))[0](number)
            except (RPCError, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError):
                self.refused += 1  # or it has just ended

    async def _steer(self, number: int) -> None:
        word = f"word-{self.label}.{number}"
        try:
            await self.handle.execute_update("steer", {"text": f"Think of {word}", "name": "anna"})
        except WorkflowUpdateFailedError as error:
            self.unclear += "completed before" in str(error.cause)
            raise
        self.accepted.append(word)

    async def _pause_and_resume(self, _number: int) -> None:
        await self.handle.signal("pause")
        await self.handle.signal("resume")

    async def _change(self, number: int) -> None:
        await self.handle.execute_update("session", {f"value-{number % 3}": number})
        self.values += 1


class ControlTest:
    """Runs storms in one environment."""

    def __init__(self, env: ProcessEnvironment, actions: int) -> None:
        self.env, self._actions, self._begun = env, actions, time.time()

    async def start(self, shape: str, number: int) -> StormedRun:
        """Starts a run of a shape."""
        label = f"run-{shape.replace(' ', '-')}-{number:04d}"
        brought = [*_AGENTS, *_INNER, *([_TEAMS[shape]] if shape in _TEAMS else [_TEAMS["nested round-robin"]])]
        given: dict[str, Any] = {"input": f"{label}?", "resources": brought}
        if shape == "agent":
            return StormedRun(shape, label, await self.env.start("agent", {**given, "agent": "a"}, label))
        if shape in _TARGETS:
            targets = [{"type": kind, "name": name} for kind, name in _TARGETS[shape]]
            spec = {"input": f"{label}?", "targets": targets}
            return StormedRun(shape, label, await self.env.start("query", {"spec": spec, "resources": brought}, label))
        strategy = _TEAMS[shape]["spec"]["strategy"]
        return StormedRun(shape, label, await self.env.start(strategy, {**given, "team": "team"}, label))

    async def run(self, runs: list[StormedRun], seed: int, kills: int = 0) -> None:
        """Storms some runs at once, and waits until each has ended or is stuck."""
        self._begun = time.time()
        waiting = [asyncio.create_task(self._wait(each)) for each in runs]
        killing = asyncio.create_task(self._kill_worker(kills))
        storms = [each.storm(seed + number, self._actions) for number, each in enumerate(runs)]
        await asyncio.gather(*storms, killing)
        await self.env.workers_ready()
        self._begun = time.time()
        await asyncio.gather(*waiting)

    async def _wait(self, run: StormedRun) -> None:
        result = asyncio.create_task(run.handle.result())
        while not result.done():
            await asyncio.wait([result], timeout=1)
            if not result.done() and time.time() - self._moved(run) > STILL:
                with contextlib.suppress(RPCError):  # it has just ended
                    await run.handle.terminate("stuck")
                    run.stuck = True
        run.end = "failed" if result.exception() else "ended"

    def _moved(self, run: StormedRun) -> float:
        """When the model was last asked for the run, or anything was told to it."""
        asked = [each.received_at for each in self.env.model.requests if run.label in str(each.body["messages"])]
        return max([*asked, self._begun])

    async def _kill_worker(self, times: int) -> None:
        """Kills the worker so often, at some moment of the storm, and starts it again at once."""
        for _ in range(times):
            await self.env.workers_ready()
            await asyncio.sleep(random.uniform(0.2, 1.5))
            self.env.workers[0].kill()
            self.env.workers[0].start()


@dataclass
class Findings:
    """The words in the journal, those that a model was sent, and how often each run has continued as new."""

    written: set[str]
    read: set[str]
    continued: Counter[str]

    @classmethod
    async def of(cls, env: ProcessEnvironment) -> "Findings":
        """What is found after a storm."""
        older = [each.id async for each in env.client.list_workflows("ExecutionStatus = 'ContinuedAsNew'")]
        return cls(
            written={word for row in env.rows() for word in WORD.findall(str(row.get("content")))},
            read={word for each in env.model.requests for word in WORD.findall(str(each.body["messages"]))},
            continued=Counter(each.partition("/")[0] for each in older),
        )


def summary(part: str, shape: str, runs: list[StormedRun], found: "Findings") -> Json:
    """The figures of one shape."""
    accepted = [word for run in runs for word in run.accepted]
    return {
        "part": part,
        "shape": shape,
        "runs": len(runs),
        "stuck": sum(run.stuck for run in runs),
        "continued": sum(found.continued[run.label] for run in runs),
        "canceled": sum(run.canceled_after is not None for run in runs),
        "failed": sum(run.end == "failed" and not run.stuck and run.canceled_after is None for run in runs),
        "accepted": len(accepted),
        "read": sum(word in found.read for word in accepted),
        "lost": sum(word not in found.written for word in accepted),
        "refused": sum(run.refused for run in runs),
        "unclear": sum(run.unclear for run in runs),
        "session": sum(run.values for run in runs),
    }


PARTS = {
    "no kill": (0, ()),
    "the worker is killed": (1, ()),
    "histories of 50 events": (0, (SHORT_HISTORIES,)),
    "histories of 50 events, the worker is killed": (1, (SHORT_HISTORIES,)),
}
"""How often the worker is killed under each batch of runs, and how the server is set."""


async def storm_all(part: str, given: dict[str, int], report: Report) -> None:
    """Storms runs of every shape on a server of their own, and adds the figures to the report."""
    kills, tuning = PARTS[part]
    async with ProcessEnvironment.running(answer, tuning=tuning) as env, env.started_by(given["application"]):
        tests = ControlTest(env, given["actions"])
        kinds = [(shape, number) for number in range(given["each"]) for shape in SHAPES]
        runs = list[StormedRun]()
        for some in batched(kinds, given["width"]):
            started = [*await asyncio.gather(*(tests.start(*each) for each in some))]
            await tests.run(started, given["seed"] + len(runs), kills)
            runs += started
            stuck = [run.label for run in started if run.stuck]
            print(f"{part}: {len(runs)} of {len(kinds)} runs, stuck: {stuck}", flush=True)
        found = await Findings.of(env)
        for shape in SHAPES:
            report.row(summary(part, shape, [run for run in runs if run.shape == shape], found))


async def main() -> None:
    """Runs all parts and writes the table."""
    given = arguments(__doc__, each=4, actions=14, seed=2026, width=14, application=0)
    report = Report("control-below-application" if given["application"] else "control", given)
    for part in PARTS:
        await storm_all(part, given, report)
    report.write()


if __name__ == "__main__":
    asyncio.run(main())
