"""Runs a function on untrusted data in a subprocess, with limits on its time, memory and result.

Conditions, schemas and filters are evaluated here, as they may take long on the CPU. A thread could not be ended, and
would hold the interpreter's lock, and with it the worker's event loop.
"""

import asyncio
import json
import marshal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from weakref import WeakKeyDictionary

from pydantic import JsonValue

from .bounded_child import LENGTH, main

MAX_RESULT = 4_000_000
"""Bytes of a result."""

MAX_PROCESSES = 4
"""Concurrent processes of one function; further calls wait."""


class LimitExceeded(Exception):
    """The function took too long, needed too much memory, or returned too much."""


class _Pool:
    """The processes of one function that belong to one event loop."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(MAX_PROCESSES)
        self.idle: list[Process] = []


class BoundedFunction:
    """The function ``module:name``, from JSON to JSON, in processes that see neither files nor the environment.

    A call takes ``seconds`` at most, and a process ``memory`` bytes. A process serves one call after the other; it is
    killed if a call exceeds a limit or is cancelled. The first call waits for the start of a process (0.1 to 0.4 s),
    every further one adds about half a millisecond. ``close_idle`` ends the processes.
    """

    def __init__(self, target: str, *, seconds: float = 5.0, memory: int = 512_000_000) -> None:
        self._target, self._seconds, self._memory = target, seconds, memory
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        _FUNCTIONS.append(self)

    async def call(self, value: JsonValue) -> JsonValue:
        """What the function returns. Raises ValueError with the text of what it raises, and LimitExceeded."""
        data = marshal.dumps((self._seconds, value))  # much faster than JSON; raises ValueError for deep nesting
        pool = self._pool()
        async with pool.slots:
            process = pool.idle.pop() if pool.idle else await self._start()
            try:
                outcome = await self._ask(process, data)
            except BaseException:
                await _kill(process)
                raise
            pool.idle.append(process)
        if "error" in outcome:
            raise ValueError(str(outcome["error"]))
        return outcome["value"]

    async def close(self) -> None:
        """Ends the processes of the running event loop that serve no call."""
        idle = self._pool().idle
        while idle:
            await _kill(idle.pop())

    def _pool(self) -> _Pool:
        return self._pools.setdefault(asyncio.get_running_loop(), _Pool())

    async def _start(self) -> Process:
        """A process that has loaded the function."""
        code = f"from {main.__module__} import main; main({self._target!r}, {self._memory})"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", code, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}
        )
        assert process.stdout
        try:
            await process.stdout.readexactly(LENGTH.size)
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
                if length > MAX_RESULT:
                    raise LimitExceeded(f"its result has more than {MAX_RESULT:,} bytes")
                outcome: dict[str, JsonValue] = json.loads(await process.stdout.readexactly(length))
                return outcome
        except TimeoutError:
            raise LimitExceeded(f"it takes longer than {self._seconds:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise LimitExceeded(f"it needs more than {self._memory // 1_000_000:,} MB of memory") from None


_FUNCTIONS: list[BoundedFunction] = []
"""All functions of this process, to close their subprocesses. Each is a constant of a module."""


async def close_idle() -> None:
    """Ends the idle processes of all functions in the running event loop. A later call starts another one."""
    for function in _FUNCTIONS:
        await function.close()


async def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.communicate()  # reads what is left: wait() alone would wait for a reader of it
