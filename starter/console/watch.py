"""Shows runs on the console: their events line by line, and on a terminal their open calls below."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text
from temporalio.client import Client

from ...contracts.message import TokenUsage
from ...contracts.requests import AskModelRequest
from ..history.follow import follow
from ..history.live_state import LiveState, OpenCall, read_heartbeats
from ..history.run_events import RunEvent
from ..runs.runs import RunHandle
from ..text import escape_control_characters, format_duration, format_usage
from .printer import EventPrinter, format_turn


@dataclass
class LiveView:
    """Renders the current state, in at most half of the terminal's height."""

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
    """The team, turn, model or tool, and attempt, where known."""
    is_model_call = isinstance(call.call.request, AskModelRequest)
    parts = [
        call.run.team.name if call.run.team else "",
        format_turn(call.call),
        call.call.name if is_model_call else f"uses {call.call.name}",
    ]
    if call.attempt > 1:
        parts.append(f"{'waiting for ' if call.waiting else ''}attempt {call.attempt}")
    return " · ".join(filter(None, parts))


def partial_text(call: OpenCall) -> str:
    """The latest part of an answer that a model is still streaming."""
    return ("…" if call.progress.offset else "") + call.progress.text


def _call_lines(call: OpenCall, about: str, console: Console, height: int) -> list[Text]:
    """At most ``height`` lines for a call: its speaker, the error of its last attempt, the latest part of its text."""
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
    text.no_wrap = True
    text.overflow = "ellipsis"
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


HEARTBEAT_INTERVAL = 1.0
"""Seconds between two readings of the heartbeats."""

DRAW_INTERVAL = 0.25
"""Seconds between two drawings of the live view."""


class Watch:
    """Prints the events of runs on ``console``, and tracks their live state."""

    def __init__(self, client: Client, console: Console, runs: int = 1) -> None:
        self.state = LiveState()
        self._client = client
        self._console = console
        self._printed_attempts: dict[tuple[str, str], int] = {}
        self._printer = EventPrinter(console, runs)

    def on_event(self, event: RunEvent) -> None:
        """Prints the next event."""
        self.state.apply(event)
        self._printer.print_event(event)

    @property
    def last_text(self) -> str:
        """The text of the latest message, if it was printed in full."""
        return self._printer.last_text

    @contextlib.asynccontextmanager
    async def live_view(self) -> AsyncIterator[None]:
        """A context manager that shows the live view; without a terminal, it prints a line per failed attempt."""
        if self._console.is_interactive:
            async with self._drawn():
                yield
        else:
            async with _meanwhile(self._print_failures()):
                yield

    @contextlib.asynccontextmanager
    async def _drawn(self) -> AsyncIterator[None]:
        live = Live(
            LiveView(self.state),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live:
            async with _meanwhile(self._read_heartbeats(), self._draw(live)):
                yield

    async def _read_heartbeats(self) -> None:
        while True:
            await read_heartbeats(self._client, [*self.state.open_calls.values()])
            await asyncio.sleep(HEARTBEAT_INTERVAL)

    async def _print_failures(self) -> None:
        while True:
            await read_heartbeats(self._client, [*self.state.open_calls.values()])
            for key, call in self.state.open_calls.items():
                if call.failure and call.attempt > self._printed_attempts.get(key, 1):
                    self._printed_attempts[key] = call.attempt
                    self._printer.print_failed_attempt(call)
            await asyncio.sleep(HEARTBEAT_INTERVAL)

    async def _draw(self, live: Live) -> None:
        while True:
            live.refresh()
            await asyncio.sleep(DRAW_INTERVAL)

    async def print_unfinished(self) -> None:
        """Prints the answers that models are still streaming."""
        await read_heartbeats(self._client, self.state.open_calls.values())
        for call in self.state.open_calls.values():
            self._printer.print_unfinished(call.call.speaker, describe_call(call), partial_text(call))


@contextlib.asynccontextmanager
async def _meanwhile(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """A context manager that runs coroutines in the background, and cancels them at its end."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def print_open_calls(client: Client, handle: RunHandle, console: Console) -> None:
    """Prints the open calls of a run, with the failures of their last attempts and the latest parts of their texts."""
    state = LiveState()
    await follow(client, handle, state.apply, wait=False)
    await read_heartbeats(client, state.open_calls.values())
    console.print(LiveView(state, summary=False))
