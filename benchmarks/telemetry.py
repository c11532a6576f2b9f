"""Measures what traces cost: the time of a turn with them, compared with that without them.

python -m benchmarks.telemetry [--pairs 15]

Two workers are measured alternately, in one process and on one server, first the one and then the other begun first;
what counts is the ratio of each pair. The collector is a process of its own. The aim is a ratio of 1.05 at most.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import permutations
from statistics import median

from benchmarks.discarding_collector import serving_collector
from benchmarks.environment import Baton, BenchmarkEnvironment, versions, write
from benchmarks.overhead import MANY, ONE, TEAMS, Duration, Play, Row, here, pairs

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def rows(kind: str, found: Mapping[str, list[Duration]], turns: int) -> Row:
    """The medians of both, and the median of the pairs' ratios."""
    both = [*zip(found["without"], found["with"], strict=True)]
    line: Row = {"measured": kind, "runs": len(both)}
    for name, durations in found.items():
        line[f"ms_per_turn_{name}"] = round(median(each.seconds for each in durations) / turns * 1_000, 2)
    line["ratio"] = round(median(on.seconds / off.seconds for off, on in both), 3)
    line["busy_ratio"] = round(median(on.busy / off.busy for off, on in both), 3)
    return line


async def measure(count: int) -> Row:
    """All rows. Of two workers in a process the second is slower, traced or not: each kind is that in turn."""
    alone, many = [{"without": list[Duration](), "with": list[Duration]()} for _ in range(2)]
    with serving_collector() as url:
        os.environ[ENDPOINT] = url  # which OpenTelemetry's exporter reads itself
        for names in permutations(alone):
            async with BenchmarkEnvironment.running() as env, AsyncExitStack() as stack:
                plays = dict[str, Play]()
                for name in names:
                    traces = {ENDPOINT: url} if name == "with" else {}
                    worker = await stack.enter_async_context(Baton.running(env, task_queue=name, **traces))
                    plays[name] = here(worker.run_team)
                for found, more in (
                    (alone, await pairs(plays, 1, ONE, max(count // 2, 1))),
                    (many, await pairs(plays, TEAMS, MANY, max(count // 6, 1))),
                ):
                    for name in names:
                        found[name] += more[name]
    lines = [rows("one team", alone, ONE), rows("100 teams", many, MANY * TEAMS)]
    return {"versions": versions("opentelemetry-sdk"), "rows": lines}


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=15, help="how often each is measured; 100 teams a third of it")
    given = parser.parse_args()
    result = asyncio.run(measure(given.pairs))
    print(json.dumps(result, indent=1))
    write("telemetry", result)


if __name__ == "__main__":
    main()
