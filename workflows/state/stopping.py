"""Stopping a run: the request to stop is a flag, because a cancellation alone can be lost between two awaits."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from temporalio import workflow

from ...contracts.control_messages import TerminateRequest
from ...contracts.errors import BatonError, Failure
from ...contracts.inputs import StopRequest
from ...contracts.message import PersonDecision
from ...contracts.turn import StopReason
from ...resources.base import JsonModel
from .constants import LONG_TASK_TIMEOUT, MAX_HISTORY_BYTES, MAX_HISTORY_EVENTS, MAX_HISTORY_EVENTS_LONG

T = TypeVar("T")


class StopState:
    """The stop request of a run: none, after the current turn, or ``now``. The first reason counts."""

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self.note: str | None = None
        self.now = False

    @property
    def is_requested(self) -> bool:
        """Whether there is a stop request, after the current turn or now."""
        return self.reason is not None

    @property
    def interruption(self) -> StopReason:
        """The stop reason of a turn that was interrupted; without a stop request its parent has canceled it."""
        return self.reason or "canceled"

    def checkpoint(self) -> None:
        """Raises ActivityInterrupted if the run is to stop now.

        Activities, child workflows and waits all begin with it, so that a cancellation that got lost, because somebody
        has caught it, stops the run at the next step.
        """
        if self.now:
            raise ActivityInterrupted

    async def wait(
        self, condition: Callable[[], bool], limit: timedelta | float | None = None, summary: str | None = None
    ) -> None:
        """Waits until the condition holds, or a stop is requested. Raises TimeoutError at the limit."""
        await workflow.wait_condition(lambda: self.is_requested or condition(), timeout=limit, timeout_summary=summary)

    def request(self, reason: StopReason, request: TerminateRequest) -> None:
        """Asks the run to stop; a later request can only make it stop sooner."""
        if self.reason is None:
            self.reason = reason
            self.note = request.reason or None
        self.now = self.now or request.now

    @property
    def state(self) -> StopRequest | None:
        """The part of it that a continued run needs."""
        return StopRequest(reason=self.reason, note=self.note, now=self.now) if self.reason else None

    def restore(self, state: StopRequest | None) -> None:
        """Restores the state of the previous run."""
        if state:
            self.reason = state.reason
            self.note = state.note
            self.now = state.now


async def run_in_scope(
    stop: StopState,
    work: Coroutine[Any, Any, T],
    limit: timedelta | None = None,
    at_limit: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> T:
    """The result of ``work``, which is cancelled when the run is to stop now, is cancelled, or reaches the limit.

    At the limit, ``at_limit`` is carried out first.
    """
    if stop.now:
        return await work  # which looks at the flag itself
    task = asyncio.create_task(work)
    try:
        await workflow.wait_condition(lambda: task.done() or stop.now, timeout=limit, timeout_summary="timeout")
    except TimeoutError:
        stop.request("timeout", TerminateRequest(now=True))
        if at_limit:
            await uncancelled(asyncio.create_task(at_limit()))
    except asyncio.CancelledError:
        stop.request("canceled", TerminateRequest(reason=workflow.cancellation_reason() or "", now=True))
    if not task.done():
        task.cancel()
    return await uncancelled(task)


def take_up_cancellation(stop: StopState) -> None:
    """Notes that Temporal has cancelled the run while it was about to continue as new: the next run is to know it."""
    if (reason := workflow.cancellation_reason()) is not None:
        stop.request("canceled", TerminateRequest(reason=reason, now=True))


async def uncancelled(task: "asyncio.Task[T]") -> T:
    """Waits for a task to its end, also when the waiting is cancelled: whoever cancels has set the flag."""
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


async def wait_all(tasks: Sequence["asyncio.Task[T]"], gives_up: Callable[[], bool]) -> None:
    """Waits for all tasks; those still running are cancelled when ``gives_up()`` or when the waiting is cancelled."""
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


async def gather_outcomes(works: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """Runs all at once and returns what each returned or raised, in their order.

    When it is cancelled it cancels them and still waits for them, so that nothing they have done is lost.
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
            outcomes.append(await uncancelled(task))
        except (Exception, asyncio.CancelledError) as error:
            outcomes.append(error)
    return outcomes


def should_continue_as_new() -> bool:
    """Whether the run is to continue as new as soon as its state is complete."""
    info = workflow.info()
    events = MAX_HISTORY_EVENTS if info.task_timeout < LONG_TASK_TIMEOUT else MAX_HISTORY_EVENTS_LONG
    long = info.get_current_history_size() > MAX_HISTORY_BYTES or info.get_current_history_length() > events
    return (long or info.is_continue_as_new_suggested()) and workflow.all_handlers_finished()


def continue_as_new(given: JsonModel) -> NoReturn:
    """Ends this run and starts the next one with that input, on the worker version that is current then."""
    behavior = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
    workflow.continue_as_new(given, initial_versioning_behavior=behavior)


class ActivityInterrupted(Exception):
    """An activity was given up, because the run is to stop: that with the id ``activity``, if it was begun at all."""

    def __init__(self, activity: str | None = None) -> None:
        self.activity = activity
        super().__init__()


class ActivityFailed(Exception):
    """An activity failed and is not tried again, or the workflow itself found the failure."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)

    @classmethod
    def of(cls, error: BatonError) -> "ActivityFailed":
        """A failure that the workflow itself has found."""
        return cls(error.as_failure())


class NotAllowed(Exception):
    """A tool call is not executed: it was rejected, or not approved in time."""

    def __init__(self, decision: PersonDecision) -> None:
        self.decision = decision
        super().__init__(rejection_text(decision))


def rejection_text(decision: PersonDecision) -> str:
    """What a model reads instead of the tool's answer."""
    if decision.how == "timeout":
        return "Not carried out: nobody has approved this call in time."
    return f"Not carried out: a person has rejected this call. {decision.reason}".rstrip()


class ContinueAsNew(Exception):
    """The run continues as new; raised where its state is complete."""
