"""How does the live part look? Who speaks, in which turn, for how long, and the last lines of what is being said."""

from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ...conversation.contracts.requests import AskModelRequest
from ...conversation.messages.message import TokenUsage
from ..history.live_state import LiveState, OpenCall
from ..text.escape import escape_control_characters
from ..text.units import format_duration, format_usage
from .printer import format_turn


@dataclass
class LiveView:
    """What goes on, drawn as it stands whenever it is drawn; at most half as high as the terminal."""

    board: LiveState

    def __rich_console__(self, console: Console, _options: ConsoleOptions) -> RenderResult:
        now = datetime.now(UTC)
        calls = [*self.board.open_calls.values()]
        rows = max(4, console.height // 2) - 1
        shown = calls[: rows - 1] if len(calls) > rows else calls
        for call in shown:
            place = f" · {call.run.root.id}" if len(self.board.runs) > 1 else ""
            told = f"  {describe_call(call)} · {format_duration(now - call.call.scheduled_at)}{place}"
            yield from _call(call, told, console, rows // len(shown))
        if len(shown) < len(calls):
            yield Text(f"and {len(calls) - len(shown)} more", style="dim")
        yield from _sum(self.board, now)


def _call(open_: OpenCall, told: str, console: Console, rows: int) -> list[Text]:
    """A call in as many rows: who speaks or uses a tool, why it is tried again, the last lines of the text."""
    lines = [_row(Text.assemble((open_.call.speaker, "bold yellow"), (told, "dim")))]
    if open_.failure:
        lines.append(_row(Text(f"  ✗ {' '.join(open_.failure.split())}", style="red")))
    text = "" if open_.waiting else partial_text(open_)
    room = rows - len(lines)
    if text and room > 0:
        wrapped = Text(escape_control_characters(text.rstrip())).wrap(console, max(10, console.width - 2))
        lines += [_row(Text.assemble("  ", line)) for line in wrapped[-room:]]
    return lines[:rows]


def describe_call(open_: OpenCall) -> str:
    """The team, the turn, the model or tool, and the attempt, as far as they tell anything."""
    run, speaks = open_.run, isinstance(open_.call.request, AskModelRequest)
    told = [run.name] if run.kind == "team" else []
    told += [format_turn(open_.call), open_.call.name] if speaks else [format_turn(open_.call), f"uses {open_.call.name}"]
    if open_.attempt > 1:
        told.append(f"attempt {open_.attempt}{' is due' if open_.waiting else ''}")
    return " · ".join(filter(None, told))


def partial_text(open_: OpenCall) -> str:
    """The last part of what is being said."""
    return ("…" if open_.progress.offset else "") + open_.progress.text


def _row(text: Text) -> Text:
    text.plain = escape_control_characters(text.plain).replace("\n", " ")
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _sum(board: LiveState, now: datetime) -> list[Text]:
    """A line with what is open, what it has cost and how long it has taken."""
    going = [tally for tally in board.runs.values() if tally.end is None]
    if not going:
        return []
    usage = sum((tally.usage for tally in board.runs.values()), TokenUsage())
    name = going[0].run.id if len(board.runs) == 1 else f"{len(going)} of {len(board.runs)} runs go on"
    since = min(tally.started_at for tally in going)
    return [_row(Text(f"{name} · {format_usage(usage)} · {format_duration(now - since)}", style="dim"))]
