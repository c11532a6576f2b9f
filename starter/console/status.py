"""Prints the status of a run, and rows as a table."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ..text import escape_control_characters, escape_line, format_duration, format_usage
from .lines import one_line, print_line

if TYPE_CHECKING:
    from ...contracts.decisions import PendingDecision
    from ...contracts.status import Status

_COLOURS = {"Completed": "green", "Running": "yellow", "InputRequired": "yellow", "Waiting": "yellow"}


def print_status(console: Console, name: str, status: "Status", reset: datetime | None = None) -> None:
    """Prints the phase of a run with its usage and duration, its note and its error, and what it waits for.

    ``reset`` is the time of its last reset: then the duration since that is printed, too.
    """
    colour = _COLOURS.get(status.phase, "red")
    reason = f" ({status.stop_reason})" if status.stop_reason else ""
    if status.paused:
        reason = f" (paused by {status.paused.by or 'an unknown person'} since {status.paused.since})"
    end = datetime.fromisoformat(status.completion_time) if status.completion_time else datetime.now(UTC)
    duration = format_duration(end - datetime.fromisoformat(status.start_time))
    if reset:
        duration = f"{format_duration(end - reset)} since its reset, {duration} since its start"
    about = f"{name} · {format_usage(status.token_usage)} · {duration}"
    print_line(console, Text.assemble((status.phase, f"{colour} bold"), f"{reason} ", (about, "dim")))
    if status.forked_from:
        print_line(console, Text(f"forked from {status.forked_from} at {status.forked_at}", style="dim"))
    if status.note:
        print_line(console, Text(status.note, style="dim"))
    if status.error:
        kind = f"{status.failure.type}: " if status.failure else ""
        print_line(console, Text(f"{kind}{status.error}", style="red"))
    _print_problems(console, status)


def _print_problems(console: Console, status: "Status") -> None:
    """Prints what has failed, what is waited for, and the notices."""
    for failure in status.all_member_failures:
        where = f" in turn {failure.turn}" if failure.turn else ""
        text = f"note: {failure.member or 'a member'} has failed{where}: {failure.message}"
        print_line(console, Text(text, style="yellow"))
    for outage in status.outages or ():
        since = f"{outage.since.astimezone():%H:%M:%S}"
        text = f"waiting since {since} after {outage.attempts} attempts: {outage.call}: {outage.type}: {outage.error}"
        if outage.is_quota:
            text = f"waiting since {since} with {outage.call}: {outage.error}"
        print_line(console, Text(text, style="yellow"))
    for workflow_id in status.workflows or ():
        print_line(console, Text(f"waits for the workflow {workflow_id}", style="yellow"))
    for notice in status.notices or ():
        print_line(console, Text(f"note: {notice}", style="yellow"))


def print_decisions(console: Console, decisions: Sequence[tuple[str, "PendingDecision"]]) -> None:
    """Prints pending decisions, with the ids of their root runs.

    What a person decides, or a client executes, is below a line with the run, the id, the member, and the deadline. It
    is printed in full, as people have to read it before they decide; long lines are wrapped.
    """
    for root, decision in decisions:
        until = f" until {decision.until.astimezone():%Y-%m-%d %H:%M:%S}" if decision.until else ""
        about = f"{root} {decision.id}  {decision.speaker}{until}"
        print_line(console, one_line(Text(about, style="bold")))
        if decision.who:
            given = "".join(f"; approved by {approval.by}" for approval in decision.approvals)
            print_line(console, one_line(Text(f"  to be decided by {decision.who}{given}", style="dim")))
        called = " ".join(filter(None, (decision.tool, decision.arguments)))
        if decision.kind == "client_tool":
            called = f"waits for the client's result of {called}"
        content = Text(escape_control_characters(decision.question or called))
        for line in content.wrap(console, max(20, console.width - 2), overflow="fold"):
            console.print(Text.assemble("  ", line), soft_wrap=True)


_PHASE_COLOURS = {
    "yellow": ("Running", "Paused", "InputRequired", "Waiting", "in_progress"),
    "green": ("Completed", "completed"),
    "red": ("Failed", "Timed out", "Terminated", "errored", "cancelled"),
}


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], none: str) -> None:
    """Prints rows with one cell per column, or the text ``none`` if there are no rows.

    Cells are printed in full, because users copy ids from them; on a terminal, those of the last column are truncated,
    with a ``…``.
    """
    if not rows:
        console.print(none)
        return
    lines = [columns, *([escape_line(cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    if console.is_terminal:
        space = console.width - sum(widths[:-1]) - 2 * len(widths[:-1])
        widths[-1] = min(widths[-1], max(space, MIN_LAST_COLUMN))
    for number, cells in enumerate(lines):
        print_line(console, _line(cells, widths, "" if number else "bold"))


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    line = Text("  ").join(
        Text(_fit(cell, width), style=style or _colour(cell)) for cell, width in zip(cells, widths, strict=True)
    )
    line.rstrip()
    return line


def _fit(cell: str, width: int) -> str:
    """The cell, padded or truncated to that width in terminal columns."""
    return set_cell_size(cell, width) if cell_len(cell) <= width else f"{set_cell_size(cell, width - 1)}…"


def _colour(cell: str) -> str:
    return next((colour for colour, words in _PHASE_COLOURS.items() if cell in words), "")


MIN_LAST_COLUMN = 20
"""The smallest width of a truncated last column, on a terminal too narrow for the row."""
