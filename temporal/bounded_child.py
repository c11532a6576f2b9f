"""The program of a bounded process: calls one function for every request on stdin, under resource limits."""

import importlib
import json
import marshal
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from ..resources.child_process import limit

LENGTH = struct.Struct(">I")
"""The length prefix of a message, in bytes. Requests are marshalled; responses, which are untrusted, are JSON."""


def main(target: str, memory: int, trusted: bool = False) -> None:
    """Serves ``module:function`` until stdin ends, and writes an empty message when it is ready.

    Access to files and environment ends once its modules are loaded, unless the function and its input are ``trusted``.
    """
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # the function may print
    module, _, attribute = target.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    limit("RLIMIT_CORE", 0)
    if trusted:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads what it prints, and a full pipe would block it
    else:
        os.environ.clear()  # only the interpreter needs it, and jq filters can read it
        limit("RLIMIT_AS", memory)
        for name in ("RLIMIT_NOFILE", "RLIMIT_FSIZE"):
            limit(name, 0)
    _write(answers, b"")
    while head := sys.stdin.buffer.read(LENGTH.size):
        seconds, value = marshal.loads(sys.stdin.buffer.read(LENGTH.unpack(head)[0]))  # from the parent: trusted
        _limit_time(seconds)
        _write(answers, json.dumps(_outcome(function, value)).encode())


def identity(value: Any) -> Any:
    """Returns the value. A worker calls it at its start, to check that bounded processes can run."""
    return value


def _limit_time(seconds: float) -> None:
    """Sets a CPU limit beyond the parent's timeout, in case the parent is gone and can't kill this process."""
    with suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415

        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_seconds = int(usage.ru_utime + usage.ru_stime + seconds) + 2
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, hard))


def _outcome(function: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    try:
        return {"value": function(value)}
    except MemoryError:  # ends the process, which the parent reports as exceeded memory
        raise
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()
