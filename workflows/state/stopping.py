"""Stopping a run: a stop request is a flag, because a cancellation alone can be lost between two awaits."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakSet

from temporalio import workflow

from ...contracts.control_messages import TerminateRequest
from ...contracts.errors import BatonError, Failure
from ...contracts.inputs import StopRequest
from ...contracts.message import PersonDecision, TokenUsage
from ...contracts.turn import StopReason
from .constants import CANCEL_STARTS, LONG_TASK_TIMEOUT, MAX_HISTORY_BYTES, MAX_HISTORY_EVENTS, MAX_HISTORY_EVENTS_LONG
from .telling import tell

T = TypeVar("T")

_canceled = WeakSet["asyncio.Task[Any]"]()
"""The tasks that were canceled. The SDK resets ``Task.cancelling`` of one that is starting a child workflow."""


def _cancel(task: "asyncio.Task[Any]") -> None:
    _canceled.add(task)
    task.cancel()


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

        It is called before every activity, child workflow and wait, so that a cancellation that some code has caught
        still stops the run at the next step.
        """
        if self.now:
            raise ActivityInterrupted

    async def wait(
        self,
        condition: Callable[[], bool],
        *,
        continues: bool,
        limit: timedelta | float | None = None,
        summary: str | None = None,
    ) -> None:
        """Waits until the condition is true or a stop is requested. All waits for people are made here.

        ``continues``: the state of the run is complete. If the history becomes long meanwhile, by signals and updates,
        the run continues as new, and the next run continues to wait.

        Raises:
            TimeoutError: at the limit.
            ContinueAsNew: the history has become long.
        """
        is_long = False

        def ends() -> bool:
            nonlocal is_long
            if self.is_requested or condition():
                return True
            is_long = continues and should_continue_as_new()
            return is_long

        await workflow.wait_condition(ends, timeout=limit, timeout_summary=summary)
        if is_long:
            raise ContinueAsNew

    def request(self, reason: StopReason, request: TerminateRequest) -> None:
        """Requests the run to stop; a later request can only make it stop sooner."""
        if self.reason is None:
            self.reason = reason
            self.note = request.reason or None
        self.now = self.now or request.now

    def take_up_cancellation(self) -> None:
        """Notes that Temporal has cancelled the run while it was about to continue as new: the next run has to know."""
        if (reason := workflow.cancellation_reason()) is not None:
            self.request("canceled", TerminateRequest(reason=reason, now=True))

    @property
    def state(self) -> StopRequest | None:
        """The state for the next run at continue-as-new."""
        return StopRequest(reason=self.reason, note=self.note, now=self.now) if self.reason else None

    def restore(self, state: StopRequest | None) -> None:
        """Restores the state of the previous run."""
        if state:
            self.reason = state.reason
            self.note = state.note
            self.now = state.now


@contextlib.contextmanager
def at_end(work: Callable[[], object]) -> Iterator[None]:
    """Calls ``work`` when the block ends, however it ends, but not when a worker drops the run from its memory.

    It takes the place of ``finally`` in workflow code: of a run that is dropped, Python closes the coroutines later, in
    any thread and outside of the workflow's event loop, where no code of the run may run.
    """
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException:
        work()
        raise
    work()


async def run_in_scope(
    stop: StopState,
    work: Coroutine[Any, Any, T],
    limit: timedelta | None = None,
    at_limit: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> T:
    """The result of ``work``, which is canceled when the run is to stop now, is canceled, or reaches the limit.

    At the limit, ``at_limit`` runs first.
    """
    if stop.now:
        return await work  # which checks the flag itself
    task = asyncio.create_task(work)
    try:
        await workflow.wait_condition(lambda: task.done() or stop.now, timeout=limit, timeout_summary="timeout")
    except TimeoutError:
        stop.request("timeout", TerminateRequest(now=True))
        if at_limit:
            await uncancelled(asyncio.create_task(at_limit()))
    except asyncio.CancelledError:
        if not stop.is_requested:
            tell("control message", {"request": "cancel"})
        stop.request("canceled", TerminateRequest(reason=workflow.cancellation_reason() or "", now=True))
    if not task.done():
        _cancel(task)
    return await uncancelled(task)


async def uncancelled(task: "asyncio.Task[T]") -> T:
    """Waits until a task is done, even if the waiting is canceled: the stop flag has been set by then."""
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


def is_canceled() -> bool:
    """Whether the current task was canceled, which it may not have noticed in ``uncancelled``."""
    task = asyncio.current_task()
    return task is not None and (task.cancelling() > 0 or was_canceled())


def was_canceled() -> bool:
    """Whether the current task was canceled, which it may not have noticed while it started a child workflow."""
    return asyncio.current_task() in _canceled and workflow.patched(CANCEL_STARTS)


async def wait_all(tasks: Sequence["asyncio.Task[T]"], gives_up: Callable[[], bool]) -> None:
    """Waits for all tasks; those still running are canceled when ``gives_up()`` or when the waiting is canceled."""
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
                _cancel(task)


async def gather_outcomes(works: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """Runs coroutines concurrently and returns their results or exceptions, in order.

    On cancellation it cancels them and still waits for them, so that no result is lost.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await workflow.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            _cancel(task)
    outcomes: list[T | BaseException] = []
    for task in tasks:
        try:
            outcomes.append(await uncancelled(task))
        except (Exception, asyncio.CancelledError) as error:
            outcomes.append(error)
    return outcomes


def should_continue_as_new() -> bool:
    """Whether the run should continue as new once its state is complete."""
    info = workflow.info()
    events = MAX_HISTORY_EVENTS if info.task_timeout < LONG_TASK_TIMEOUT else MAX_HISTORY_EVENTS_LONG
    long = info.get_current_history_size() > MAX_HISTORY_BYTES or info.get_current_history_length() > events
    return (long or info.is_continue_as_new_suggested()) and workflow.all_handlers_finished()


class ActivityInterrupted(Exception):
    """An activity was canceled because the run is to stop; ``activity`` is its id, if it was started at all."""

    def __init__(self, activity: str | None = None) -> None:
        self.activity = activity
        super().__init__()


class ActivityFailed(Exception):
    """An activity failed and is not retried, or the workflow itself detected the failure.

    ``usage`` is that of the failed calls of models, as far as their servers report it.
    """

    def __init__(self, failure: Failure, usage: TokenUsage | None = None) -> None:
        self.failure = failure
        self.usage = usage or TokenUsage()
        super().__init__(failure.message)

    @classmethod
    def of(cls, error: BatonError) -> "ActivityFailed":
        """A failure that the workflow itself has detected."""
        return cls(error.as_failure())


class NotAllowed(Exception):
    """A tool call is not executed: it was rejected, or not approved in time."""

    def __init__(self, decision: PersonDecision) -> None:
        self.decision = decision
        super().__init__(rejection_text(decision))


def rejection_text(decision: PersonDecision) -> str:
    """The tool message for the model instead of a result."""
    if decision.how == "timeout":
        return "Not executed: this call was not approved in time."
    return f"Not executed: a person rejected this call. {decision.reason}".rstrip()


class ContinueAsNew(Exception):
    """The run continues as new; raised only when its state is complete."""
