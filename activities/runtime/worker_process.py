"""The worker's process: its shutdown, its event loop, and its garbage collection."""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import signal
import time
from collections.abc import AsyncIterator, Sequence

from temporalio.worker import Worker

from ...observability.metrics import EVENT_LOOP_LAG

AFTER_GRACE = 5.0
"""Seconds after the graceful shutdown within which connections are closed and threads end."""


@contextlib.asynccontextmanager
async def run_all(workers: Sequence[Worker]) -> AsyncIterator[None]:
    """Runs workers while the block runs, and shuts them down together."""
    async with contextlib.AsyncExitStack() as stack:
        for each in workers:
            await stack.enter_async_context(each)
        try:
            yield
        finally:
            await asyncio.gather(*(each.shutdown() for each in workers))


def stopped_by_signals(grace: float) -> asyncio.Event:
    """An event that SIGINT and SIGTERM set, by which the process is to end within ``grace`` seconds and some.

    After that time it ends with exit code 1 and says where it hung, also if it has only begun to start. That needs
    neither the event loop nor the interpreter's lock: a function that never returns can't keep the process.
    """
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        faulthandler.dump_traceback_later(grace + AFTER_GRACE, exit=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return stopped


# While it is held, no heartbeat is sent and no other run goes on: what may take long belongs into a bounded process.

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


def leave_out_loaded_objects() -> None:
    """Takes all objects that exist now out of later collections: to be called once, when a worker process is ready.

    They are modules, classes and manifests, a quarter of a million objects, and live as long as the process. Looking
    at all of them was measured to hold the event loop for a fifth of a second.
    """
    gc.collect()
    gc.freeze()
