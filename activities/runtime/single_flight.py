"""Single flight: a new attempt of an activity joins the work of an earlier attempt, if that still runs here."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from .heartbeat import INTERVAL, Heartbeat, heartbeats, run_with
from .ids import idempotency_key

AWAITED = (PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED, PendingActivityState.PENDING_ACTIVITY_STATE_STARTED)
"""States of an activity whose result Temporal still waits for."""


@dataclass
class _Flight:
    task: asyncio.Task[Any]
    heartbeat: Heartbeat
    attempt: int = 0
    """The newest attempt that waits for the task."""


class SingleFlight(Interceptor):
    """The work of this worker's running activities, by their idempotency keys; each sends heartbeats while it runs.

    A Temporal server that was unreachable for a while takes the worker for dead: it times the attempt out and schedules
    another, although the model call or tool use of the first one still runs. To repeat that would be to pay twice, so
    the next attempt on this worker waits for the work that is there. ``redact`` is applied to the heartbeats' text.
    """

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self._redact = redact
        self._flights: dict[str, _Flight] = {}

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _JoinedActivities(super().intercept_activity(next), self)

    async def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """The result of ``work``, or of the same work that an earlier attempt of this activity has begun."""
        key = idempotency_key()
        flight = self._flights.get(key) or self._begin(key, work)
        flight.attempt = activity.info().attempt
        async with heartbeats(flight.heartbeat):
            try:
                return await asyncio.shield(flight.task)
            except asyncio.CancelledError:
                await _keep_for_next_attempt(flight)
                raise

    def _begin(self, key: str, work: Callable[[], Coroutine[Any, Any, object]]) -> _Flight:
        heartbeat = Heartbeat(self._redact)
        flight = self._flights[key] = _Flight(run_with(heartbeat, work()), heartbeat)
        flight.task.add_done_callback(lambda task: self._end(key, task))
        return flight

    def _end(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._flights[key]
        if not task.cancelled():
            task.exception()  # marks it as seen: asyncio would log it if no attempt waits any more

    async def close(self) -> None:
        """Cancels the work that is left when the worker ends."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _JoinedActivities(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, flights: SingleFlight) -> None:
        super().__init__(next_interceptor)
        self._flights = flights

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        """Runs an activity by itself if it is local: it is part of a workflow task, and knows no heartbeats."""
        if activity.info().is_local:
            return await self.next.execute_activity(input)
        return await self._flights.run(partial(self.next.execute_activity, input))


async def _keep_for_next_attempt(flight: _Flight) -> None:
    """Lets the work go on until a later attempt joins it; cancels it once Temporal no longer waits for its result.

    It is cancelled once only, so that it can still pass the cancel on.
    """
    cancelled = False
    while not flight.task.done() and flight.attempt == activity.info().attempt:
        if not cancelled and not await _is_awaited():
            why = activity.cancellation_details()
            flight.heartbeat.withdrawn = why is not None and (why.cancel_requested or why.not_found)
            cancelled = flight.task.cancel()
        await asyncio.wait([flight.task], timeout=INTERVAL)


async def _is_awaited() -> bool:
    """Whether Temporal gave up only this attempt and still waits for the activity; True where it can't be asked."""
    why, info = activity.cancellation_details(), activity.info()
    if why is None or not why.not_found or info.workflow_id is None:
        return False
    try:
        run = await activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id).describe()
    except RPCError:
        return True
    pending = run.raw_description.pending_activities if run.status is WorkflowExecutionStatus.RUNNING else ()
    return any(each.activity_id == info.activity_id and each.state in AWAITED for each in pending)
