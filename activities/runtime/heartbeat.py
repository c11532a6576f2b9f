"""Heartbeats: a running activity reports that it is alive, with the text received so far, and learns of a cancel."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from temporalio import activity

from ...conversation.contracts.heartbeats import LiveText

T = TypeVar("T")

INTERVAL = 0.75
"""Seconds between two heartbeats. A cancel arrives with the reply to a heartbeat."""

SHOWN_CHARACTERS = 2_000
"""How much of a growing text a heartbeat shows."""

KEPT_CHARACTERS = 10 * SHOWN_CHARACTERS
"""How much of the text is kept: more than is shown, so that no secret is cut in two before it is redacted."""


class Heartbeat:
    """The content of an activity's heartbeats: the end of the text received so far, after ``redact``."""

    withdrawn = False
    """Whether Temporal has cancelled the activity, or waits for it no longer."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._text = ""
        self._offset = 0

    def on_text(self, text: str) -> None:
        """Adds a piece of text."""
        self._text += text
        if (surplus := len(self._text) - KEPT_CHARACTERS) > 0:
            self._text, self._offset = self._text[surplus:], self._offset + surplus

    @property
    def live_text(self) -> LiveText:
        """The last part of the text. It is redacted before it is cut, as half of a secret would not be found."""
        clean = self._redact(self._text)
        surplus = max(0, len(clean) - SHOWN_CHARACTERS)
        return LiveText(offset=self._offset + surplus, text=clean[surplus:])


_current: ContextVar[Heartbeat] = ContextVar("heartbeat")


def on_text(text: str) -> None:
    """Adds a piece of text to the heartbeats of the running activity."""
    _current.get().on_text(text)


def is_withdrawn() -> bool:
    """Whether the running activity is being cancelled for good; not if another attempt may go on with its work."""
    return _current.get().withdrawn


def run_with(heartbeat: Heartbeat, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A task that runs ``work``, to whose text ``heartbeat`` listens."""
    context = copy_context()
    context.run(_current.set, heartbeat)
    return asyncio.create_task(work, context=context)


@contextlib.asynccontextmanager
async def heartbeats(heartbeat: Heartbeat) -> AsyncIterator[None]:
    """Sends a heartbeat every ``INTERVAL`` seconds while the block runs; the first one after the first interval."""

    async def send() -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            activity.heartbeat(heartbeat.live_text)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
