"""The child workflows of a run: each takes a turn at a place in the conversation."""

import asyncio
import contextlib
import json
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.exceptions import CancelledError as ChildCancelled
from temporalio.workflow import ChildWorkflowCancellationType, ChildWorkflowHandle, ParentClosePolicy

from ...contracts.control_messages import SteerRequest, TerminateRequest
from ...contracts.decisions import RememberedDecision
from ...contracts.errors import Failure, InvalidInput, RunClosed
from ...contracts.inputs import TurnInput
from ...contracts.message import Head
from ...contracts.requests import ExpireInput, ExpireRequest, ExpireResult
from ...contracts.text import byte_size
from ...contracts.turn import TurnResult
from ...resources.validation import MAX_WORKFLOW_ID
from ...temporal.client import WORKFLOW_TASK_TIMEOUT
from ..state.constants import MAX_CONCURRENT_CHILDREN
from ..state.run_state import RunState
from ..state.stopping import ActivityInterrupted, ContinueAsNew, should_continue_as_new, uncancelled
from .activities import HEARTBEAT_TIMEOUT

Child = ChildWorkflowHandle[object, TurnResult]


@dataclass(eq=False)
class ChildMessage:
    """A signal that is sent to one or more children; ``open`` counts those that may still get it, ``got`` who has."""

    signal: str
    value: object
    open: int = 0
    got: int = 0


@dataclass(eq=False)
class ChildMailbox:
    """Sends messages to a running child, in the order in which they were put."""

    child: Child
    _waiting: deque[ChildMessage] = field(default_factory=deque)
    _sent: list[ChildMessage] = field(default_factory=list)
    _sender: "asyncio.Task[None] | None" = None

    def put(self, message: ChildMessage) -> None:
        """Adds a message, and begins to send if nothing is on its way."""
        message.open += 1
        self._waiting.append(message)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def wait_until_sent(self) -> None:
        """Waits until all messages so far were sent, or the child has ended."""
        if self._sender:
            await uncancelled(self._sender)

    async def close(self, result: TurnResult | None) -> list[SteerRequest]:
        """The people's messages that no child has read; without a result nothing that this child has read is kept."""
        await self.wait_until_sent()
        for message in self._waiting:
            message.open -= 1
        unread = [SteerRequest(text=each.content, name=each.name or "user") for each in result.unread] if result else []
        for message in self._sent:
            if result is None or message.value in unread:
                message.got -= 1
        sent = [each.value for each in self._sent]
        lost = [each.value for each in (*self._sent, *self._waiting) if not each.open and not each.got]
        direct = [each for each in unread if each not in sent]  # which a client has sent to the child itself
        return [value for value in (*lost, *direct) if isinstance(value, SteerRequest)]

    async def _send(self) -> None:
        while self._waiting and await self._deliver(self._waiting[0]):
            self._waiting.popleft()

    async def _deliver(self, message: ChildMessage) -> bool:
        try:
            await self.child.signal(message.signal, message.value)
        except Exception:
            workflow.logger.debug("the child run %s has ended already", self.child.id)
            return False
        message.open = message.open - 1
        message.got = message.got + 1
        self._sent.append(message)
        return True


MAX_RESTART_WAIT = 30.0
"""Seconds at most between two attempts to start a child whose predecessor of the same id still runs."""


