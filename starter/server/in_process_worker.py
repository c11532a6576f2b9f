"""A worker in a thread of the program's process, for runs that use the program's functions or keys."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread

from ...resources.functions import Function
from ...resources.loader import Loaded
from ...temporal.client import connect
from ..runs.runs import RunHandle, wait_until_closed
from .connection import ServerLocation

FLEET_SETTINGS = (
    "BATON_ROLES",
    "BATON_MODEL_TASK_QUEUE",
    "BATON_TOOL_TASK_QUEUE",
    "BATON_HEALTH_PORT",
    "BATON_DEPLOYMENT",
    "BATON_BUILD_ID",
)
"""Settings for the workers of a fleet; they don't apply to a program's own worker."""


class InProcessWorker:
    """A worker in a thread, until its run is over, it is stopped, or the program's event loop ends.

    It has an event loop of its own: so it sends heartbeats while the program blocks its loop, and is not cancelled in
    the middle of its shutdown.
    """

    def __init__(self, server: ServerLocation, task_queue: str, own: Loaded, functions: Sequence[Function]) -> None:
        self._server = server
        self._task_queue = task_queue
        self._own = own
        self._functions = functions
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._run_worker()), name=f"worker {task_queue}", daemon=True)

    async def execute(self, start_run: Callable[[], Awaitable[RunHandle]]) -> RunHandle:
        """Starts the worker, then a run, and works on it until it is over; raises what hinders either."""
        self._thread.start()
        loop, stopped = await asyncio.wrap_future(self._started)
        starting = asyncio.ensure_future(start_run())
        self._stopper = asyncio.create_task(self._stop_after(starting, loop, stopped))
        return await asyncio.shield(starting)

    async def stop(self) -> None:
        """Stops it and waits until it has ended."""
        self._stopper.cancel()
        with suppress(asyncio.CancelledError):
            await self._stopper

    async def _stop_after(
        self, starting: "asyncio.Future[RunHandle]", loop: asyncio.AbstractEventLoop, stopped: asyncio.Event
    ) -> None:
        """Stops the worker when the run is over, or this task is cancelled, as all are when an event loop ends."""
        try:
            await asyncio.wait([starting])
            if not starting.exception():
                await wait_until_closed(starting.result())
        finally:
            loop.call_soon_threadsafe(stopped.set)
            await asyncio.to_thread(self._thread.join)

    async def _run_worker(self) -> None:
        from ...worker import run_worker  # noqa: PLC0415  # the import takes a second, and most programs don't need it

        try:
            client = await connect(self._server.address)
            settings = {**worker_environment(self._server), "BATON_TASK_QUEUE": self._task_queue}
            async with run_worker(client, self._own, settings, self._functions):
                stopped = asyncio.Event()
                self._started.set_result((asyncio.get_running_loop(), stopped))
                await stopped.wait()
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)


def worker_environment(server: ServerLocation) -> dict[str, str]:
    """The environment of a worker in this process: it has all roles on one task queue.

    With this machine's own server it shares the journal of the worker there.
    """
    state = {"BATON_HOME": str(server.state_dir.folder)} if server.state_dir else {}
    return {**os.environ, **dict.fromkeys(FLEET_SETTINGS, ""), **state}
