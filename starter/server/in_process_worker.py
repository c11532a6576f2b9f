"""The worker in a thread of the program's process, for runs that use the program's functions or keys."""

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
from ...temporal.client import PROGRAM
from ..runs.runs import RunHandle, wait_until_closed
from .connection import ServerLocation

if TYPE_CHECKING:
    from ...worker import RunsOfWorker

_log = logging.getLogger("baton")

WORKFLOW_THREADS = 4
"""The number of threads for workflow tasks, which take milliseconds."""

MAX_FUNCTION_THREADS = 1_000
"""The number of threads for synchronous functions. Each run has its own limit; idle threads are reused."""

AFTER_GRACE = 5.0
"""Seconds after the graceful shutdown of running activities, after which the shutdown of a worker is abandoned."""

CANCEL_TIMEOUT = 2.0
"""Seconds for which canceled tasks may still run."""

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
class _Worker:
    """A worker of one task queue. ``users`` counts the open runs that it executes."""

    task_queue: str
    runs: "asyncio.Future[RunsOfWorker]"
    ended: asyncio.Event
    users: int = 0


class InProcessWorker:
    """A thread with the worker of a connection, until it is stopped, or the program's event loop ends.

    All runs of the connection share one worker and one task queue; each run has its own functions and Secrets. Runs to
    which the connection attaches, whose program has ended, are on another task queue: the worker of that queue ends
    with the last of them. Tasks of runs that were not passed to ``execute`` are declined, and wait for their program.

    The thread has its own event loop, so that it sends heartbeats while the program blocks its loop, and is not
    canceled during its shutdown. Synchronous functions run in further threads, and async functions in the event loop of
    the program, as their clients and connection pools belong to it.
    """

    def __init__(self, server: ServerLocation, task_queue: str, dependencies: object = None) -> None:
        self._server = server
        self._dependencies = dependencies
        self._own_queue = f"{task_queue}{PROGRAM}{uuid.uuid4().hex}"
        self._program = asyncio.get_running_loop()
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = Thread(target=self._run, name="baton worker", daemon=True)
        self._stopped = asyncio.Event()  # of the thread's loop, as are the next three
        self._workers: dict[str, _Worker] = {}
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
        """Calls ``start_run`` with the task queue of the worker, and executes the run until it is over.

        ``own`` are the manifests and Secrets of this run alone; ``task_queue`` is that of an open run. Raises the
        errors of the worker's start and of the run's.
        """
        loop = self._started.result()
        ready: Future[tuple[str, asyncio.Event]] = Future()
        work = self._work(run, task_queue or self._own_queue, own, functions, ready)
        working = asyncio.run_coroutine_threadsafe(work, loop)
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
        """Stops the worker and waits until it has ended."""
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
            await asyncio.to_thread(self._thread.join)
            for task in self._ending:  # they wait for the end of runs that this process no longer executes
                task.cancel()

    def _run(self) -> None:
        """The thread. It ends in limited time, whatever the tasks of its event loop do."""
        loop = asyncio.new_event_loop()
        loop.run_until_complete(self._main())
        remaining = asyncio.all_tasks(loop)
        for task in remaining:
            task.cancel()
        if remaining:
            loop.run_until_complete(asyncio.wait(remaining, timeout=CANCEL_TIMEOUT))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if not asyncio.all_tasks(loop):
            loop.close()

    async def _main(self) -> None:
        # The import takes a second, and most programs do not need it.
        from ...worker import ProgramThreads, open_shared_parts  # noqa: PLC0415

        threads = ProgramThreads(
            workflows=ThreadPoolExecutor(WORKFLOW_THREADS, "workflow"),
            functions=ThreadPoolExecutor(MAX_FUNCTION_THREADS, "function"),
            program=self._program,
            dependencies=self._dependencies,
        )
        try:
            client = await self._server.connect_as()
            async with open_shared_parts(client, worker_environment(self._server), threads) as self._shared:
                self._started.set_result(asyncio.get_running_loop())
                await self._stopped.wait()
                await self._end_workers()
        except Exception as error:
            if self._started.done():
                _log.exception("the program's worker has failed")
            else:
                self._started.set_exception(error)
        finally:
            threads.workflows.shutdown(wait=False)
            threads.functions.shutdown(wait=False, cancel_futures=True)

    async def _end_workers(self) -> None:
        """Ends the workers, and then the resources of their runs, which activities use until then.

        The shutdown of the SDK's worker may hang: on a poll that the server has not ended, or on an activity that does
        not end. Nothing is lost if it is abandoned: other processes take over its tasks after their timeouts.
        """
        from ...activities.runtime.settings import Settings  # noqa: PLC0415

        for worker in self._workers.values():
            worker.ended.set()
        if self._tasks:
            grace = Settings.of(worker_environment(self._server)).graceful_shutdown_seconds
            _, pending = await asyncio.wait(self._tasks, timeout=grace + AFTER_GRACE)
            if pending:
                _log.warning("the shutdown of the program's worker has not ended after %g s", grace + AFTER_GRACE)
                for task in pending:
                    task.cancel()
        for ended in self._open:
            ended.set()
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                while self._open:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            _log.warning("the resources of the program's runs have not been closed after %g s", CANCEL_TIMEOUT)

    async def _work(
        self,
        run: str,
        task_queue: str,
        own: Loaded,
        functions: Sequence[Function],
        ready: "Future[tuple[str, asyncio.Event]]",
    ) -> None:
        """Executes a run until the event passed to ``ready`` is set."""
        worker = self._worker_for(task_queue)
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
            if not worker.users and worker.task_queue != self._own_queue:
                worker.ended.set()

    def _worker_for(self, task_queue: str) -> _Worker:
        """The worker of a task queue; started if there is none."""
        known = self._workers.get(task_queue)
        if known and not known.ended.is_set():
            return known
        worker = _Worker(
            task_queue=task_queue,
            runs=asyncio.get_running_loop().create_future(),
            ended=asyncio.Event(),
        )
        self._workers[task_queue] = worker
        task = asyncio.create_task(self._poll(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return worker

    async def _poll(self, worker: _Worker) -> None:
        """Runs a worker until it is to end."""
        from ...worker import run_worker_for_runs  # noqa: PLC0415

        environment = {**worker_environment(self._server), "BATON_TASK_QUEUE": worker.task_queue}
        try:
            async with run_worker_for_runs(self._shared, environment) as runs:
                worker.runs.set_result(runs)
                await worker.ended.wait()
        except Exception as error:
            if worker.runs.done():
                _log.exception("the worker of the task queue %s has failed", worker.task_queue)
            else:
                worker.runs.set_exception(error)
        finally:
            worker.ended.set()
            if self._workers.get(worker.task_queue) is worker:
                del self._workers[worker.task_queue]


def worker_environment(server: ServerLocation) -> dict[str, str]:
    """The environment of a worker in this process, which has all roles on one task queue.

    With this machine's local server, it shares the journal of the local worker.
    """
    state = {"BATON_HOME": str(server.state_dir.folder)} if server.state_dir else {}
    return {**server.environment, **dict.fromkeys(FLEET_SETTINGS, ""), **state}
