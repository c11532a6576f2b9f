"""How is a run watched? What has been said goes up line by line; below, on a terminal, stands what is being said."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rich.console import Console
from rich.live import Live
from temporalio.client import Client

from ..history.live_state import Board, look
from ..history.run_events import Happening
from .live_view import LivePart, about, text_of
from .printer import Narrator

LOOK = 1.0
"""Seconds between two looks at the heartbeats."""

DRAW = 0.25
"""Seconds between two drawings of the live part."""


class Watch:
    """Tells what happens in some runs, and shows what goes on in them where ``console`` is a terminal."""

    def __init__(self, client: Client, console: Console, runs: int = 1) -> None:
        self.board = Board()
        self._client, self._console = client, console
        self.narrator = Narrator(console, runs)

    def tell(self, happening: Happening) -> None:
        """Tells one thing that has happened."""
        self.board.note(happening)
        self.narrator.tell(happening)

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Shows what goes on while the block runs; nobody is asked for it where there is no terminal."""
        if not self._console.is_interactive:
            yield
            return
        live = Live(
            LivePart(self.board),
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
            await look(self._client, [*self.board.open.values()])
            await asyncio.sleep(LOOK)

    async def _draw(self, live: Live) -> None:
        while True:
            live.refresh()
            await asyncio.sleep(DRAW)

    async def tell_unfinished(self) -> None:
        """Tells what is being said at this moment, as lines."""
        await look(self._client, self.board.open.values())
        for call in self.board.open.values():
            self.narrator.tell_unfinished(call.call.speaker, about(call), text_of(call))
