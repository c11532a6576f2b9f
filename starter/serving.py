"""How does a program work on its own runs? With a worker in its process, which knows its functions."""

import asyncio
import contextlib
import os
from collections.abc import Sequence

from temporalio.client import Client

from activities.functions import Function
from resources.loader import Loaded
from starter.home import Home


class Serving:
    """A worker that runs beside a program until it is stopped, or the program's event loop ends."""

    def __init__(self, client: Client, task_queue: str, own: Loaded, functions: Sequence[Function], home: Home | None):
        self._client, self._task_queue, self._own, self._functions = client, task_queue, own, functions
        self._environment = environment(home)
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve())

    async def up(self) -> None:
        """Waits until it works; raises what it can't work for."""
        await self._up

    async def stop(self) -> None:
        """Ends it and waits until it has ended."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _serve(self) -> None:
        from worker import running  # noqa: PLC0415  # it takes a second to import, and most programs don't need it

        try:
            async with running(self._client, self._own, self._environment, self._task_queue, functions=self._functions):
                self._up.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:
            if self._up.done():
                raise
            self._up.set_exception(error)


def environment(home: Home | None) -> dict[str, str]:
    """What a worker in this process is started with; on this machine it shares the journal of the one there."""
    return {**os.environ, **({"BATON_HOME": str(home.folder)} if home else {})}
