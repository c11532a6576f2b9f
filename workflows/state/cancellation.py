"""When does a run have to stop, or to wait? What was asked of it, kept as a flag because a cancel can get lost."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

from ...conversation.contracts.continuation import Wish
from ...conversation.contracts.control_messages import EndRequest
from ...conversation.messages.turn import StopReason
from ..calls.execute_activity import Interrupted
from .inbox import Floor

T = TypeVar("T")


class Stop:
    """What was asked of a run from outside: nothing, a graceful end, or an end now. The first wish counts.

    The ``floor`` holds what else people ask: to wait, and to be heard.
    """

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self.note: str | None = None
        self.now = False
        self.floor = Floor()

    def ask(self, reason: StopReason, request: EndRequest) -> None:
        """Asks the run to stop; a later wish can only make it stop sooner."""
        if self.reason is None:
            self.reason, self.note = reason, request.reason or None
        self.now = self.now or request.now

    @property
    def wish(self) -> Wish | None:
        """What was asked, for the run in which this one goes on."""
        return Wish(reason=self.reason, note=self.note, now=self.now) if self.reason else None

    def resume(self, wish: Wish | None) -> None:
        """Takes up what was asked of the run that goes on in this one."""
        if wish:
            self.reason, self.note, self.now = wish.reason, wish.note, wish.now

    def check(self) -> None:
        """Raises Interrupted if the run is to stop without waiting for anything."""
        if self.now:
            raise Interrupted

    async def ready(self) -> None:
        """Waits as long as the run is paused; raises Interrupted if it is to stop at once."""
        await workflow.wait_condition(lambda: self.reason is not None or not self.floor.paused)
        self.check()

    async def guard(self, work: Coroutine[Any, Any, T], limit: timedelta | None = None) -> T:
        """Waits for ``work``, and cancels it when the run is to stop now or the ``limit`` has passed."""
        if self.now:
            return await work  # which finds out by itself
        task = asyncio.create_task(work)
        try:
            await workflow.wait_condition(lambda: task.done() or self.now, timeout=limit, timeout_summary="timeout")
        except TimeoutError:
            self.ask("timeout", EndRequest(now=True))
        except asyncio.CancelledError:
            self.ask("canceled", EndRequest(reason=workflow.cancellation_reason() or "", now=True))
        if not task.done():
            task.cancel()
        return await uninterrupted(task)


async def uninterrupted(task: "asyncio.Task[T]") -> T:
    """Waits for a task to its end, also when the waiting itself is cancelled; whoever cancels has set a flag."""
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


async def finish(tasks: Sequence["asyncio.Task[T]"], gives_up: Callable[[], bool]) -> None:
    """Waits until all tasks are done; those still running are cancelled if it ``gives_up``, or is cancelled itself."""
    given_up = False
    while waiting := [task for task in tasks if not task.done()]:
        try:
            await workflow.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            give_up = gives_up()
        except asyncio.CancelledError:
            give_up = True
        if give_up and not given_up:
            given_up = True
            for task in waiting:
                task.cancel()


async def settle(works: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """Does all of it at once and returns what each gave or raised.

    When it is cancelled it cancels them and waits still, so that nothing they have done is lost.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await workflow.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
    outcomes: list[T | BaseException] = []
    for task in tasks:
        try:
            outcomes.append(await uninterrupted(task))
        except (Exception, asyncio.CancelledError) as error:
            outcomes.append(error)
    return outcomes
