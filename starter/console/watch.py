"""Shows runs on the console: their events line by line, and on a terminal their open calls below."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text
from temporalio.client import Client

from ...contracts.message import TokenUsage
from ..history.events import ModelCalledEvent, ToolCalledEvent
from ..history.live_state import LiveState, OpenCall
from ..history.stream import stream_events
from ..runs.runs import RunHandle
from ..text import escape_control_characters, format_duration, format_usage
from .lines import one_line
from .printer import EventPrinter, format_turn


@dataclass
class LiveView:
    """Renders the current state, in at most half of the terminal's height."""

    state: LiveState
    summary: bool = True

    def __rich_console__(self, console: Console, _options: ConsoleOptions) -> RenderResult:
        now = datetime.now(UTC)
        calls = self.state.open_calls
        height = max(4, console.height // 2) - 1
        shown = calls[: height - 1] if len(calls) > height else calls
        for call in shown:
            run = f" · {call.root}" if len(self.state.runs) > 1 else ""
            about = f"  {describe_call(call)} · {format_duration(now - call.started.at)}{run}"
            yield from _call_lines(call, about, console, height // len(shown))
        if len(shown) < len(calls):
            yield Text(f"and {len(calls) - len(shown)} more", style="dim")
        if self.summary:
            yield from _summary(self.state, now)


def describe_call(call: OpenCall) -> str:
    """The team, turn, model or tool, and attempt, where known."""
    match call.started:
        case ModelCalledEvent() as started:
            parts = [format_turn(started), started.model]
        case ToolCalledEvent(tool=tool):
            parts = [format_turn(call.turn) if call.turn else "", f"uses {tool}"]
        case turn:
            parts = [format_turn(turn), f"uses {turn.function}"]
    if call.deferred:
        parts.append("waiting")
    elif call.attempt > 1:
        parts.append(f"{'waiting for ' if call.waiting else ''}attempt {call.attempt}")
    parts.insert(0, call.started.team or "")
    return " · ".join(filter(None, parts))


def partial_text(call: OpenCall) -> str:
    """The latest part of an answer that a model is still streaming."""
    return ("…" if call.is_cut else "") + call.text


def _call_lines(call: OpenCall, about: str, console: Console, height: int) -> list[Text]:
    """At most ``height`` lines for a call: its speaker, the error of its last attempt, the latest part of its text."""
    lines = [one_line(Text.assemble((call.started.speaker, "bold yellow"), (about, "dim")))]
    if call.failure:
        lines.append(one_line(Text(f"  ✗ {' '.join(call.failure.split())}", style="red")))
    text = "" if call.waiting else partial_text(call)
    space = height - len(lines)
    if text and space > 0:
        wrapped = Text(escape_control_characters(text.rstrip())).wrap(console, max(10, console.width - 2))
        lines += [one_line(Text.assemble("  ", line)) for line in wrapped[-space:]]
    return lines[:height]


def _summary(state: LiveState, now: datetime) -> list[Text]:
    """A line with the number of running runs, the usage of all, and the longest duration; none if no run is running."""
    running = [run for run in state.runs.values() if run.end is None]
    if not running:
        return []
    usage = sum((run.usage for run in state.runs.values()), TokenUsage())
    name = running[0].id if len(state.runs) == 1 else f"{len(running)} of {len(state.runs)} runs are running"
    if paused := [run.pause for run in running if run.pause]:
        name += f" · paused by {paused[0].by}" if len(state.runs) == 1 else f" · {len(paused)} are paused"
    duration = now - min(run.started_at for run in running)
    return [one_line(Text(f"{name} · {format_usage(usage)} · {format_duration(duration)}", style="dim"))]


MIN_DRAW_INTERVAL = 0.05
"""Seconds between two drawings of the live view while text arrives."""

MAX_DRAW_INTERVAL = 0.5
"""Seconds after which the live view is drawn again if nothing happens: it shows durations."""


class Watch:
    """Prints the events of runs on ``console``, and tracks their live state.

    Text arrives at once if the ``environment`` names the journal of the runs' worker, and else with heartbeats.
    """

    def __init__(
        self, client: Client, console: Console, runs: int = 1, *, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.state = LiveState()
        self._environment = environment
        self._client = client
        self._console = console
        self._printer = EventPrinter(console, self.state, runs)
        self._changed = asyncio.Event()

    async def follow(self, handle: RunHandle, *, wait: bool = True) -> None:
        """Prints the events of a run from its start to its end; with ``wait`` false only those that exist already.

        Raises RPCError if Temporal is unreachable for long.
        """
        events = stream_events(self._client, handle, wait=wait, cut=True, environment=self._environment)
        async with contextlib.aclosing(events):
            async for event in events:
                beginning = self.state.apply(event)
                self._printer.print_event(event, beginning, attempts=wait and not self._console.is_interactive)
                self._changed.set()

    @property
    def last_text(self) -> str:
        """The text of the latest message, if it was printed in full."""
        return self._printer.last_text

    @contextlib.asynccontextmanager
    async def live_view(self) -> AsyncIterator[None]:
        """A context manager that shows the live view, if there is a terminal; else failed attempts are printed."""
        if not self._console.is_interactive:
            yield
            return
        live = Live(
            LiveView(self.state),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live:
            drawing = asyncio.create_task(self._draw(live))
            try:
                yield
            finally:
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)

    async def _draw(self, live: Live) -> None:
        while True:
            self._changed.clear()
            live.refresh()
            await asyncio.sleep(MIN_DRAW_INTERVAL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_DRAW_INTERVAL):
                    await self._changed.wait()

    def print_unfinished(self) -> None:
        """Prints the answers that models are still streaming."""
        for call in self.state.open_calls:
            self._printer.print_unfinished(call, describe_call(call), partial_text(call))


async def print_open_calls(client: Client, handle: RunHandle, console: Console) -> None:
    """Prints the open calls of a run, with the failures of their last attempts and the latest parts of their texts."""
    state = LiveState()
    async for event in stream_events(client, handle, wait=False, cut=True):
        state.apply(event)
    console.print(LiveView(state, summary=False))
