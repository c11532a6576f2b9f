"""Says where a test hangs.

pytest-timeout prints the stacks of threads, not what the tasks of the event loop wait for. And it prints them on the
standard output, which a process of pytest-xdist does not have.
"""

import asyncio
import faulthandler
import gc
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import AsyncGeneratorType
from typing import Any


class HangReporter:
    """Ends the process when a test reaches its timeout, after a report on what was the standard error at its start."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._stderr = os.dup(2)
        self._log = _LastWarnings()
        logging.getLogger().addHandler(self._log)

    def watch(self, test: str, seconds: float) -> Callable[[], None]:
        """Begins to count; what is returned ends it."""
        timer = threading.Timer(seconds, self._end, [test, seconds])
        timer.daemon = True
        timer.start()
        return timer.cancel

    def _end(self, test: str, seconds: float) -> None:
        try:
            self._write(f"\n{test} has not ended within {seconds:g} s. All tasks and threads:\n")
            for task in asyncio.all_tasks(self.loop) if self.loop else ():
                self._write(f"\nTask {task.get_name()}:\n{''.join(_stack(task))}")
            faulthandler.dump_traceback(self._stderr)
            self._write("\nThe last warnings:\n" + "\n".join(self._log.lines))
        finally:
            os._exit(1)

    def _write(self, text: str) -> None:
        os.write(self._stderr, text.encode())


class _LastWarnings(logging.Handler):
    """Keeps the last warnings and errors: those that pytest has captured are lost with the process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=30)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def _stack(task: "asyncio.Task[Any]") -> Iterator[str]:
    """The lines at which a task waits, the outermost first."""
    waiting: Any = task.get_coro()
    while waiting is not None:
        for attribute in ("cr_frame", "gi_frame", "ag_frame"):
            if frame := getattr(waiting, attribute, None):
                yield from traceback.format_list(traceback.extract_stack(frame, limit=1))
        waiting = _awaited_by(waiting)


def _awaited_by(waiting: Any) -> Any:
    for attribute in ("cr_await", "gi_yieldfrom", "ag_await"):
        if awaited := getattr(waiting, attribute, None):
            return awaited
    if type(waiting).__name__ == "async_generator_asend":  # it does not tell its generator otherwise
        return next(
            (referent for referent in gc.get_referents(waiting) if isinstance(referent, AsyncGeneratorType)), None
        )
    return None
