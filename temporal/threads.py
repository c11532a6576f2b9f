"""Thread pools for work that would block the event loop.

The loop's own pool is left to lookups of host names, which all libraries start there, and which may take seconds.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool:
    """A pool of at most that many threads, which are started on demand."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Calls a function in a thread, with the context variables of the caller."""
        call = partial(copy_context().run, work, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


COMPUTING = ThreadPool("baton-computing", (os.cpu_count() or 1) + 4)
"""For encryption, redaction, parsing and imports."""

SECRETS = ThreadPool("baton-secrets", 1)
"""For reading files with Secrets, for which every call waits."""

UNTRUSTED_NAMES = ThreadPool("baton-untrusted-names", 16)
"""For DNS lookups of hosts that runs, models and servers choose; they must not delay other lookups."""
