"""Draws the live part of the console: the open calls with the last lines of their texts, and a line about the runs."""

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
    """Renders the state at the time of drawing, in at most half of the terminal's height."""

    state: LiveState
    summary: bool = True

    def __rich_console__(self, console: Console, _options: ConsoleOptions) -> RenderResult:
        now = datetime.now(UTC)
        calls = [*self.state.open_calls.values()]
        height = max(4, console.height // 2) - 1
        shown = calls[: height - 1] if len(calls) > height else calls
        for call in shown:
            run = f" · {call.run.root.id}" if len(self.state.runs) > 1 else ""
            about = f"  {describe_call(call)} · {format_duration(now - call.call.scheduled_at)}{run}"
            yield from _call_lines(call, about, console, height // len(shown))
        if len(shown) < len(calls):
            yield Text(f"and {len(calls) - len(shown)} more", style="dim")
        if self.summary:
            yield from _summary(self.state, now)


def describe_call(call: OpenCall) -> str:
    """The team, the turn, the model or the tool, and the attempt, as far as each is known."""
    run, is_model_call = call.run, isinstance(call.call.request, AskModelRequest)
    parts = [run.name] if run.kind == "team" else []
    parts += [format_turn(call.call), call.call.name if is_model_call else f"uses {call.call.name}"]
    if call.attempt > 1:
        parts.append(f"{'waiting for ' if call.waiting else ''}attempt {call.attempt}")
    return " · ".join(filter(None, parts))


def partial_text(call: OpenCall) -> str:
    """The last part of the answer that a model is writing."""
    return ("…" if call.progress.offset else "") + call.progress.text


def _call_lines(call: OpenCall, about: str, console: Console, height: int) -> list[Text]:
    """At most ``height`` lines for a call: its speaker, the error of its last attempt, the end of its text."""
    lines = [_one_line(Text.assemble((call.call.speaker, "bold yellow"), (about, "dim")))]
    if call.failure:
        lines.append(_one_line(Text(f"  ✗ {' '.join(call.failure.split())}", style="red")))
    text = "" if call.waiting else partial_text(call)
    space = height - len(lines)
    if text and space > 0:
        wrapped = Text(escape_control_characters(text.rstrip())).wrap(console, max(10, console.width - 2))
        lines += [_one_line(Text.assemble("  ", line)) for line in wrapped[-space:]]
    return lines[:height]


def _one_line(text: Text) -> Text:
    text.plain = escape_control_characters(text.plain).replace("\n", " ")
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _summary(state: LiveState, now: datetime) -> list[Text]:
    """A line with the number of running runs, the usage of all, and the longest duration; none if no run is running."""
    running = [run for run in state.runs.values() if run.end is None]
    if not running:
        return []
    usage = sum((run.usage for run in state.runs.values()), TokenUsage())
    name = running[0].run.id if len(state.runs) == 1 else f"{len(running)} of {len(state.runs)} runs are running"
    if paused := [run.pause for run in running if run.pause]:
        name += f" · paused by {paused[0].by}" if len(state.runs) == 1 else f" · {len(paused)} are paused"
    duration = now - min(run.started_at for run in running)
    return [_one_line(Text(f"{name} · {format_usage(usage)} · {format_duration(duration)}", style="dim"))]
