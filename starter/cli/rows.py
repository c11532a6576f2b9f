"""Prints what a command has found, as a table or as JSON or YAML."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .options import OutputFormat
from .terminal import print_result

if TYPE_CHECKING:
    from pydantic import JsonValue


def print_rows(
    columns: Sequence[str], found: "Sequence[tuple[Sequence[str], JsonValue]]", output: OutputFormat, none: str
) -> None:
    """Prints rows as a table, or their values as JSON or YAML."""
    from rich.console import Console

    from ..console.table import print_table
    from .formats import dump

    if output is OutputFormat.text:
        print_table(Console(highlight=False), columns, [row for row, _ in found], none)
    else:
        print_result(dump([value for _, value in found], output))
