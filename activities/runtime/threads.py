"""Runs what takes long for a long text in a thread, while the event loop goes on."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONG = 20_000
"""Characters from which on a text is worth a thread: searched for secrets, each escape in it takes up to 2 µs."""


async def in_thread_if_long(size: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Calls a function whose time grows with ``size``, the characters that it is given."""
    return work(*args, **options) if size < LONG else await asyncio.to_thread(work, *args, **options)
