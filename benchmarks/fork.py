"""Measures a fork of a long run beside a new run: the time from the request to the first model call.

python -m benchmarks.fork [--turns 3000] [--at 2900] [--pairs 9]

A round-robin of two agents takes the turns. Forks and new runs are measured alternately; what counts is the ratio.
``find`` is the time in which the client finds the place, which is part of that of the fork.
"""

import argparse
import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from statistics import median
from typing import Any

from temporalio.client import WorkflowFailureError

from baton import worker
from baton.contracts.settings import TASK_QUEUE
from baton.resources.loader import Loaded
from baton.starter.history.fork import ForkChanges, find_point, fork_run
from baton.starter.runs.runs import RunHandle
from baton.starter.scripted_model import Reply, Request, ScriptedModel
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from benchmarks.environment import BenchmarkEnvironment, versions, write

Row = dict[str, Any]

AGENT = {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": "Agent"}


def manifests(turns: int) -> list[Row]:
    """Two agents, and the team in which they take so many turns; they read the latest messages alone."""
    agents = [
        {
            **AGENT,
            "metadata": {"name": name},
            "spec": {"prompt": f"You are {name}.", "contextWindow": {"maxMessages": 20}},
        }
        for name in ("a", "b")
    ]
    spec = {
        "strategy": "round-robin",
        "members": [{"name": "a"}, {"name": "b"}],
        "maxTurns": turns // 2,
        "onMaxTurns": "complete",
    }
    return [*agents, {**AGENT, "kind": "Team", "metadata": {"name": "team"}, "spec": spec}]


class CallTimes:
    """A model that answers at once, and notes when it is called."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.at = 0.0
        self._loop = asyncio.get_running_loop()

    def answer(self, _: Request) -> Reply:
        """The answer to a request."""
        if not self.called.is_set():
            self.at = time.monotonic()
            self._loop.call_soon_threadsafe(self.called.set)
        return Reply(text="x" * 200)


async def start(env: BenchmarkEnvironment, turns: int) -> RunHandle:
    """Starts the team in a query."""
    run_input = {"spec": {"input": "Why?", "team": {"name": "team"}}, "resources": manifests(turns)}
    return await env.client.start_workflow(
        "query",
        run_input,
        id=f"long-{uuid.uuid4().hex[:8]}",
        task_queue=TASK_QUEUE,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
    )


async def measure(turns: int, at: int, pairs: int) -> Sequence[Row]:
    """Runs the long run, and then so many pairs of a fork and a new run."""
    rows: list[Row] = []
    async with BenchmarkEnvironment.running() as env:
        calls = CallTimes()
        with ScriptedModel(calls.answer).serve() as url:
            given = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "scripted", "BATON_HOME": str(env.folder)}
            async with worker.run_worker(env.client, Loaded(), given):
                long = await start(env, turns)
                await long.result()
                print(f"the run of {turns} turns has ended", flush=True)

                async def first_call(begin: Any) -> float:
                    calls.called.clear()
                    began = time.monotonic()
                    run = await begin()
                    await calls.called.wait()
                    at = calls.at
                    await run.cancel()
                    with contextlib.suppress(WorkflowFailureError):
                        await run.result()
                    return at - began

                for _ in range(pairs):
                    new = await first_call(lambda: start(env, turns))
                    fork = await first_call(lambda: fork_run(env.client, long, f"{at}", ForkChanges()))
                    began = time.monotonic()
                    await find_point(env.client, long, f"{at}")
                    find = time.monotonic() - began
                    rows.append({"new": new, "fork": fork, "find": find, "ratio": fork / new})
                    print({name: round(value, 3) for name, value in rows[-1].items()}, flush=True)
    return rows


def main() -> None:
    """Measures, prints and writes the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3000)
    parser.add_argument("--at", type=int, default=2900)
    parser.add_argument("--pairs", type=int, default=9)
    given = parser.parse_args()
    rows = asyncio.run(measure(given.turns, given.at, given.pairs))
    medians = {name: round(median(row[name] for row in rows), 3) for name in rows[0]}
    print(medians)
    write("fork", {"versions": versions(), "turns": given.turns, "at": given.at, "medians": medians, "pairs": rows})


if __name__ == "__main__":
    main()
