"""How is a run watched? What has been said goes up line by line; below, on a terminal, stands what is being said."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rich.console import Console
from rich.live import Live
from temporalio.client import Client

from ..history.live_state import LiveState, read_heartbeats
from ..history.run_events import RunEvent
from .live_view import LiveView, describe_call, partial_text
from .printer import EventPrinter

LOOK = 1.0
"""Seconds between two looks at the heartbeats."""

DRAW = 0.25
"""Seconds between two drawings of the live part."""


class Watch:
    """Tells what happens in some runs, and shows what goes on in them where ``console`` is a terminal."""

    def __init__(self, client: Client, console: Console, runs: int = 1) -> None:
        self.state = LiveState()
        self._client, self._console = client, console
        self.printer = EventPrinter(console, runs)

    def on_event(self, happening: RunEvent) -> None:
        """Tells one thing that has happened."""
        self.state.apply(happening)
        self.printer.print_event(happening)

    @contextlib.asynccontextmanager
    async def live_view(self) -> AsyncIterator[None]:
        """Shows what goes on while the block runs; nobody is asked for it where there is no terminal."""
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
            tasks = [asyncio.create_task(work) for work in (self._look(), self._draw(live))]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            await read_heartbeats(self._client, [*self.state.open_calls.values()])
            await asyncio.sleep(LOOK)

    async def _draw(self, live: Live) -> None:
        while True:
            live.refresh()
            await asyncio.sleep(DRAW)

    async def print_unfinished(self) -> None:
        """Tells what is being said at this moment, as lines."""
        await read_heartbeats(self._client, self.state.open_calls.values())
        for call in self.state.open_calls.values():
            self.printer.print_unfinished(call.call.speaker, describe_call(call), partial_text(call))
