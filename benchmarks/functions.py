"""Measures 100 runs with Python functions, which the program executes, beside 100 without, which a worker executes.

python -m benchmarks.functions [--rounds 5]

Each run asks one agent one question; with functions, the agent has a function of its own as a tool, and a literal key
of its own. The worker of the runs without functions is in the same process, so that both share its CPU. The rounds
alternate; what counts is the ratio of each round.
"""

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import psutil  # type: ignore[import-untyped]

import baton
from baton.contracts.settings import TASK_QUEUE
from benchmarks.environment import KEY, PROMPT, QUESTION, Baton, BenchmarkEnvironment, versions, write

RUNS = 100
DELAY = 0.05


def agent(url: str, number: int | None) -> baton.Agent:
    """An agent; with a ``number``, one that has a function and a key of its own."""
    if number is None:
        return baton.Agent("writer", prompt=PROMPT.format("writer"), model="random-1000")

    @baton.function("look-up")
    def look_up(word: str) -> str:
        """Looks a word up."""
        return f"the meaning of {word} is {number}"

    model = baton.Model("own", model="random-1000", base_url=url, api_key=f"{KEY}-{number}")
    return baton.Agent("writer", prompt=PROMPT.format("writer"), model=model, tools=[look_up])


async def run_all(connection: baton.Connection, agents: list[baton.Agent]) -> float:
    """Seconds until all runs have completed."""
    began = time.perf_counter()
    await asyncio.gather(*(connection.run(each, QUESTION) for each in agents))
    return time.perf_counter() - began


async def measure(rounds: int) -> dict[str, Any]:
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
            without = list[float]()
            with_functions = list[float]()
            for _ in range(rounds):
                without.append(await run_all(connection, plain))
                with_functions.append(await run_all(connection, own))
    ratios = [more / less for more, less in zip(with_functions, without, strict=True)]
    return {
        "versions": versions(),
        "runs": RUNS,
        "seconds without functions": [round(each, 2) for each in without],
        "seconds with functions": [round(each, 2) for each in with_functions],
        "ratio, median": round(statistics.median(ratios), 2),
        "threads for functions": threads,
    }


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    result = asyncio.run(measure(parser.parse_args().rounds))
    print(json.dumps(result, indent=1))
    write("functions", result)


if __name__ == "__main__":
    main()
