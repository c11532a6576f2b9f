"""Prints a table: with colours on a terminal, else as aligned text."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..text.escape import escape_control_characters

_COLOURS = {
    "yellow": ("Running", "Paused", "in_progress"),
    "green": ("Completed", "completed"),
    "red": ("Failed", "Timed out", "Terminated", "errored", "cancelled"),
}


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], none: str) -> None:
    """Prints rows with one cell for each column, or the text ``none`` if there are no rows."""
    if not rows:
        console.print(none)
    elif console.is_terminal:
        table = Table(*columns, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(Text(escape_control_characters(cell), style=_colour(cell)) for cell in row))
        console.print(table)
    else:
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        for row in (columns, *rows):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            console.print(Text(escape_control_characters(line.rstrip())), soft_wrap=True)


def _colour(cell: str) -> str:
    return next((colour for colour, words in _COLOURS.items() if cell in words), "")
