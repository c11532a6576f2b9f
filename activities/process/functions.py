"""Which Python functions may manifests name? Those that the worker was given: members, conditions, instructions."""

import asyncio
import importlib
import inspect
from collections.abc import Iterable
from functools import partial

from ...conversation.errors import FunctionFailed, UnknownResource
from ...resources.functions import Function, is_marked, name_of


class FunctionRegistry:
    """The functions of a worker, by their names."""

    def __init__(self, given: Iterable[Function] = ()) -> None:
        self._known = {name_of(each): each for each in given}

    @classmethod
    def of(cls, modules: Iterable[str], given: Iterable[Function] = ()) -> "FunctionRegistry":
        """Those that are marked in modules, which are imported, and others."""
        found = [each for name in modules for each in vars(importlib.import_module(name)).values()]
        return cls([*(each for each in found if is_marked(each)), *given])

    async def invoke(self, name: str, *given: object, **named: object) -> object:
        """What the function gives.

        Raises:
            UnknownResource: the worker has no such function.
            FunctionFailed: it has raised something; worth another try where that was a connection's or a timeout.
        """
        target = self._known.get(name)
        if target is None:
            known = ", ".join(sorted(self._known)) or "none"
            raise UnknownResource(f"the worker has no function '{name}'; known: {known}")
        value, error = await _outcome(partial(target, *given, **named))
        if error is None:
            return value
        text = f"the function '{name}' failed: {type(error).__name__}: {error}"
        raise FunctionFailed(text, retryable=isinstance(error, OSError | TimeoutError)) from error


async def _outcome(call: Function) -> tuple[object, BaseException | None]:
    """What a call gives, or what it raises, be it SystemExit: that would end the worker."""
    if not inspect.iscoroutinefunction(call):
        return await asyncio.to_thread(_outcome_here, call)
    try:
        return await call(), None
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task and task.cancelling():
            raise
        return None, error


def _outcome_here(call: Function) -> tuple[object, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error
