"""Output of the commands: results on stdout, messages on stderr, rows as a table or JSON."""

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from ..text import escape_control_characters
from .options import OutputFormat

if TYPE_CHECKING:
    from rich.console import Console


@cache
def stderr_console() -> "Console":
    """The console for everything that is not a result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, force_interactive=None if sys.stderr.isatty() else False)


def print_message(text: str, style: str | None = None) -> None:
    """Prints a message on stderr; control characters are made visible, as others may have written a part of it."""
    stderr_console().print(escape_control_characters(text), soft_wrap=True, markup=False, style=style)


def print_result(result: str) -> None:
    """Prints a result on stdout, unchanged; on a terminal control characters are made visible."""
    print(escape_control_characters(result) if sys.stdout.isatty() else result, flush=True)


def on_one_terminal() -> bool:
    """Whether a person sees results and messages in one place, so that nothing need be printed in both."""
    return sys.stdout.isatty() and sys.stderr.isatty()


if TYPE_CHECKING:
    from pydantic import JsonValue


def print_rows(
    columns: Sequence[str], found: "Sequence[tuple[Sequence[str], JsonValue]]", output: OutputFormat, none: str
) -> None:
    """Prints rows as a table, or their values as JSON or YAML."""
    from rich.console import Console

    from ..console.status import print_table
    from .formats import dump

    if output is OutputFormat.text:
        print_table(Console(highlight=False), columns, [row for row, _ in found], none)
    else:
        print_result(dump([value for _, value in found], output))
