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
        for worker in workers:
            await stack.enter_async_context(worker)
        try:
            yield
        finally:
            # All at once, not one after the other as the stack would: each takes up to the whole grace period.
            await asyncio.gather(*(worker.shutdown() for worker in workers))


def stopped_by_signals(grace: float) -> asyncio.Event:
    """An event that SIGINT and SIGTERM set. The process ends at most ``grace`` + AFTER_GRACE seconds later.

    After that time faulthandler prints where it hangs and ends it with exit code 1, also during its start. That needs
    neither the event loop nor the interpreter's lock: a function that never returns can't keep the process alive.
    """
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        faulthandler.dump_traceback_later(grace + AFTER_GRACE, exit=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return stopped


_log = logging.getLogger("baton")

STEP = 0.05
"""Seconds between two measurements of the event loop's lag."""

HELD = 0.05
"""Seconds of CPU time within a lag that are logged."""

STALLED = 1.0
"""Seconds of lag that are logged even without CPU time of this process: it waited, or the machine was busy."""

LOG_EVERY = 10.0
"""Seconds between two lines in the log, each with the longest lag since the one before."""


@contextlib.asynccontextmanager
async def watch_event_loop() -> AsyncIterator[None]:
    """Measures the lag of the running event loop while the block runs, and logs a long one.

    While the loop is blocked, no heartbeat is sent and all other runs wait: what may take long belongs into a thread or
    a bounded process.
    """
    task = asyncio.create_task(_watch())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch() -> None:
    longest = 0.0
    cpu_time = 0.0  # of this process within the longest lag
    logged_at = -LOG_EVERY
    while True:
        due = time.monotonic() + STEP
        cpu_before = time.process_time()
        await asyncio.sleep(STEP)
        lag = time.monotonic() - due
        EVENT_LOOP_LAG.record(max(0.0, lag))
        if lag > longest:
            longest = lag
            cpu_time = min(lag, time.process_time() - cpu_before)
        if (cpu_time > HELD or longest > STALLED) and due - logged_at > LOG_EVERY:
            text = "the event loop was held for %.0f ms, of which this process computed for %.0f ms: other runs waited"
            _log.warning(text, longest * 1_000, cpu_time * 1_000)
            longest = 0.0
            cpu_time = 0.0
            logged_at = due


def leave_out_loaded_objects() -> None:
    """Exempts all objects that exist now from garbage collection: to be called once, when a worker process is ready.

    They are modules, classes and manifests, a quarter of a million objects that live as long as the process. A full
    collection over them was measured to hold the event loop for a fifth of a second.
    """
    gc.collect()
    gc.freeze()
