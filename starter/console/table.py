"""Prints a table as aligned text, with colours on a terminal."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ..text.escape import escape_control_characters

_COLOURS = {
    "yellow": ("Running", "Paused", "InputRequired", "in_progress"),
    "green": ("Completed", "completed"),
    "red": ("Failed", "Timed out", "Terminated", "errored", "cancelled"),
}

MIN_LAST_COLUMN = 20
"""The width to which the last column is cut at most, so that a row fits on a line of the terminal."""


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], none: str) -> None:
    """Prints rows with one cell for each column, or the text ``none`` if there are no rows.

    All cells are whole, as users copy ids from them; on a terminal those of the last column may be cut.
    """
    if not rows:
        console.print(none)
        return
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    if console.is_terminal:
        space = console.width - sum(widths[:-1]) - 2 * len(widths[:-1])
        widths[-1] = min(widths[-1], max(space, MIN_LAST_COLUMN))
    console.print(_line(columns, widths, "bold"), soft_wrap=True)
    for row in rows:
        console.print(_line(row, widths), soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    line = Text("  ").join(
        Text(set_cell_size(escape_control_characters(cell), width), style=style or _colour(cell))
        for cell, width in zip(cells, widths, strict=True)
    )
    line.rstrip()
    return line


def _colour(cell: str) -> str:
    return next((colour for colour, words in _COLOURS.items() if cell in words), "")
