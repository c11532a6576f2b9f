"""Watches the event loop of a test: how long it did nothing but one thing."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator

STEP = 0.002
"""Seconds between two looks at the clock."""


class Waits:
    """How long the event loop was kept from what waited for it, in seconds; ``longest`` is the longest time so far.

    ``held`` is the longest processor time of this process within such a time: what a busy machine adds does not count.
    ``used`` is the processor time of this process in the whole block.
    """

    def __init__(self) -> None:
        self.longest = self.total = self.held = self.used = 0.0

    @property
    def share(self) -> float:
        """The longest time, as a part of the time of the whole block."""
        return self.longest / self.total

    async def watch(self) -> None:
        """Looks at the clock until it is cancelled."""
        while True:
            before, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(STEP)
            self.longest = max(self.longest, time.perf_counter() - before - STEP)
            self.held = max(self.held, time.process_time() - used)


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[Waits]:
    """Watches the event loop while the block runs.

    As in a worker process, collections of garbage leave out what is loaded, for the rest of this process: a collection
    of all that the tests before this one have left takes a second.
    """
    gc.freeze()
    waits = Waits()
    task = asyncio.create_task(waits.watch())
    await asyncio.sleep(0)
    began, used = time.perf_counter(), time.process_time()
    try:
        yield waits
        await asyncio.sleep(2 * STEP)
        waits.total, waits.used = time.perf_counter() - began, time.process_time() - used
    finally:
        task.cancel()
