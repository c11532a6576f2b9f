"""Watches the worker's event loop: how long it is held from what waits for it, as a metric and in the log.

While it is held, no heartbeat is sent and no other run goes on: what may take long belongs into a bounded process.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from ...conversation.metrics import EVENT_LOOP_LAG

_log = logging.getLogger("baton")

STEP = 0.05
"""Seconds between two looks at the clock."""

HELD = 0.05
"""Seconds of computing in such a time from which on it is logged."""

STALLED = 1.0
"""Seconds from which on it is logged also if this process did not compute: it waited, or the machine was busy."""

LOG_EVERY = 10.0
"""Seconds between two lines in the log: the second one tells the longest time since the first."""


@contextlib.asynccontextmanager
async def watch_event_loop() -> AsyncIterator[None]:
    """Watches the running event loop while the block runs."""
    task = asyncio.create_task(_watch())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch() -> None:
    longest, used, logged = 0.0, 0.0, -LOG_EVERY
    while True:
        due, before = time.monotonic() + STEP, time.process_time()
        await asyncio.sleep(STEP)
        lag = time.monotonic() - due
        EVENT_LOOP_LAG.record(max(0.0, lag))
        if lag > longest:
            longest, used = lag, min(lag, time.process_time() - before)
        if (used > HELD or longest > STALLED) and due - logged > LOG_EVERY:
            text = "the event loop was held for %.0f ms, of which this process computed for %.0f ms: other runs waited"
            _log.warning(text, longest * 1_000, used * 1_000)
            longest, used, logged = 0.0, 0.0, due
