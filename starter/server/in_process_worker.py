"""Workers in a thread of the program's process, for runs that use the program's functions or keys."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

from ...resources.functions import Function
from ...resources.loader import Loaded
from ...resources.secret import Secrets
from ...temporal.client import PROGRAM
from ..runs.runs import RunHandle, wait_until_closed
from .connection import ServerLocation

if TYPE_CHECKING:
    from ...worker import RunsOfWorker

_log = logging.getLogger("baton")

WORKFLOW_THREADS = 4
"""The number of threads for workflow tasks, which take milliseconds."""

MAX_FUNCTION_THREADS = 1_000
"""The number of threads for synchronous functions. Each worker has its own limit; idle threads are reused."""

STOP_TIMEOUT = 60.0
"""Seconds for which a program waits for the end of its workers, which normally takes less than the grace time of 10 s.

The shutdown of a worker has hung in rare cases on a busy machine. The thread then ends with the process.
"""

FLEET_SETTINGS = (
    "BATON_ROLES",
    "BATON_MODEL_TASK_QUEUE",
    "BATON_TOOL_TASK_QUEUE",
    "BATON_HEALTH_PORT",
    "BATON_DEPLOYMENT",
    "BATON_BUILD_ID",
)
"""Settings for workers of a fleet, which don't apply to a program's own worker."""


@dataclass(eq=False)
class _SharedWorker:
    """A worker for runs with the same functions and Secrets. ``users`` counts the open ones."""

    task_queue: str
    functions: frozenset[Function]
    secrets: Secrets
    runs: "asyncio.Future[RunsOfWorker]"
    ended: asyncio.Event
    is_own: bool
    users: int = 0


class InProcessWorkers:
    """A thread with workers, until they are stopped, or the program's event loop ends.

    Runs with the same functions and Secrets share a worker and a task queue, until all of them are over. So a process
    that attaches to one of them later can execute the others, too. The thread has its own event loop, so that it sends
    heartbeats while the program blocks its loop, and is not canceled during its shutdown.
    """

    def __init__(self, server: ServerLocation, task_queue: str) -> None:
        self._server = server
        self._task_queue = task_queue
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._main()), name="baton workers", daemon=True)
        self._stopped = asyncio.Event()  # of the thread's loop, as are the next three
        self._workers: list[_SharedWorker] = []
        self._open = set[asyncio.Event]()
        self._tasks = set[asyncio.Task[None]]()
        self._ending = set[asyncio.Task[None]]()  # of the program's loop
        self._stopper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the thread; raises the errors of the start."""
        self._thread.start()
        await asyncio.wrap_future(self._started)
        self._stopper = asyncio.create_task(self._stop_at_end())

    async def execute(
        self,
        run: str,
        own: Loaded,
        functions: Sequence[Function],
        start_run: Callable[[str], Awaitable[RunHandle]],
        task_queue: str | None = None,
    ) -> RunHandle:
        """Starts a worker, calls ``start_run`` with its task queue, and executes the run until it is over.

        ``own`` are the manifests and Secrets of this run alone; ``task_queue`` is that of an open run. Raises the
        errors of either start.
        """
        loop = self._started.result()
        ready: Future[tuple[str, asyncio.Event]] = Future()
        working = asyncio.run_coroutine_threadsafe(self._work(run, task_queue, own, functions, ready), loop)
        queue, ended = await asyncio.wrap_future(ready)
        starting = asyncio.ensure_future(start_run(queue))

        async def end() -> None:
            await asyncio.wait([starting])
            if not starting.exception():
                await wait_until_closed(starting.result())
            loop.call_soon_threadsafe(ended.set)
            await asyncio.wrap_future(working)

        ending = asyncio.create_task(end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return await asyncio.shield(starting)

    async def stop(self) -> None:
        """Stops all workers and waits until they have ended."""
        if self._stopper:
            self._stopper.cancel()
            with suppress(asyncio.CancelledError):
                await self._stopper

    async def _stop_at_end(self) -> None:
        """Stops the thread when this task is canceled, as at the end of the event loop."""
        try:
            await asyncio.Event().wait()
        finally:
            self._started.result().call_soon_threadsafe(self._stopped.set)
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT)
            if self._thread.is_alive():
                _log.error("the program's workers have not stopped within %.0f s", STOP_TIMEOUT)

    async def _main(self) -> None:
        # The import takes a second, and most programs do not need it.
        from ...worker import WorkerThreads, open_shared_parts  # noqa: PLC0415

        threads = WorkerThreads(
            workflows=ThreadPoolExecutor(WORKFLOW_THREADS, "workflow"),
            functions=ThreadPoolExecutor(MAX_FUNCTION_THREADS, "function"),
        )
        try:
            client = await self._server.connect_as()
            async with open_shared_parts(client, worker_environment(self._server), threads) as self._shared:
                self._started.set_result(asyncio.get_running_loop())
                await self._stopped.wait()
                for worker in self._workers:  # before the resources of their runs, which activities still use
                    worker.ended.set()
                await asyncio.gather(*self._tasks)
                for ended in self._open:
                    ended.set()
                while self._open:
                    await asyncio.sleep(0.01)
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            threads.workflows.shutdown(wait=False)
            threads.functions.shutdown(wait=False, cancel_futures=True)

    async def _work(
        self,
        run: str,
        task_queue: str | None,
        own: Loaded,
        functions: Sequence[Function],
        ready: "Future[tuple[str, asyncio.Event]]",
    ) -> None:
        """Executes a run until the event passed to ``ready`` is set."""
        worker = self._worker_for(task_queue, frozenset(functions), own.secrets)
        worker.users += 1
        ended = asyncio.Event()
        self._open.add(ended)
        try:
            async with (await asyncio.shield(worker.runs)).registered(run, own, functions):
                if ready.set_running_or_notify_cancel():
                    ready.set_result((worker.task_queue, ended))
                    await ended.wait()
        except Exception as error:
            if ready.done():
                _log.exception("the worker of the task queue %s has failed", worker.task_queue)
            else:
                ready.set_exception(error)
        finally:
            self._open.discard(ended)
            worker.users -= 1
            if not worker.users:
                worker.ended.set()

    def _worker_for(self, task_queue: str | None, functions: frozenset[Function], secrets: Secrets) -> _SharedWorker:
        """The worker for such runs; started if there is none."""
        for worker in self._workers:
            is_alike = worker.is_own and worker.functions == functions and worker.secrets == secrets
            if not worker.ended.is_set() and (task_queue == worker.task_queue if task_queue else is_alike):
                return worker
        runs: asyncio.Future[RunsOfWorker] = asyncio.get_running_loop().create_future()
        queue = task_queue or f"{self._task_queue}{PROGRAM}{uuid.uuid4().hex}"
        worker = _SharedWorker(queue, functions, secrets, runs, asyncio.Event(), is_own=task_queue is None)
        self._workers.append(worker)
        task = asyncio.create_task(self._poll(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return worker

    async def _poll(self, worker: _SharedWorker) -> None:
        """Runs a worker until its last run is over."""
        from ...worker import run_worker_for_runs  # noqa: PLC0415

        environment = {**worker_environment(self._server), "BATON_TASK_QUEUE": worker.task_queue}
        own = Loaded(secrets=worker.secrets)
        try:
            async with run_worker_for_runs(self._shared, own, environment, [*worker.functions]) as runs:
                worker.runs.set_result(runs)
                await worker.ended.wait()
        except Exception as error:
            if worker.runs.done():
                _log.exception("the worker of the task queue %s has failed", worker.task_queue)
            else:
                worker.runs.set_exception(error)
        finally:
            worker.ended.set()
            self._workers.remove(worker)


def worker_environment(server: ServerLocation) -> dict[str, str]:
    """The environment of a worker in this process, which has all roles on one task queue.

    With this machine's local server, it shares the journal of the local worker.
    """
    state = {"BATON_HOME": str(server.state_dir.folder)} if server.state_dir else {}
    return {**server.environment, **dict.fromkeys(FLEET_SETTINGS, ""), **state}
