"""Prints the status of a run, rows as a table, and the problems of manifests."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ...contracts.status import Status
from ...resources.problems import ManifestError
from ..text import escape_control_characters, format_duration, format_usage

_COLOURS = {"Completed": "green", "Running": "yellow", "InputRequired": "yellow"}


def print_status(console: Console, name: str, status: Status) -> None:
    """Prints the phase of a run with its usage and duration, and its error if it has one."""
    colour = _COLOURS.get(status.phase, "red")
    reason = f" ({status.stop_reason})" if status.stop_reason else ""
    if status.paused:
        reason = f" (paused by {status.paused.by or 'somebody'} since {status.paused.since})"
    about = f"{name} · {format_usage(status.token_usage)} · {format_duration(_duration(status))}"
    _print_line(console, Text.assemble((status.phase, f"{colour} bold"), f"{reason} ", (about, "dim")))
    if status.error:
        kind = f"{status.failure.type}: " if status.failure else ""
        _print_line(console, Text(f"{kind}{status.error}", style="red"))
    for notice in status.notices or ():
        _print_line(console, Text(f"note: {notice}", style="yellow"))


def _print_line(console: Console, line: Text) -> None:
    """Prints a line literally: without markup, and with control characters made visible."""
    line.plain = escape_control_characters(line.plain)
    console.print(line, soft_wrap=True)


def _duration(status: Status) -> timedelta:
    end = datetime.fromisoformat(status.completion_time) if status.completion_time else datetime.now(UTC)
    return end - datetime.fromisoformat(status.start_time)


def print_problems(console: Console, error: ManifestError) -> None:
    """Prints all problems of manifests."""
    for line in error.lines():
        _print_line(console, Text(line))
    count = len(error.problems)
    console.print(Text(f"{count} {'problem' if count == 1 else 'problems'}: nothing was started", style="red"))


_PHASE_COLOURS = {
    "yellow": ("Running", "Paused", "InputRequired", "in_progress"),
    "green": ("Completed", "completed"),
    "red": ("Failed", "Timed out", "Terminated", "errored", "cancelled"),
}


def print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], none: str, *, truncate_last: bool = True
) -> None:
    """Prints rows with one cell for each column, or the text ``none`` if there are no rows.

    Cells are printed in full, as users copy ids from them; with ``truncate_last``, those of the last column are
    truncated on a terminal, with a ``…``.
    """
    if not rows:
        console.print(none)
        return
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    if console.is_terminal and truncate_last:
        space = console.width - sum(widths[:-1]) - 2 * len(widths[:-1])
        widths[-1] = min(widths[-1], max(space, MIN_LAST_COLUMN))
    console.print(_line(columns, widths, "bold"), soft_wrap=True)
    for row in rows:
        console.print(_line(row, widths), soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    line = Text("  ").join(
        Text(_fit(escape_control_characters(cell), width), style=style or _colour(cell))
        for cell, width in zip(cells, widths, strict=True)
    )
    line.rstrip()
    return line


def _fit(cell: str, width: int) -> str:
    """The cell in exactly that width, in columns of the terminal."""
    return set_cell_size(cell, width) if cell_len(cell) <= width else f"{set_cell_size(cell, width - 1)}…"


def _colour(cell: str) -> str:
    return next((colour for colour, words in _PHASE_COLOURS.items() if cell in words), "")


MIN_LAST_COLUMN = 20
"""The smallest width of a truncated last column, on a terminal too narrow for the row."""
