"""Measures what a run takes, as ``baton capacity`` does, and computes the tables of ``docs/capacity.md`` from that.

    python -m benchmarks.capacity [--measure]

It prints the tables from the results; a test compares them with the page. ``--measure`` first measures again, on SQLite
and on PostgreSQL.
"""

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from baton.starter.operations.capacity import (
    CALLS_AT_ONCE,
    FILLED,
    PEAK,
    Load,
    MeasuredRuns,
    measure,
    measured_rows,
    needs,
)
from benchmarks.environment import versions, write
from tests.harness.postgres import PostgresServer

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "capacity.md"

LOAD = Load(turns=12, reply=1_000, runs=60, at_once=20)
"""A run: its turns, and the bytes of each reply."""

CALL_SECONDS = 10
"""How long a model takes for an answer."""

DATABASES = ("SQLite", "PostgreSQL")


def measured() -> dict[str, list[MeasuredRuns]]:
    """What was measured with each database: without and with encryption."""
    found = json.loads((RESULTS / "capacity.json").read_text())["measured"]
    return {database: [MeasuredRuns(**each) for each in found[database]] for database in DATABASES}


async def measure_all(load: Load = LOAD) -> dict[str, list[MeasuredRuns]]:
    """Measures with both databases."""
    with PostgresServer.running(fsync=True) as postgres:
        urls = {"SQLite": None, "PostgreSQL": await postgres.database()}
        return {name: await measure(load, url, {}, encrypted=(False, True)) for name, url in urls.items()}


def paused() -> dict[str, Any]:
    """The memory with 10,000 paused teams, of the worker and of the embedded server."""
    result = json.loads((RESULTS / "idle-teams.json").read_text())
    return {"worker": result["rows"][-1]["waiting MB"], "server": result["memory"][-1]["server_mb"]}


def measured_table() -> str:
    """What was measured."""
    plain, encrypted = zip(*measured().values(), strict=True)
    all_of_them = [each for database in zip(plain, encrypted, strict=True) for each in database]
    head = " | ".join(f"{name}{also}" for name in DATABASES for also in ("", ", encrypted"))
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in measured_rows(all_of_them))
    return f"| what | {head} |\n|{'---|' * 5}\n{lines}"


def workers_table(runs_a_day: int = 1_000_000, at_once: int = 10_000) -> str:
    """The workers for a million runs a day, on average and at the peak, and for 10,000 teams at once."""
    journal = measured()["PostgreSQL"][1]
    peak = needs(journal, runs_a_day, LOAD.turns, CALL_SECONDS)
    average = needs(journal, runs_a_day / PEAK, LOAD.turns, CALL_SECONDS)
    teams = needs(journal, at_once / CALL_SECONDS / LOAD.turns * 86_400 / PEAK, LOAD.turns, CALL_SECONDS)
    rows = {
        f"{runs_a_day:,} runs a day, on average": average,
        f"the same, in the busiest hour ({PEAK} times as many)": peak,
        f"{at_once:,} teams at once, each in a call": teams,
    }
    return (
        "| load | turns per second | workers by CPU | calls at once | workers by calls | workers |\n"
        "|---|---|---|---|---|---|\n"
        + "".join(
            f"| {name} | {each.turns_per_second:,.0f} | {each.workers_by_cpu} | "
            f"{each.turns_per_second * CALL_SECONDS:,.0f} | {each.workers_by_calls} | **{each.workers}** |\n"
            for name, each in rows.items()
        )
    )


def storage_table(runs_a_day: int = 1_000_000) -> str:
    """What a million runs a day store."""
    plain, encrypted = (needs(each, runs_a_day, LOAD.turns, CALL_SECONDS) for each in measured()["PostgreSQL"])
    return f"""\
| what | a day | 30 days | a day, encrypted | 30 days |
|---|---|---|---|---|
| histories, in Temporal's database | {plain.histories_gb:.0f} GB | {plain.histories_gb * 30:,.0f} GB | {encrypted.histories_gb:.0f} GB | {encrypted.histories_gb * 30:,.0f} GB |
| the journal, on PostgreSQL | {plain.journal_gb:.0f} GB | {plain.journal_gb * 30:,.0f} GB | {encrypted.journal_gb:.0f} GB | {encrypted.journal_gb * 30:,.0f} GB |
"""  # noqa: E501


def tables() -> list[str]:
    """The tables of the page."""
    return [measured_table(), workers_table(), storage_table()]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measure", action="store_true", help="measures again first, and writes the results")
    if parser.parse_args().measure:
        found = {name: [asdict(each) for each in each_of] for name, each_of in asyncio.run(measure_all()).items()}
        write("capacity", {"versions": versions(), "load": asdict(LOAD), "measured": found})
    print("\n".join(tables()))
    print(f"Workers are used to {FILLED:.0%}, with {CALLS_AT_ONCE} calls at once.")


if __name__ == "__main__":
    main()
