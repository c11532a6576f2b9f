"""Registered functions run in threads of their own."""

import asyncio
import threading
import time

import pytest

from baton.activities.runtime.functions import FunctionRegistry


async def test_functions_that_take_long_dont_hold_up_what_else_needs_threads() -> None:
    ended, seen = threading.Event(), list[str]()

    def slow() -> bool:
        seen.append(threading.current_thread().name)
        return ended.wait(30)

    functions = FunctionRegistry([slow], max_concurrent=20)
    calls = [asyncio.create_task(functions.invoke("slow")) for _ in range(40)]
    while len(seen) < 20:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    assert time.monotonic() - began < 25
    assert len(seen) == 20, "the others wait"
    ended.set()
    assert await asyncio.gather(*calls) == [True] * 40
    functions.close()


async def test_a_function_that_waits_for_a_thread_does_not_begin_after_the_worker_has_ended() -> None:
    ended, seen = threading.Event(), list[int]()

    def slow(number: int) -> None:
        seen.append(number)
        ended.wait(30)

    functions = FunctionRegistry([slow], max_concurrent=1)
    calls = [asyncio.create_task(functions.invoke("slow", number)) for number in range(2)]
    while not seen:
        await asyncio.sleep(0.01)
    functions.close()
    ended.set()
    await calls[0]
    with pytest.raises(asyncio.CancelledError):
        await calls[1]
    assert seen == [0]
