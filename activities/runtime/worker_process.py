"""The worker's process: shutdown, event loop lag, and garbage collection."""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import signal
import time
from collections.abc import AsyncIterator, Sequence

from temporalio.worker import Worker

from ...contracts.settings import on_signal
from ...observability.metrics import EVENT_LOOP_LAG

AFTER_GRACE = 5.0
"""Seconds after the graceful shutdown in which connections are closed and threads end."""


@contextlib.asynccontextmanager
async def run_all(workers: Sequence[Worker]) -> AsyncIterator[None]:
    """Runs workers while the block runs, and shuts them down together."""
    async with contextlib.AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        try:
            yield
        finally:
            # Concurrently, not one by one as the stack would: a shutdown takes up to the whole grace period.
            await asyncio.gather(*(worker.shutdown() for worker in workers))


def stopped_by_signals(grace: float) -> asyncio.Event:
    """An event that SIGINT and SIGTERM set. The process ends at most ``grace`` + AFTER_GRACE seconds later.

    After that time faulthandler dumps the traceback and ends it with exit code 1, even during start-up. That needs
    neither the event loop nor the GIL: a function that never returns can't keep the process alive.
    """
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        faulthandler.dump_traceback_later(grace + AFTER_GRACE, exit=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        on_signal(number, stop)
    return stopped


_log = logging.getLogger("baton")

STEP = 0.05
"""Seconds between two measurements of the event loop's lag."""

HELD = 0.05
"""A lag with more CPU time of this process than this, in seconds, is logged."""

STALLED = 1.0
"""A longer lag, in seconds, is logged even without CPU time: the process was blocked, or the machine was busy."""

LOG_EVERY = 10.0
"""Seconds between two log lines, which report the longest lag since the previous one."""

START = 2.0
"""Seconds after a worker's start for which lags are only measured, not logged: it still loads libraries."""


@contextlib.asynccontextmanager
async def watch_event_loop(quiet: float = 0.0) -> AsyncIterator[None]:
    """Measures the lag of the running event loop while the block runs, and logs long lags after ``quiet`` seconds.

    While the loop is blocked, no heartbeat is sent and all other runs wait: slow code belongs in a thread or a bounded
    process.
    """
    task = asyncio.create_task(_watch(time.monotonic() + quiet))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch(quiet_until: float) -> None:
    longest = 0.0
    cpu_time = 0.0  # of this process within the longest lag
    logged_at = -LOG_EVERY
    while True:
        due = time.monotonic() + STEP
        cpu_before = time.process_time()
        await asyncio.sleep(STEP)
        lag = time.monotonic() - due
        EVENT_LOOP_LAG.record(max(0.0, lag))
        if due < quiet_until:
            continue
        if lag > longest:
            longest = lag
            cpu_time = min(lag, time.process_time() - cpu_before)
        if (cpu_time > HELD or longest > STALLED) and due - logged_at > LOG_EVERY:
            text = "the event loop was blocked for %.0f ms, with %.0f ms of CPU time of this process: other runs waited"
            _log.warning(text, longest * 1_000, cpu_time * 1_000)
            longest = 0.0
            cpu_time = 0.0
            logged_at = due


def leave_out_loaded_objects() -> None:
    """Exempts all existing objects from garbage collection. Call it once, when the worker process is ready.

    They are modules, classes and manifests: a quarter of a million objects that live as long as the process. A full
    collection over them blocked the event loop for 0.2 s in a measurement.
    """
    gc.collect()
    gc.freeze()
