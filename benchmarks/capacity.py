"""Computes from the results of the benchmarks how many workers, and how much storage, a load needs.

    python -m benchmarks.capacity

The rows are the tables of ``docs/capacity.md``: a test compares them. After new results, put what this prints there.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "capacity.md"

FILLED = 0.6
"""How much of what a worker can do it is to be used for: the rest is for the death of another, and for rollouts."""

PEAK = 3
"""How much more than the average begins in the busiest hour."""

TURNS, REPLY = 12, 1000
"""A run: its turns, and the bytes of each reply. There are results for these two."""

CALL_SECONDS = 10
"""How long a model takes for an answer."""

CALLS_AT_ONCE = 200
"""Calls that a worker makes at once: the default of BATON_MAX_CONCURRENT_ACTIVITIES."""


def row(file: str, **wanted: object) -> dict[str, Any]:
    """The row of a result that has these values."""
    rows = json.loads((RESULTS / f"{file}.json").read_text())["rows"]
    (found,) = [each for each in rows if wanted.items() <= each.items()]
    assert isinstance(found, dict)
    return found


@dataclass(frozen=True)
class Measured:
    """What one run, one turn and one worker take."""

    turns_per_second: float
    busy_ms_per_turn: float
    queries_per_second: float
    history_bytes: int
    journal_bytes: int
    idle_mb: int
    waiting_mb: int
    server_mb: int

    @classmethod
    def now(cls) -> "Measured":
        """As the results say."""
        speed = row("overhead", measured="100 teams", system="Baton")
        size = row("history-size", system="Baton", turns=TURNS, reply=REPLY)
        idle = row("idle-teams", teams=10_000)
        memory = json.loads((RESULTS / "idle-teams.json").read_text())["memory"]
        return cls(
            turns_per_second=speed["turns_per_second"],
            busy_ms_per_turn=speed["busy_ms_per_turn"],
            queries_per_second=row("query-burst", queries=5100)["queries per s"],
            history_bytes=size["history"],
            journal_bytes=size["stored"],
            idle_mb=idle["idle MB"],
            waiting_mb=idle["waiting MB"],
            server_mb=memory[-1]["server_mb"],
        )


def measured_table(m: Measured) -> str:
    """What was measured, and where it stands."""
    return f"""\
| what | figure | `benchmarks/results` |
|---|---|---|
| turns per second of one worker, of 100 teams at once | {m.turns_per_second} | `overhead.json` |
| CPU time of a turn, in the worker and the client | {m.busy_ms_per_turn} ms | `overhead.json` |
| queries to one agent per second, of one worker | {m.queries_per_second} | `query-burst.json` |
| history of a run of {TURNS} turns with replies of {REPLY} bytes | {m.history_bytes:,} bytes | `history-size.json` |
| journal of the same run | {m.journal_bytes:,} bytes | `history-size.json` |
| memory of a worker, idle and with 10,000 paused teams | {m.idle_mb} and {m.waiting_mb} MB | `idle-teams.json` |
| memory of the embedded server with these teams | {m.server_mb} MB | `idle-teams.json` |
"""


def load(m: Measured, name: str, turns: float, calls: float) -> str:
    """A row: the workers for so many turns per second, with so many calls at once."""
    each = m.turns_per_second * FILLED
    by_turns, by_calls = math.ceil(turns / each), math.ceil(calls / CALLS_AT_ONCE)
    return (
        f"| {name} | {turns:,.0f} | {turns:,.0f} / {each:.0f} = {by_turns} | "
        f"{calls:,.0f} | {calls:,.0f} / {CALLS_AT_ONCE} = {by_calls} | **{max(by_turns, by_calls, 2)}** |\n"
    )


def workers_table(m: Measured, runs_a_day: int = 1_000_000, at_once: int = 10_000) -> str:
    """The workers for a million runs a day, on average and at the peak, and for 10,000 teams at once."""
    average = runs_a_day * TURNS / 86_400
    return (
        "| load | turns per second | workers by turns | calls at once | workers by calls | workers |\n"
        "|---|---|---|---|---|---|\n"
        + load(m, f"{runs_a_day:,} runs a day, on average", average, average * CALL_SECONDS)
        + load(
            m, f"the same, in the busiest hour ({PEAK} times as many)", average * PEAK, average * PEAK * CALL_SECONDS
        )
        + load(m, f"{at_once:,} teams at once, each in a call", at_once / CALL_SECONDS, at_once)
    )


def storage_table(m: Measured, runs_a_day: int = 1_000_000) -> str:
    """What a million runs a day store."""
    gb = 1_000_000_000
    history, journal = runs_a_day * m.history_bytes / gb, runs_a_day * m.journal_bytes / gb
    return f"""\
| what | a day | 30 days |
|---|---|---|
| histories, in Temporal's database | {history:.0f} GB | {history * 30:,.0f} GB |
| the journal, on SQLite | {journal:.0f} GB | {journal * 30:,.0f} GB |
"""


def tables() -> list[str]:
    """The tables of the page."""
    m = Measured.now()
    return [measured_table(m), workers_table(m), storage_table(m)]


if __name__ == "__main__":
    print("\n".join(tables()))
