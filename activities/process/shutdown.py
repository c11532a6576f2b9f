"""Ends a worker: its parts together, and the process in time, whatever still runs in it."""

import asyncio
import contextlib
import faulthandler
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


def end_process_after(seconds: float) -> None:
    """Ends this process that much later, with exit code 1, unless it has ended by itself; says where it hung.

    Needs neither the event loop nor the interpreter's lock: a function that never returns can't keep the process.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
