"""Output of the commands: results on stdout, messages on stderr, rows as a table or JSON."""

import json
import os
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..text import as_yaml, escape_control_characters, escape_line

if TYPE_CHECKING:
    from pydantic import JsonValue
    from rich.console import Console


@cache
def stderr_console() -> "Console":
    """The console for everything that is not a result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, force_interactive=None if sys.stderr.isatty() else False)


_logs_messages: ContextVar[bool] = ContextVar("logs_messages", default=False)
"""Whether the messages of this command go to the log of a server, whose lines are JSON, and not to the terminal."""


def log_messages() -> None:
    """From now on, the messages of this command are logged."""
    _logs_messages.set(True)


def logs_messages() -> bool:
    """Whether the messages of this command are logged."""
    return _logs_messages.get()


def print_message(text: str, style: str | None = None) -> None:
    """Prints a message on stderr; control characters are escaped, as parts of it may be untrusted."""
    if _logs_messages.get():
        import logging

        logging.getLogger("baton").log(logging.ERROR if style == "red" else logging.INFO, "%s", text)
        return
    stderr_console().print(escape_control_characters(text), soft_wrap=True, markup=False, emoji=False, style=style)


def print_result(result: str) -> None:
    """Prints a result on stdout, unchanged; on a terminal control characters are escaped."""
    print(escape_control_characters(result) if sys.stdout.isatty() else result, flush=True)


def print_line(result: str) -> None:
    """Prints a result of one line, such as an id: also line ends in it, which others may have chosen, are visible."""
    print_result(escape_line(result))


def check_file(file: Path | None) -> None:
    """Raises UsageError if a file can't be written, before the work whose result it is to have."""
    if file is None:
        return
    written = file if file.exists() else file.parent
    if file.is_dir() or not file.parent.is_dir() or not os.access(written, os.W_OK):
        raise UsageError(f"{file} can't be written")


def write_file(file: Path, text: str) -> None:
    """Writes a result into a file, and says so. Raises UsageError."""
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    print_message(f"wrote {file}")


def on_one_terminal() -> bool:
    """Whether results and messages go to the same terminal, so that nothing has to be printed twice."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def print_rows(
    columns: Sequence[str], rows: "Sequence[tuple[Sequence[str], JsonValue]]", output: str, none: str
) -> None:
    """Prints rows of cells as a table, or their values as JSON or YAML.

    A table without rows is printed as the text ``none``.
    """
    from rich.console import Console

    from ..console.status import print_table

    if output in ("text", "wide"):
        print_table(Console(highlight=False), columns, [cells for cells, _ in rows], none)
    else:
        print_result(dump([value for _, value in rows], output))


def dump(value: "JsonValue", output: str) -> str:
    """A value as YAML for ``yaml`` and ``ark``, otherwise as JSON."""
    if output not in ("yaml", "ark"):
        return json.dumps(value, indent=2, ensure_ascii=False)
    return as_yaml(value)
