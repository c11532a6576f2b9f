"""Kills workers, servers and counterparts under calls of what is elsewhere: ``python -m tests.chaos.remote_kills``.

Each kill hits a run for each kind of call: tools of MCP servers, agents of A2A servers and of engines. A killed process
is started again at once. ``--each 3`` kills of each kind: in all calls, or at any moment.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product

from baton.contracts.turn import TurnResult
from baton.testing import Reply, Request, ScriptedToolCall
from tests.chaos.counterparts import KINDS, Counterparts, Kind, label_in, noted_tools
from tests.chaos.environment import ProcessEnvironment
from tests.chaos.kills import TARGETS
from tests.chaos.noted_tools import SECONDS, answer_of
from tests.chaos.report import Report, arguments, percentiles
from tests.harness.environment import Handle, Json, agent, team
from tests.harness.environment import ended as turn_of
from tests.harness.tool_answers import plain_answer

MOMENTS = ("in the calls", "at any moment")
KILLED = (*TARGETS, "counterpart", "all")
UNKNOWN = "whether it was executed is unknown"
AWAY = "can't be reached"
CLOSED = "It is closed."


def answer(request: Request) -> Reply:
    """Uses the tool that is offered, once, and repeats what it gave; whoever has no tool closes the run."""
    said = request["messages"]
    received = [plain_answer(each["content"]) for each in said if each["role"] == "tool"]
    if not request.get("tools"):
        return Reply(text=CLOSED)
    if received:
        return Reply(text=received[0])
    name = request["tools"][0]["function"]["name"]
    return Reply(calls=[ScriptedToolCall(name=name, arguments={"label": label_in(json.dumps(said))})])


@dataclass
class RemoteRun:
    """A run of a team of two: one member calls something elsewhere, the other one has the last word."""

    kind: Kind
    label: str
    handle: Handle

    def outcome(self, env: ProcessEnvironment, turn: TurnResult) -> str:
        """``answered``, ``unknown``, ``away`` for a counterpart that took too long to start, or what is wrong."""
        rows = env.rows(str(self.handle.first_execution_run_id))
        said = Counter(row["content"] for row in rows if row["role"] == "assistant" and row["content"])
        twice = [text for text, count in said.items() if count > 1]
        if twice:
            return f"twice: {twice}"
        if turn.failure:
            known = {"OutcomeUnknown": "unknown", "AgentUnavailable": "away"}
            return known.get(turn.failure.type, str(turn.failure))
        if CLOSED not in said:
            return f"not closed: {turn.stop_reason} {[*said]}"
        if any(UNKNOWN in text for text in said):
            return "unknown"
        if any(AWAY in text for text in said):
            return "away"
        return "answered" if answer_of(self.label) in said else f"lost: {[*said]}"


@dataclass
class RemoteKill:
    """A kill, and what was found: by kind of call the outcome of its run and how many executions were begun.

    ``hit`` are the kinds whose call was under way. ``ends`` are seconds from the restart to the end of each run.
    """

    moment: str
    killed: str
    workers: int
    hit: list[str] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    executions: dict[str, int] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def may_be_unknown(self, kind: Kind) -> bool:
        """Whether nobody can say what became of a call of that kind, as it is not repeated."""
        if kind.repeatable:
            return False
        if self.killed == "server" and self.workers == 1:
            return False  # the call continues in the worker, and its next attempt joins it there
        return not kind.found or self.moment == "at any moment"

    def examine(self, kind: Kind, outcome: str, executions: int) -> None:
        """Notes what became of a run, and what is wrong with that."""
        self.outcomes[kind.name], self.executions[kind.name] = outcome, executions
        allowed = ["answered", *(["unknown"] if self.may_be_unknown(kind) else [])]
        if self.killed in ("counterpart", "all"):
            allowed.append("away")
        if outcome not in allowed:
            self.wrong.append(f"{kind.name}: {outcome}")
        if executions > 1 and not kind.repeatable:
            self.wrong.append(f"{kind.name}: {executions} executions")
        if executions == 0 and outcome == "answered":
            self.wrong.append(f"{kind.name}: answered without an execution")


class RemoteKillTest:
    """Starts a run of each kind at a time, and kills what carries them."""

    def __init__(self, env: ProcessEnvironment, counterparts: Counterparts) -> None:
        self._env, self._counterparts, self._number = env, counterparts, 0

    async def start(self) -> list[RemoteRun]:
        """Starts a run of each kind."""
        self._number += 1
        return [await self._start(kind, f"run-{kind.name}-{self._number:04d}") for kind in KINDS]

    async def _start(self, kind: Kind, label: str) -> RemoteRun:
        two = team("team", kind.name, "closer", strategy="sequential")
        given = {"team": "team", "input": f"{label}?", "resources": [*self._brought(kind), agent("closer"), two]}
        return RemoteRun(kind, label, await self._env.start("sequential", given, label))

    def _brought(self, kind: Kind) -> list[Json]:
        """The manifests that the agent of a kind needs, and no others: a server that is away fails only its own."""
        server = kind.name.removeprefix("mcp-").rpartition("-")[0]
        needed = (kind.name, server)
        return [each for each in self._counterparts.manifests() if each["metadata"]["name"] in needed]

    async def kill(self, moment: str, killed: str, chance: random.Random) -> RemoteKill:
        """Starts the runs, kills at a moment, and examines every run."""
        kill = RemoteKill(moment, killed, len(self._env.workers))
        if moment == "in the calls":
            self._counterparts.hold()
        runs = await self.start()
        await self._wait_for(moment, runs, chance)
        begun, rows = self._counterparts.executions, json.dumps(self._env.rows())
        kill.hit = [run.kind.name for run in runs if begun[run.label] and answer_of(run.label) not in rows]
        restarted = await self._kill(killed)
        self._counterparts.release()
        await asyncio.gather(*(self._examine(kill, run, restarted) for run in runs))
        return kill

    async def _wait_for(self, moment: str, runs: Sequence[RemoteRun], chance: random.Random) -> None:
        if moment == "at any moment":
            await asyncio.sleep(chance.uniform(0, SECONDS + 3))
            return
        async with asyncio.timeout(200):
            while not all(self._counterparts.executions[run.label] for run in runs):
                await asyncio.sleep(0.01)
            while not all(self._env.has_noted_task(run.handle) for run in runs if run.kind.found):
                await asyncio.sleep(0.01)

    async def _kill(self, killed: str) -> float:
        if killed in TARGETS:
            return await self._env.kill(**TARGETS[killed])
        self._counterparts.kill(tuple(each.pid for each in self._env.workers))
        restarted = await self._env.kill(worker=True, server=True) if killed == "all" else time.time()
        await asyncio.to_thread(self._counterparts.start)
        return restarted

    async def _examine(self, kill: RemoteKill, run: RemoteRun, restarted: float) -> None:
        try:
            turn = await asyncio.wait_for(turn_of(run.handle, TurnResult), 400)
        except Exception as error:  # whatever it is, the run has not ended as it should
            kill.wrong.append(f"{run.label}: {type(error).__name__}: {error}")
            return
        kill.ends.append(max(0.0, time.time() - restarted))
        kill.examine(run.kind, run.outcome(self._env, turn), self._counterparts.executions[run.label])


@asynccontextmanager
async def remote_kill_test(workers: int) -> AsyncIterator[tuple[RemoteKillTest, ProcessEnvironment]]:
    """An environment with its counterparts."""
    async with ProcessEnvironment.running(answer, workers, own=lambda folder: [noted_tools(folder)]) as env:
        counterparts = Counterparts(env.folder)
        try:
            await asyncio.to_thread(counterparts.start)
            yield RemoteKillTest(env, counterparts), env
        finally:
            counterparts.kill()


async def run_remote_kills(workers: int, kills: Sequence[tuple[str, str]], seed: int) -> tuple[list[RemoteKill], Json]:
    """Makes all kills in one environment; what was found, and what a search for secrets has found."""
    chance, done = random.Random(seed), list[RemoteKill]()
    async with remote_kill_test(workers) as (tests, env):
        for number, (moment, killed) in enumerate(kills):
            done.append(await tests.kill(moment, killed, chance))
            await env.workers_ready()
            print(f"{workers} workers, kill {number + 1} of {len(kills)}: {done[-1]}", flush=True)
        return done, await env.search()


def summary(kind: Kind, killed: str, kills: Sequence[RemoteKill]) -> Json:
    """What became of the calls of one kind, as a row of the table."""
    outcomes = Counter(kill.outcomes.get(kind.name, "not ended") for kill in kills)
    counts = {"runs": len(kills), "hit": sum(kind.name in kill.hit for kill in kills)}
    executions = sum(max(0, kill.executions.get(kind.name, 0) - 1) for kill in kills)
    wrong = [text for kill in kills for text in kill.wrong if kind.name in text]
    known = {each: outcomes[each] for each in ("answered", "unknown", "away")} | {"repeated": executions}
    return {"call": kind.name, "killed": killed, **counts, **known, "wrong": wrong}


async def main() -> None:
    """Runs everything, prints the table and writes the results."""
    given = arguments(__doc__, each=3, seed=2026)
    kinds, report, all_kills = [*product(MOMENTS, KILLED)], Report("remote-kills", given), list[RemoteKill]()
    for workers in (1, 2):
        kills = kinds * given["each"]
        random.Random(given["seed"]).shuffle(kills)
        done, leaks = await run_remote_kills(workers, kills, given["seed"])
        report.leaks(f"{workers} workers", leaks)
        all_kills += done
    for kind, killed in product(KINDS, KILLED):
        report.row(summary(kind, killed, [each for each in all_kills if each.killed == killed]))
    ends = {
        killed: percentiles([end for each in all_kills if each.killed == killed for end in each.ends])
        for killed in KILLED
    }
    report.write(seconds_from_restart_to_end=ends, kills=len(all_kills))


if __name__ == "__main__":
    asyncio.run(main())
