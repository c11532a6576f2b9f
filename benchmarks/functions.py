"""Measures 100 runs with Python functions, which the program executes, beside 100 without, which a worker executes.

python -m benchmarks.functions [--rounds 5] [--peers FOLDER]

Each run asks one agent one question; with functions, the agent has a function of its own as a tool, and a literal key
of its own. The worker of the runs without functions is in the same process, so that both share its CPU. The rounds
alternate; what counts is the ratio of each round. ``--peers`` also measures openai-agents on Temporal, with a worker in
a process of its own, in the same rounds.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

import baton
from baton.contracts.settings import TASK_QUEUE
from benchmarks.environment import KEY, PROMPT, QUESTION, Baton, BenchmarkEnvironment, versions, write
from benchmarks.peers_runner import FUNCTIONS, Peer

RUNS = 100
SIZE = 1_000
"""Characters of a reply."""

DELAY = 0.05


def agent(url: str, number: int | None) -> baton.Agent:
    """An agent; with a ``number``, one that has a function and a key of its own."""
    if number is None:
        return baton.Agent("writer", prompt=PROMPT.format("writer"), model=f"random-{SIZE}")

    @baton.function("look-up")
    def look_up(word: str) -> str:
        """Looks a word up."""
        return f"the meaning of {word} is {number}"

    model = baton.Model("own", model=f"random-{SIZE}", base_url=url, api_key=f"{KEY}-{number}")
    return baton.Agent("writer", prompt=PROMPT.format("writer"), model=model, tools=[look_up])


async def run_all(connection: baton.Connection, agents: list[baton.Agent]) -> float:
    """Seconds until all runs have completed."""
    began = time.perf_counter()
    await asyncio.gather(*(connection.run(each, QUESTION) for each in agents))
    return time.perf_counter() - began


async def measure(rounds: int, peers: Path | None) -> dict[str, Any]:
    """The seconds of each round, and the threads that a program with functions has more."""
    async with BenchmarkEnvironment.running(DELAY) as env:
        settings = {"BATON_HOME": str(env.folder / "program"), "OPENAI_BASE_URL": env.model, "OPENAI_API_KEY": KEY}
        program = baton.Connection(env.address, task_queue=TASK_QUEUE, environment=settings)
        async with Baton.running(env), program as connection:
            plain = [agent(env.model, None)] * RUNS
            own = [agent(env.model, number) for number in range(RUNS)]
            await run_all(connection, plain)
            before = psutil.Process().num_threads()
            await run_all(connection, own)
            threads = psutil.Process().num_threads() - before
            plays: dict[str, Callable[[], Awaitable[float]]] = {
                "Baton": lambda: run_all(connection, plain),
                "Baton with functions": lambda: run_all(connection, own),
            }
            if peers:
                plays |= {peer.name: playing(peer, env, peers) for peer in FUNCTIONS}
            seconds: dict[str, list[float]] = {name: [] for name in plays}
            for _ in range(rounds):
                for name, play in plays.items():
                    seconds[name].append(await play())
    found = versions() | (FUNCTIONS[0].versions(peers) if peers else {})
    return {
        "versions": found,
        "runs": RUNS,
        "seconds": {name: [round(each, 2) for each in times] for name, times in seconds.items()},
        "ratio with functions, median": {
            name: ratio(seconds[f"{name} with functions"], seconds[name])
            for name in seconds
            if f"{name} with functions" in seconds
        },
        "threads for functions": threads,
    }


def ratio(more: list[float], less: list[float]) -> float:
    """The median of the ratios of each round."""
    return round(statistics.median(a / b for a, b in zip(more, less, strict=True)), 2)


def playing(peer: Peer, env: BenchmarkEnvironment, folder: Path) -> Callable[[], Awaitable[float]]:
    """Runs RUNS questions with another system, in a process of its own; it warms itself up."""

    async def play() -> float:
        said = (await peer.run(env, folder, "", 1, SIZE, RUNS)).said
        assert said["ended"] == RUNS, said
        return float(said["seconds"])

    return play


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--peers", type=Path, help="the folder of the virtual environments of other systems")
    given = parser.parse_args()
    result = asyncio.run(measure(given.rounds, given.peers))
    print(json.dumps(result, indent=1))
    write("functions" + ("-peers" if given.peers else ""), result)


if __name__ == "__main__":
    main()
