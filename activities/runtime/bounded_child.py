"""The program of a bounded process: answers requests on stdin with what one function returns, under limits."""

import importlib
import json
import marshal
import resource
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

LENGTH = struct.Struct(">I")
"""The number of bytes of what follows: a request is marshalled, and an answer, which nobody trusts, is JSON."""


def main(target: str, memory: int) -> None:
    """Serves ``module:function`` until stdin ends. What it loads, it loads before it gives up all access to files.

    An empty message says that it is ready.
    """
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    _write(sys.stdout.buffer, b"")
    while head := sys.stdin.buffer.read(LENGTH.size):
        seconds, value = marshal.loads(sys.stdin.buffer.read(LENGTH.unpack(head)[0]))  # by the parent, which is trusted
        _limit_time(seconds)
        _write(sys.stdout.buffer, json.dumps(_outcome(function, value)).encode())


def _limit_time(seconds: float) -> None:
    """Ends the process some time after its parent should have killed it: in case the parent is gone."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = int(usage.ru_utime + usage.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, resource.RLIM_INFINITY))


def _outcome(function: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    try:
        return {"value": function(value)}
    except MemoryError:  # ends the process, which is how the parent knows it
        raise
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()
