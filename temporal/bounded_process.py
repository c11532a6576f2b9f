"""Runs a function in a subprocess, with limits on its time, memory and result.

Conditions, schemas and filters are evaluated here, as they may need much CPU time. A thread could not be killed, and
would hold the GIL and so block the worker's event loop.
"""

import asyncio
import json
import marshal
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

from pydantic import JsonValue

from ..contracts.settings import SettingsError
from ..contracts.text import truncate
from ..resources.child_process import child_command, child_environment
from .bounded_child import LENGTH, identity, main

MAX_RESULT = 4_000_000
"""Bytes of a result, at most."""

MAX_PROCESSES = 4
"""Concurrent processes of one function; further calls wait."""

START_SECONDS = 60.0
"""The time limit for loading the function: it may take seconds on a busy machine."""

MAX_WORDS = 300
"""Characters of a process's stderr in an error."""


class EvaluationFailed(Exception):
    """The function has no result: its process can't be started, or has died."""


class LimitExceeded(EvaluationFailed):
    """The function took too long, needed too much memory, or returned too much."""


class _Pool:
    """The processes of one function that belong to one event loop."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(MAX_PROCESSES)
        self.idle: list[Process] = []

    def take(self) -> Process | None:
        """An idle process; dead ones are dropped."""
        while self.idle:
            process = self.idle.pop()
            if process.returncode is None:
                return process
        return None


class BoundedFunction:
    """The function ``module:name``, from JSON to JSON, in processes without access to files or the environment.

    A call may take ``seconds``, and a process ``memory`` bytes, where the system supports it (not macOS, Windows).
    A process serves one call at a time; it is killed if a call exceeds a limit or is cancelled. The first call waits
    for a process to start (0.1 to 0.4 s), every further one adds about half a millisecond. ``close_idle`` ends idle
    processes.

    With an ``environment`` the function is the operator's own: it keeps the environment, access to files and network,
    and as much memory as it needs.
    """

    def __init__(
        self,
        target: str,
        *,
        seconds: float = 5.0,
        memory: int = 512_000_000,
        max_result: int = MAX_RESULT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._target, self._seconds, self._memory = target, seconds, memory
        self._max_result = max_result
        self._environment = environment
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        _FUNCTIONS.append(self)

    async def call(self, value: JsonValue) -> JsonValue:
        """Calls the function and returns its result.

        Raises:
            ValueError: the function raised an error with this message.
            LimitExceeded: the call exceeded a limit.
            EvaluationFailed: the process can't be started, or has died; with its output on stderr.
        """
        data = marshal.dumps((self._seconds, value))  # much faster than JSON; raises ValueError for deep nesting
        pool = self._pool()
        async with pool.slots:
            process = pool.take() or await self._start()
            try:
                outcome = await self._ask(process, data)
            except (asyncio.IncompleteReadError, ConnectionError):
                raise await self._death(process) from None
            except BaseException:
                await _kill(process)
                raise
            pool.idle.append(process)
        if "error" in outcome:
            raise ValueError(str(outcome["error"]))
        return outcome["value"]

    async def close(self) -> None:
        """Ends the idle processes of the running event loop."""
        idle = self._pool().idle
        while idle:
            await _kill(idle.pop())

    def _pool(self) -> _Pool:
        return self._pools.setdefault(asyncio.get_running_loop(), _Pool())

    async def _start(self) -> Process:
        """A process that has loaded the function, with the module path of this process."""
        is_trusted = self._environment is not None
        code = f"from {main.__module__} import main; main({self._target!r}, {self._memory}, {is_trusted})"
        try:
            process = await asyncio.create_subprocess_exec(
                *child_command(code),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={**child_environment(), **(self._environment or {})},
            )
        except (OSError, ValueError, TypeError) as error:  # no such file, no memory, no process left, no interpreter
            raise EvaluationFailed(f"{sys.executable} can't be started: {error}") from None
        assert process.stdout
        try:
            async with asyncio.timeout(START_SECONDS):
                await process.stdout.readexactly(LENGTH.size)
        except TimeoutError:
            await _kill(process)
            raise EvaluationFailed(f"{sys.executable} did not start within {START_SECONDS:g} s") from None
        except asyncio.IncompleteReadError:
            ending, _ = await _end_of(process)
            raise EvaluationFailed(f"{sys.executable} exited at startup: {ending}") from None
        except BaseException:
            await _kill(process)
            raise
        return process

    async def _ask(self, process: Process, data: bytes) -> dict[str, JsonValue]:
        assert process.stdin
        assert process.stdout
        try:
            async with asyncio.timeout(self._seconds):
                process.stdin.write(LENGTH.pack(len(data)) + data)
                await process.stdin.drain()
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                if length > self._max_result:
                    raise LimitExceeded(f"its result has more than {self._max_result:,} bytes")
                outcome: dict[str, JsonValue] = json.loads(await process.stdout.readexactly(length))
                return outcome
        except TimeoutError:
            raise LimitExceeded(f"it takes longer than {self._seconds:g} s") from None

    async def _death(self, process: Process) -> EvaluationFailed:
        """The error for a process that ended during a call."""
        ending, written = await _end_of(process)
        if any(text in written.lower() for text in OUT_OF_MEMORY):
            return LimitExceeded(f"it needs more than {self._memory // 1_000_000:,} MB of memory")
        ended = f"its process exited: {ending}"
        return LimitExceeded(ended) if (process.returncode or 0) < 0 else EvaluationFailed(ended)


OUT_OF_MEMORY = ("memoryerror", "memory allocation", "cannot allocate", "can't allocate", "out of memory")
"""Lower-case texts in the messages of Python, Rust and jq when memory is exhausted."""

_FUNCTIONS: list[BoundedFunction] = []
"""All functions of this process, to close their subprocesses. They are module constants."""

_identity = BoundedFunction(f"{identity.__module__}:{identity.__name__}")


_checked = set[str]()
"""The interpreters that have run a bounded process."""


async def check_processes() -> None:
    """Raises SettingsError if no bounded process can run: all conditions, schemas and filters would fail later.

    Further workers of this process don't check it again, unless the interpreter is another one.
    """
    if sys.executable in _checked:
        return
    try:
        await _identity.call(None)
    except EvaluationFailed as failed:
        raise SettingsError(f"this worker can't evaluate conditions, schemas and filters: {failed}") from None
    finally:
        await _identity.close()
    _checked.add(sys.executable)


async def close_idle() -> None:
    """Ends the idle processes of all functions in the running event loop. A later call starts another one."""
    for function in _FUNCTIONS:
        await function.close()


async def _kill(process: Process) -> bytes:
    """Kills a process, and returns its output on stderr."""
    with suppress(ProcessLookupError):
        process.kill()
    _, written = await process.communicate()  # drains stdout: wait() alone could block on unread output
    return written


async def _end_of(process: Process) -> tuple[str, str]:
    """How a process has ended that gave no answer, with the last line of its stderr; and all of its stderr."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1):  # its pipes may be closed a little before it has ended
            await process.wait()
    code = process.returncode
    written = (await _kill(process)).decode(errors="replace")
    lines = [line for line in written.splitlines() if line.strip() and not line.startswith("note: ")] or [""]
    ending = (
        "its pipe was closed" if code is None else f"killed by {_signal(-code)}" if code < 0 else f"exit code {code}"
    )
    return f"{ending}: {truncate(lines[-1], MAX_WORDS)}".removesuffix(": "), written


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"the signal {number}"
