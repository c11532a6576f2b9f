"""Prints the status of a run, and the problems of manifests."""

from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.text import Text

from ...conversation.contracts.status import Status
from ...resources.problems import ManifestError
from ..text.escape import escape_control_characters
from ..text.units import format_duration, format_usage

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
    """Prints a line as it is: with nothing in it that is markup or commands the terminal."""
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
