"""The worker's process: shutdown, event loop lag, and garbage collection."""

import asyncio
import contextlib
import faulthandler
import gc
import itertools
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence

from temporalio.worker import Worker

from ...contracts.settings import on_signal
from ...observability.metrics import EVENT_LOOP_LAG

AFTER_GRACE = 5.0
"""Seconds after the graceful shutdown in which connections are closed and threads end."""


_log = logging.getLogger("baton")

UNANSWERED = 2.0
"""Seconds after the graceful shutdown in which Temporal is to take the last results, and the worker's farewell."""


@contextlib.asynccontextmanager
async def run_all(
    workers: Sequence[Worker], grace: float, give_up: Callable[[], object] = lambda: None
) -> AsyncIterator[None]:
    """Runs workers while the block runs, and shuts them down together, at most ``grace`` + UNANSWERED seconds later.

    If a worker ends by itself, which only a fatal error makes it do, that is logged, the task that has entered the
    block is canceled, and the error is raised from the block.

    ``give_up`` is called after ``grace`` seconds, when the SDK cancels the activities. Its shutdown waits for Temporal
    without a limit. In an outage the workers are left as they are: Temporal notices by itself that they are gone, and
    other workers repeat what it has not heard of.
    """
    entered = asyncio.current_task()
    failures: list[BaseException] = []
    is_ending = False

    async def run(worker: Worker) -> None:
        try:
            await worker.run()
        except BaseException as error:
            if is_ending:
                return
            failures.append(error)
            if not isinstance(error, asyncio.CancelledError):  # the program ends all that runs in its event loop
                _log.exception("the worker of the task queue %s stopped unexpectedly", worker.task_queue)
            if entered:
                entered.cancel()

    running = [asyncio.create_task(run(worker)) for worker in workers]
    try:
        yield
    except asyncio.CancelledError:
        if failures:
            raise failures[0] from None
        raise
    finally:
        is_ending = True
        # Concurrently: a shutdown takes up to the whole grace period.
        shutdown = asyncio.gather(*(worker.shutdown() for worker in workers), *running)
        giving_up = asyncio.get_running_loop().call_later(grace, give_up)
        try:
            async with asyncio.timeout(grace + UNANSWERED):
                await shutdown
        except TimeoutError:
            _log.warning("this worker stops without an answer from Temporal: other workers continue its runs")
        finally:
            giving_up.cancel()
            give_up()


def stopped_by_signals(grace: float) -> asyncio.Event:
    """An event that SIGINT and SIGTERM set. The process ends at most ``grace`` + AFTER_GRACE seconds later.

    Then a thread logs what all threads do, and ends the process with exit code 1, even during start-up. If a function
    never releases the GIL, which the thread needs, faulthandler does the same a moment later, on stderr.
    """
    stopped = asyncio.Event()

    def stop() -> None:
        if not stopped.is_set():
            watchdog = threading.Timer(grace + AFTER_GRACE, _end_process, [asyncio.get_running_loop()])
            watchdog.daemon = True
            watchdog.start()
        stopped.set()
        faulthandler.dump_traceback_later(grace + AFTER_GRACE + WITHOUT_GIL, exit=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        on_signal(number, stop)
    return stopped


WITHOUT_GIL = 0.5
"""Seconds for the thread that ends the process to get the GIL."""


SHOWN_TASKS = 20
"""Tasks of the event loop that are shown, of which a worker may have thousands."""


def _end_process(loop: asyncio.AbstractEventLoop) -> None:
    """Logs what all threads do, and the tasks of the event loop, and ends the process with exit code 1."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = (
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )
    tasks = (_stack_of(task) for task in itertools.islice(asyncio.all_tasks(loop), SHOWN_TASKS))
    text = "this process did not stop in time, and is ended"
    stacks = "\n".join((*threads, *tasks))
    _log.handle(_log.makeRecord(_log.name, logging.CRITICAL, __file__, 0, text, (), None, sinfo=stacks))
    logging.shutdown()
    os._exit(1)


def _stack_of(task: "asyncio.Task[object]") -> str:
    """The stack of a task, through everything that it awaits."""
    frames = list[traceback.FrameSummary]()
    awaited: object = task.get_coro()
    while frame := getattr(awaited, "cr_frame", None):
        frames += traceback.extract_stack(frame, limit=1)
        awaited = getattr(awaited, "cr_await", None)
    return f"Task {task.get_name()}:\n{''.join(traceback.format_list(frames))}"


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
        used = min(lag, time.process_time() - cpu_before)
        is_reported = used > HELD or lag > STALLED  # small lags of a busy machine hide none of these
        if is_reported and lag > longest:
            longest = lag
            cpu_time = used
        if longest and due - logged_at > LOG_EVERY:
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
