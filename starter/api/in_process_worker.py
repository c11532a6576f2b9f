"""How does a program work on its own runs? With a worker in a thread of its process, which knows its functions."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread

from ...conversation.temporal.temporal_client import connect
from ...resources.functions import Function
from ...resources.loader import Loaded
from ..runs.runs import Handle, is_over
from ..server.connection import Place

FLEET = (
    "BATON_SERVES",
    "BATON_MODEL_TASK_QUEUE",
    "BATON_TOOL_TASK_QUEUE",
    "BATON_HEALTH_PORT",
    "BATON_DEPLOYMENT",
    "BATON_BUILD_ID",
)
"""What is said to the workers of a fleet, and not to a program's own."""


class Serving:
    """A worker beside a program, until its run is over, it is stopped, or the program's event loop ends.

    It has an event loop of its own: so whatever the program waits for, it gives signs of life, and nothing cancels it
    in the middle of its end.
    """

    def __init__(self, place: Place, task_queue: str, own: Loaded, functions: Sequence[Function]) -> None:
        self._place, self._task_queue, self._own, self._functions = place, task_queue, own, functions
        self._up: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._serve()), name=f"worker {task_queue}", daemon=True)

    async def work_on(self, begin: Callable[[], Awaitable[Handle]]) -> Handle:
        """Starts it, then a run, on which it works until that is over; raises what either can't be started for."""
        self._thread.start()
        loop, stopped = await asyncio.wrap_future(self._up)
        begun = asyncio.ensure_future(begin())
        self._keeper = asyncio.create_task(self._keep(begun, loop, stopped))
        return await asyncio.shield(begun)

    async def stop(self) -> None:
        """Ends it and waits until it has ended."""
        self._keeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeper

    async def _keep(
        self, begun: "asyncio.Future[Handle]", loop: asyncio.AbstractEventLoop, stopped: asyncio.Event
    ) -> None:
        """Ends the worker when the run is over, or this task is cancelled, as all are when an event loop ends."""
        try:
            await asyncio.wait([begun])
            if not begun.exception():
                await is_over(begun.result())
        finally:
            loop.call_soon_threadsafe(stopped.set)
            await asyncio.to_thread(self._thread.join)

    async def _serve(self) -> None:
        from ...worker import running  # noqa: PLC0415  # it takes a second to import, and most programs don't need it

        try:
            client = await connect(self._place.address)
            settings = {**environment(self._place), "BATON_TASK_QUEUE": self._task_queue}
            async with running(client, self._own, settings, self._functions):
                stopped = asyncio.Event()
                self._up.set_result((asyncio.get_running_loop(), stopped))
                await stopped.wait()
        except Exception as error:
            if self._up.done():
                raise
            self._up.set_exception(error)


def environment(place: Place) -> dict[str, str]:
    """What a worker in this process is started with; on this machine it shares the journal of the one there.

    It serves everything on one task queue, whatever the workers of a fleet do.
    """
    return {**os.environ, **dict.fromkeys(FLEET, ""), **({"BATON_HOME": str(place.home.folder)} if place.home else {})}
