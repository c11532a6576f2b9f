"""The registered functions of a worker: Python functions that manifests name as members, conditions or instructions."""

import asyncio
import contextlib
import importlib
import logging
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel, ValidationError
from temporalio.exceptions import ApplicationError

from ...contracts.errors import FunctionFailed, ProgramMissing, UnknownResource
from ...contracts.settings import SettingsError
from ...observability.metrics import metered
from ...resources.functions import Context, Function, first_type, is_async, is_marked, name_of, with_context
from ...temporal.activity import idempotency_key, workflow_id

_log = logging.getLogger("baton")


@dataclass(frozen=True)
class CallPlace:
    """Who calls a function, in which turn, and the values of the session."""

    speaker: str = ""
    turn: int | None = None
    session: Mapping[str, object] = field(default_factory=dict)


_place_of_call: ContextVar[CallPlace] = ContextVar("place_of_call")


@contextlib.contextmanager
def calling_at(place: CallPlace) -> Iterator[None]:
    """Functions that the block calls get this place as their context."""
    token = _place_of_call.set(place)
    try:
        yield
    finally:
        _place_of_call.reset(token)


def marked_functions(modules: Iterable[str]) -> list[Function]:
    """Imports modules, and returns their functions that are marked with ``@function``.

    Raises SettingsError if there is no such module, and what a module raises when it is imported.
    """
    values = [value for name in modules for value in vars(_imported(name)).values()]
    return [value for value in values if is_marked(value)]


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise SettingsError(f"BATON_FUNCTIONS: there is no module '{name}'") from None
        raise  # the module is there, and imports another one that isn't


class FunctionRegistry:
    """The functions of a worker, by the names that manifests use.

    At most ``max_concurrent`` calls of functions that are not async run at once, in ``threads`` or the registry's own
    threads; further calls wait. Async functions run in the event loop of the ``program``, or in the worker's. Functions
    get the ``dependencies`` with their context. Tracebacks of failures are logged after ``redact``.
    """

    def __init__(
        self,
        functions: Iterable[Function],
        max_concurrent: int,
        threads: ThreadPoolExecutor | None = None,
        program: asyncio.AbstractEventLoop | None = None,
        dependencies: object = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._by_name = {name_of(function): function for function in functions}
        self._shared_slots = asyncio.Semaphore(max_concurrent) if threads else None
        self._threads = threads or ThreadPoolExecutor(max_concurrent, "function")  # asyncio's pool is for DNS lookups
        self._program = program
        self._dependencies = dependencies
        self._redact = redact
        self._is_closed = False

    @property
    def names(self) -> frozenset[str]:
        """The names of the functions."""
        return frozenset(self._by_name)

    def close(self) -> None:
        """Cancels calls that still wait for a thread. Does not wait for running ones."""
        self._is_closed = True
        if not self._shared_slots:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def find(self, name: str) -> Function:
        """The function with this name. Raises UnknownResource if the worker has none."""
        if target := self._by_name.get(name):
            return target
        known = ", ".join(sorted(self._by_name)) or "none"
        raise UnknownResource(f"the worker has no function '{name}'; known: {known}")

    def argument(self, name: str, by_default: object, message: str, *others: object) -> object:
        """The argument of a function for a turn or a decision, by the type of its first parameter.

        ``str`` is the last ``message``, a pydantic model the structured value in it, and the type of one of the
        ``others`` that value; anything else gets the value ``by_default``. Raises FunctionFailed and UnknownResource.
        """
        wanted = first_type(self.find(name))
        if wanted is str:
            return message
        if not (isinstance(wanted, type) and issubclass(wanted, BaseModel)):
            return by_default
        for value in (by_default, *others):
            if isinstance(value, wanted):
                return value
        try:
            return wanted.model_validate_json(message)
        except ValidationError as error:
            parts = [(".".join(map(str, problem["loc"])), problem["msg"]) for problem in error.errors()[:3]]
            problems = "; ".join(": ".join(filter(None, part)) for part in parts)
            text = f"the last message is not a {wanted.__name__} for the function '{name}': {problems}"
            raise FunctionFailed(text) from None

    async def invoke(self, name: str, /, *arguments: object, **parameters: object) -> object:
        """Calls a function and returns its result. A function that is not async runs in a thread.

        Raises:
            UnknownResource: the worker has no such function.
            FunctionFailed: the function raised an exception; retryable for an OSError or a TimeoutError.
        """
        target = self.find(name)
        call = partial(with_context(target, arguments, self._context), **parameters)
        with metered("function", name):
            value, error = await self._outcome(call)
            if error is not None:
                frames = "".join(traceback.format_exception(error)).rstrip()
                _log.error("the function '%s' failed\n%s", name, self._redact(frames))
                raise _failed(name, target, error) from error
            return value

    def _context(self) -> Context:
        """The context of the call in the current activity."""
        place = _place_of_call.get(CallPlace())
        return Context(
            run=workflow_id().partition("/")[0],
            speaker=place.speaker,
            idempotency_key=idempotency_key(),
            turn=place.turn,
            session=place.session,
            dependencies=self._dependencies,
        )

    async def _outcome(self, function: Function) -> tuple[object, BaseException | None]:
        """The result or the exception of a call. Catches SystemExit too, which would otherwise end the worker."""
        if not is_async(function):
            call = partial(copy_context().run, _outcome_in_thread, function)
            async with self._shared_slots or contextlib.nullcontext():
                if self._is_closed:
                    raise asyncio.CancelledError
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        if self._program is None:
            return await _outcome_of(function)
        if self._program.is_closed():
            raise program_ended()
        outcome = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_outcome_of(function), self._program))
        try:
            return await outcome
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            raise program_ended() from None


@contextlib.contextmanager
def converting(name: str, value: object) -> Iterator[None]:
    """Raises FunctionFailed if the result of a function can't become a text.

    Such are bytes that are not UTF-8, or a list that contains itself. The function has been executed: it is not called
    again.
    """
    try:
        yield
    except Exception as error:
        what = f"the result of the function '{name}', of the type {type(value).__name__}, can't be a text"
        raise FunctionFailed(f"{what}: {type(error).__name__}: {error}") from error


def _failed(name: str, target: Function, error: BaseException) -> FunctionFailed:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    text = f"the function '{name}' failed: {what}{_place(error, target)}"
    return FunctionFailed(text, retryable=isinstance(error, OSError | TimeoutError))


_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _place(error: BaseException, function: Function) -> str:
    """Where an error was raised: the last frame in the user's own code, as `` (team.py:14, in shorten)``."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    if frames:
        last = own[-1] if own else frames[0]  # a library function that was registered itself: its first frame
        return f" ({Path(last.filename).name}:{last.lineno}, in {last.name})"
    code = getattr(function, "__code__", None)  # without frames the call itself failed, as with wrong arguments
    return f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""


def program_ended() -> ApplicationError:
    """The error for a call whose program ends: it is attempted again once the run has a program."""
    return ProgramMissing("the program has ended during the call").with_details({"wait": 0.0})


async def _outcome_of(function: Function) -> tuple[object, BaseException | None]:
    try:
        return await function(), None
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task and task.cancelling():  # the call itself was canceled, not a task inside the function
            raise
        return None, error


def _outcome_in_thread(function: Function) -> tuple[object, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:
        return None, error
