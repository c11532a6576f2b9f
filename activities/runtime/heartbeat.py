"""How does Temporal know that a worker is alive, and a worker that its call is no longer wanted? By heartbeats."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from temporalio import activity

from ...conversation.contracts.requests import LiveText

INTERVAL = 0.75
"""Seconds between two heartbeats; a cancel arrives with the answer to one."""

SHOWN = 2_000
"""Characters of a growing text that a heartbeat shows."""

KEPT = 10 * SHOWN
"""Characters that are kept of it, so that no secret is cut where it could be shown."""


class Pulse:
    """What the heartbeats of a call tell: the text it has heard so far, as ``clean`` leaves it."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._text = ""
        self._offset = 0

    def hear(self, text: str) -> None:
        """Adds to the text."""
        self._text += text
        if (over := len(self._text) - KEPT) > 0:
            self._text, self._offset = self._text[over:], self._offset + over

    @property
    def live(self) -> LiveText:
        """The last part of the text, which is cleaned before it is cut: half of a secret would not be found."""
        clean = self._clean(self._text)
        over = max(0, len(clean) - SHOWN)
        return LiveText(offset=self._offset + over, text=clean[over:])


@contextlib.asynccontextmanager
async def heartbeats(pulse: Pulse | None = None) -> AsyncIterator[None]:
    """Beats at every interval as long as the block runs; what is done before the first has cost Temporal nothing.

    What is done within a workflow task has none: nobody would hear them.
    """
    pulse = pulse or Pulse(str)

    async def beat() -> None:
        while not activity.info().is_local:
            await asyncio.sleep(INTERVAL)
            activity.heartbeat(pulse.live)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