class ChildWorkflows:
    """Starts the children of a run, waits for them, and sends them the signals that the run gets."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._started = 0
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_CHILDREN)
        self._running: list[ChildMailbox] = []
        self._open: list[str] = []

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the children that run."""
        return tuple(each.child.id for each in self._running)

    def is_open(self, child_id: str) -> bool:
        """Whether a child of that id runs, or is being started."""
        return child_id in self._open

    def id_of(self, place: str, name: str) -> str:
        """The id of the child at a place."""
        return f"{workflow.info().workflow_id}/{place}/{name}"

    async def execute(
        self, workflow_type: str, given: TurnInput, place: str, head: Head, *, continues: bool = False
    ) -> TurnResult:
        """The result of a turn in a child workflow, whose id is the run's id, ``place`` and the name in ``given``.

        It never raises for what becomes of the child: a child that never began, was killed, or would have an id that is
        too long for Temporal has said nothing, and is still at ``head``. With ``continues``, ContinueAsNew is raised
        instead of starting one more in a long run.
        """
        nothing = TurnResult(head=head, turns=0, stop_reason="canceled")
        try:
            async with self._slots:
                if continues and self._started and should_continue_as_new():
                    raise ContinueAsNew
                child_id = self.id_of(place, given.name)
                if byte_size(child_id) > MAX_WORKFLOW_ID:
                    return nothing.failed(_id_too_long(child_id))
                turn = await self._open_child(workflow_type, given, child_id)
        except ChildWorkflowError as error:
            closed = RunClosed(f"the run of {given.name} was closed: {error.cause or error}").as_failure()
            turn = nothing.failed(closed)
            if isinstance(error.cause, ChildCancelled):
                turn = nothing
        except (asyncio.CancelledError, ActivityInterrupted):
            turn = nothing
        if turn.stop_reason == "canceled" and not self._run.stop.is_requested:
            turn = turn.because_of(RunClosed(f"the run of {given.name} was canceled").as_failure())
        return turn

    async def _open_child(self, workflow_type: str, given: TurnInput, child_id: str) -> TurnResult:
        self._run.stop.checkpoint()
        self._open.append(child_id)
        try:
            return await self._result(workflow_type, given, child_id)
        finally:
            self._open.remove(child_id)
            self._run.decisions.child_waits(child_id, waits=False)

    async def _result(self, workflow_type: str, given: TurnInput, child_id: str) -> TurnResult:
        self._started += 1
        run = self._run
        given = given.for_child(run.session.values, run.stop.state, run.inbox.pause, run.question)
        mailbox = ChildMailbox(await self._start(workflow_type, given, child_id))
        self._running.append(mailbox)
        self._send_state(mailbox, given)
        result: TurnResult | None = None
        try:
            result = await _wait(mailbox.child)
        except ChildWorkflowError as error:
            result = _result_in(error)
        finally:
            self._running.remove(mailbox)
            for message in await mailbox.close(result):
                self._run.inbox.put(message)
        return result.with_unread(())

    async def _start(self, workflow_type: str, given: TurnInput, child_id: str) -> Child:
        """Starts the child; one of the same id that a reset has left running is canceled first."""
        wait = 1.0
        while True:
            try:
                return await workflow.start_child_workflow(
                    workflow_type,
                    given,
                    id=child_id,
                    result_type=TurnResult,
                    task_timeout=WORKFLOW_TASK_TIMEOUT,
                    cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                    parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                    static_summary=f"{workflow_type} · {given.name}",
                    static_details=self._run.question or None,
                    priority=self._run.priority,
                )
            except WorkflowAlreadyStartedError:
                await _cancel(child_id)
                await workflow.sleep(wait)
                wait = min(2 * wait, MAX_RESTART_WAIT)

    def _send_state(self, mailbox: ChildMailbox, given: TurnInput) -> None:
        """Sends a child that has just started what the run got as signals before, and while it started."""
        run = self._run
        if run.session.values != given.session:
            mailbox.put(ChildMessage("session", {**dict.fromkeys(given.session), **run.session.values}))
        if run.stop.reason == "terminated":
            mailbox.put(ChildMessage("terminate_team", TerminateRequest(reason=run.stop.note or "")))
        if run.inbox.pause:
            mailbox.put(ChildMessage("pause", {"name": run.inbox.pause.by}))
        elif given.pause:
            mailbox.put(ChildMessage("resume", {"name": given.pause.by}))
        for rule, decision in run.decisions.remembered.items():
            mailbox.put(ChildMessage("remembered", RememberedDecision(rule=rule, decision=decision)))
        for message in run.inbox.drain():
            mailbox.put(ChildMessage("steer", SteerRequest(text=message.content, name=message.name or "user")))

    async def signal_all(self, signal: str, value: object) -> int:
        """Sends a signal to all running children, and waits until they have it; returns how many there are.

        To each child one signal after the other, and to all children at once. A person's message that none of them has
        got comes back to the run's inbox.
        """
        running = [*self._running]
        message = ChildMessage(signal, value)
        for each in running:
            each.put(message)
        for each in running:
            await each.wait_until_sent()
        return len(running)

    async def terminate_all(self) -> None:
        """Asks all running children to end after their current turn."""
        await self.signal_all("terminate_team", TerminateRequest(reason=self._run.stop.note or ""))


def _id_too_long(child_id: str) -> Failure:
    text = f"the workflow id {child_id[:100]}… has {byte_size(child_id):,} bytes; Temporal takes {MAX_WORKFLOW_ID:,}"
    return InvalidInput(f"{text}: start the run with a shorter id, or shorten the names of its teams").as_failure()


def _result_in(error: ChildWorkflowError) -> TurnResult:
    """The result in the failure of a child whose turn has failed; raises the error if it has none."""
    details = error.cause.details if isinstance(error.cause, ApplicationError) else ()
    try:
        (result,) = details
        return TurnResult.model_validate_json(json.dumps(result))
    except ValueError:
        raise error from None


async def _wait(child: Child) -> TurnResult:
    """Waits for a child. When given up it is canceled by its id, as Temporal would cancel only its first run."""
    try:
        await workflow.wait([child])
    except asyncio.CancelledError:
        await uncancelled(asyncio.create_task(_cancel(child.id)))
    return await uncancelled(child)


async def _cancel(child_id: str) -> None:
    with contextlib.suppress(ApplicationError):  # it may have ended by now
        await workflow.get_external_workflow_handle(child_id).cancel()


async def start_expiry(seconds: float | None) -> None:
    """Lets what this run leaves be deleted after ``seconds``, even while it is being cancelled; never if None.

    A child run waits for that. It outlives this one, whose status can be read until then.
    """
    if seconds is not None:
        await uncancelled(asyncio.create_task(_start(seconds)))


async def _start(seconds: float) -> None:
    await workflow.start_child_workflow(
        "expire",
        ExpireInput(seconds=seconds),
        id=f"expire/{workflow.uuid4()}",  # not the run's id, which a reset changes
        result_type=ExpireResult,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
        parent_close_policy=ParentClosePolicy.ABANDON,
        static_summary=f"deletes {workflow.info().workflow_id} {timedelta(seconds=seconds)} after its end"[:400],
    )


async def expire(request: ExpireRequest) -> ExpireResult:
    """Deletes what a run has left. It is tried until it is done."""
    result: ExpireResult = await workflow.execute_activity(
        "expire",
        request,
        result_type=ExpireResult,
        summary=f"delete {request.workflow_id}"[:200],
        start_to_close_timeout=timedelta(minutes=10),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=10)),
    )
    return result
