"""The registered functions of a worker: Python functions that manifests name as members, conditions or instructions."""

import asyncio
import importlib
import inspect
import sysconfig
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path

from ...contracts.errors import FunctionFailed, UnknownResource
from ...observability.metrics import metered
from ...resources.functions import Function, is_marked, name_of


class FunctionRegistry:
    """The functions of a worker, by the names that manifests use."""

    def __init__(self, functions: Iterable[Function], max_concurrent: int) -> None:
        self._by_name = {name_of(function): function for function in functions}
        self._threads = ThreadPoolExecutor(max_concurrent, "function")  # asyncio's own are for looking up addresses

    @classmethod
    def of(cls, modules: Iterable[str], functions: Iterable[Function], max_concurrent: int) -> "FunctionRegistry":
        """The functions that are marked with ``@function`` in ``modules``, which it imports, and ``functions``.

        At most ``max_concurrent`` of those that are not async run at once; others wait.
        """
        values = [value for name in modules for value in vars(importlib.import_module(name)).values()]
        return cls([*(value for value in values if is_marked(value)), *functions], max_concurrent)

    def close(self) -> None:
        """Begins no function that still waits for a thread; those that run are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def find(self, name: str) -> Function:
        """The function of that name; raises UnknownResource if the worker has none."""
        if target := self._by_name.get(name):
            return target
        known = ", ".join(sorted(self._by_name)) or "none"
        raise UnknownResource(f"the worker has no function '{name}'; known: {known}")

    async def invoke(self, name: str, /, *arguments: object, **named: object) -> object:
        """What the function returns. A function that is not async runs in a thread.

        Raises:
            UnknownResource: the worker has no such function.
            FunctionFailed: it raised something; retryable if that was a failed connection or a timeout.
        """
        target = self.find(name)
        with metered("function", name):
            value, error = await self._outcome(partial(target, *arguments, **named))
            if error is not None:
                raise _failed(name, target, error) from error
            return value

    async def _outcome(self, function: Function) -> tuple[object, BaseException | None]:
        """What a function returns or raises; SystemExit too, which would otherwise end the worker."""
        if not inspect.iscoroutinefunction(function):
            call = partial(copy_context().run, _outcome_in_thread, function)
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            return await function(), None
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task and task.cancelling():  # the activity was cancelled, not something within the function
                raise
            return None, error


def _failed(name: str, target: Function, error: BaseException) -> FunctionFailed:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    text = f"the function '{name}' failed: {what}{_place(error, target)}"
    return FunctionFailed(text, retryable=isinstance(error, OSError | TimeoutError))


_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _place(error: BaseException, function: Function) -> str:
    """Where an error was raised: the last place in the program's own code, as `` (team.py:14, in shorten)``."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    if frames:
        last = own[-1] if own else frames[0]  # the first one of a library is what the function called
        return f" ({Path(last.filename).name}:{last.lineno}, in {last.name})"
    code = getattr(function, "__code__", None)  # it could not be called at all
    return f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""


def _outcome_in_thread(function: Function) -> tuple[object, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:
        return None, error
