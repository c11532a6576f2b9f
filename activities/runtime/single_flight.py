"""Is this call in flight already? An attempt that begins while an earlier one's call goes on waits for that call."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from .heartbeat import INTERVAL, Pulse, heartbeats
from .ids import call_id

T = TypeVar("T")

AWAITED = (PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED, PendingActivityState.PENDING_ACTIVITY_STATE_STARTED)


@dataclass
class _Call:
    task: asyncio.Task[Any]
    pulse: Pulse
    attempt: int = 0
    """The newest that waits for it."""


class InFlight:
    """The calls that this worker carries out.

    A server that was away holds the worker for dead: it ends the attempt and has another made, while the call of the
    first goes on. To make it again would be to pay twice, so the next attempt takes it over.
    """

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    async def once(self, work: Callable[[Pulse], Coroutine[Any, Any, T]], clean: Callable[[str], str] = str) -> T:
        """What comes of the running activity's call: of ``work``, or of that of an earlier attempt."""
        call = self._calls.get(call_id()) or self._begin(call_id(), work, Pulse(clean))
        call.attempt = activity.info().attempt
        async with heartbeats(call.pulse):
            try:
                result: T = await asyncio.shield(call.task)
                return result
            except asyncio.CancelledError:
                await _hand_over(call)
                raise

    def _begin(self, name: str, work: Callable[[Pulse], Coroutine[Any, Any, object]], pulse: Pulse) -> _Call:
        call = self._calls[name] = _Call(asyncio.create_task(work(pulse)), pulse)
        call.task.add_done_callback(lambda task: self._over(name, task))
        return call

    def _over(self, name: str, task: asyncio.Task[Any]) -> None:
        del self._calls[name]
        if not task.cancelled():
            task.exception()  # asyncio would log it where no attempt waits any more

    async def close(self) -> None:
        """Gives up the calls that no attempt waits for any more."""
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hand_over(call: _Call) -> None:
    """Lets a call go on until the next attempt takes it over; gives it up as soon as Temporal doesn't wait for it."""
    while not call.task.done() and call.attempt == activity.info().attempt:
        if not await _is_awaited():
            call.task.cancel()
        await asyncio.wait([call.task], timeout=INTERVAL)


async def _is_awaited() -> bool:
    """Whether Temporal gave up this attempt alone, and still waits for the call; where it can't be asked, it may."""
    why, info = activity.cancellation_details(), activity.info()
    if why is None or not why.not_found or info.workflow_id is None:
        return False
    try:
        run = await activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id).describe()
    except RPCError:
        return True
    pending = run.raw_description.pending_activities if run.status is WorkflowExecutionStatus.RUNNING else ()
    return any(each.activity_id == info.activity_id and each.state in AWAITED for each in pending)
