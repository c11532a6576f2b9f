"""Shows runs on the console: their events line by line, and on a terminal below them what is going on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine

from rich.console import Console
from rich.live import Live
from temporalio.client import Client

from ..history.follow import follow
from ..history.live_state import LiveState, read_heartbeats
from ..history.run_events import RunEvent
from ..runs.run_handle import RunHandle
from .live_view import LiveView, describe_call, partial_text
from .printer import EventPrinter

HEARTBEAT_INTERVAL = 1.0
"""Seconds between two readings of the heartbeats."""

DRAW_INTERVAL = 0.25
"""Seconds between two drawings of the live view."""


class Watch:
    """Prints the events of some runs on ``console``, and keeps their live state."""

    def __init__(self, client: Client, console: Console, runs: int = 1) -> None:
        self.state = LiveState()
        self._client, self._console = client, console
        self._told_failures: dict[tuple[str, str], int] = {}
        self._printer = EventPrinter(console, runs)

    def on_event(self, event: RunEvent) -> None:
        """Prints the next event."""
        self.state.apply(event)
        self._printer.print_event(event)

    @property
    def last_text(self) -> str:
        """The text that was said last, if it was printed in full."""
        return self._printer.last_text

    @contextlib.asynccontextmanager
    async def live_view(self) -> AsyncIterator[None]:
        """Shows the live view while the block runs; without a terminal, a line for each failed attempt of a call."""
        if self._console.is_interactive:
            async with self._drawn():
                yield
        else:
            async with _meanwhile(self._tell_failures()):
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

    async def _tell_failures(self) -> None:
        while True:
            await read_heartbeats(self._client, [*self.state.open_calls.values()])
            for key, call in self.state.open_calls.items():
                if call.failure and call.attempt > self._told_failures.get(key, 1):
                    self._told_failures[key] = call.attempt
                    self._printer.print_failed_attempt(call)
            await asyncio.sleep(HEARTBEAT_INTERVAL)

    async def _draw(self, live: Live) -> None:
        while True:
            live.refresh()
            await asyncio.sleep(DRAW_INTERVAL)

    async def print_unfinished(self) -> None:
        """Prints the answers that models are writing."""
        await read_heartbeats(self._client, self.state.open_calls.values())
        for call in self.state.open_calls.values():
            self._printer.print_unfinished(call.call.speaker, describe_call(call), partial_text(call))


@contextlib.asynccontextmanager
async def _meanwhile(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Does some work while the block runs, and cancels it at its end."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def print_open_calls(client: Client, handle: RunHandle, console: Console) -> None:
    """Prints what a run waits for now: its calls, the failures of their last attempts, and the ends of their texts."""
    state = LiveState()
    await follow(client, handle, state.apply, wait=False)
    await read_heartbeats(client, state.open_calls.values())
    console.print(LiveView(state, summary=False))
