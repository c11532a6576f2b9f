"""Measures what traces cost: the time of a turn with them, compared with that without them.

python -m benchmarks.telemetry [--pairs 15]

Two workers are measured alternately, in one process and on one server; what counts is the ratio of each pair. The
collector is a process of its own. The aim is a ratio of 1.05 at most.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping
from statistics import median

from benchmarks.discarding_collector import serving_collector
from benchmarks.environment import Baton, BenchmarkEnvironment, versions, write
from benchmarks.overhead import MANY, ONE, TEAMS, Duration, Row, here, pairs


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
    """All rows."""
    with serving_collector() as url:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url  # which OpenTelemetry's exporter reads itself
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        async with (
            BenchmarkEnvironment.running() as env,
            Baton.running(env, "without") as off,
            Baton.running(env, "with", **traced) as on,
        ):
            plays = {"without": here(off.run_team), "with": here(on.run_team)}
            alone = await pairs(plays, 1, ONE, count)
            many = await pairs(plays, TEAMS, MANY, max(count // 3, 1))
    found = [rows("one team", alone, ONE), rows("100 teams", many, MANY * TEAMS)]
    return {"versions": versions("opentelemetry-sdk"), "rows": found}


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
