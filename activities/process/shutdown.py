"""Ends a worker: its parts together, and the process in time, whatever still runs in it."""

import asyncio
import contextlib
import faulthandler
import signal
from collections.abc import AsyncIterator, Sequence

from temporalio.worker import Worker

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
