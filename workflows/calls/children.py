"""The child workflows of a run, which take turns at a place in the conversation."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from temporalio.exceptions import CancelledError as ChildCancelled
from temporalio.exceptions import TimeoutError as ChildTimeout
from temporalio.workflow import ChildWorkflowCancellationType, ChildWorkflowHandle, ParentClosePolicy

from ...contracts.control_messages import SteerRequest, TerminateRequest
from ...contracts.decisions import RememberedDecision
from ...contracts.errors import CallTimeout, Failure, InvalidInput, RunClosed, RunStillOpen, ToolFailed
from ...contracts.inputs import Fork, TurnInput
from ...contracts.message import Head
from ...contracts.plan import ToolPlan, WorkflowPlan
from ...contracts.requests import ExpireInput, ExpireRequest, ExpireResult
from ...contracts.text import byte_size
from ...contracts.turn import CanceledChild, TurnResult
from ...observability.run_log import Fields
from ...resources.validation import MAX_WORKFLOW_ID
from ...temporal import search_attributes
from ...temporal.client import WORKFLOW_TASK_TIMEOUT
from ..state.constants import (
    MAX_CONCURRENT_CHILDREN,
    MAX_CONCURRENT_SIGNALS,
    MAX_FORWARDING_HISTORY,
    SHOW_WAITS_FOR_STARTS,
)
from ..state.decisions import recorded_wait
from ..state.run_state import RunState
from ..state.stopping import (
    ActivityFailed,
    ActivityInterrupted,
    ContinueAsNew,
    at_end,
    should_continue_as_new,
    uncancelled,
    was_canceled,
)
from .activities import HEARTBEAT_TIMEOUT

Child = ChildWorkflowHandle[object, TurnResult]


@dataclass(eq=False)
class ChildMessage:
    """A signal to one or more children: ``open`` counts the sends in progress, ``delivered`` those that succeeded."""

    signal: str
    value: object
    open: int = 0
    delivered: int = 0

    @property
    def request(self) -> SteerRequest | None:
        """The person's message, if it is one."""
        return self.value if isinstance(self.value, SteerRequest) else None


@dataclass(eq=False)
class ChildMailbox:
    """Sends signals to a running child, in the order in which they were put.

    ``slots`` limits how many signals a run sends at once. ``result`` is what a canceled child has reported.
    """

    child: Child
    slots: asyncio.Semaphore
    result: TurnResult | None = None
    _waiting: deque[ChildMessage] = field(default_factory=deque)
    _sent: list[ChildMessage] = field(default_factory=list)
    _sender: "asyncio.Task[None] | None" = None

    def put(self, message: ChildMessage) -> None:
        """Adds a message, and starts the sender if it is not running."""
        message.open += 1
        self._waiting.append(message)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def wait_until_sent(self) -> None:
        """Waits until all messages so far were sent, or the child has ended."""
        if self._sender:
            await uncancelled(self._sender)

    async def close(self, result: TurnResult | None) -> list[SteerRequest]:
        """People's messages that no child has read. Without a result, whatever this child received counts as unread."""
        await self.wait_until_sent()
        for message in self._waiting:
            message.open -= 1
        unread = {request.id: request for request in result.unread} if result else {}
        for message in self._sent:
            if result is None or (message.request and message.request.id in unread):
                message.delivered -= 1
        sent = [message.request.id for message in self._sent if message.request]
        undelivered = (message for message in (*self._sent, *self._waiting) if not message.open)
        lost = [message.request for message in undelivered if message.request and not message.delivered]
        direct = [request for id_, request in unread.items() if id_ not in sent]  # sent by a client to the child itself
        return [*lost, *direct]

    async def _send(self) -> None:
        while self._waiting and await self._deliver(self._waiting[0]):
            self._waiting.popleft()

    async def _deliver(self, message: ChildMessage) -> bool:
        try:
            async with self.slots:
                await self.child.signal(message.signal, message.value)
        except Exception:
            workflow.logger.debug("the child run %s has already ended", self.child.id)
            return False
        message.open = message.open - 1
        message.delivered = message.delivered + 1
        self._sent.append(message)
        return True


MAX_RESTART_WAIT = 600.0
"""Maximum seconds between two attempts to start a child while a run with the same id is still open. An attempt takes
some 15 events, and the run may have to wait for weeks until a worker closes the other one."""


class ChildWorkflows:
    """Starts the children of a run, waits for them, and forwards signals to them."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._started = 0
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_CHILDREN)
        self._signal_slots = asyncio.Semaphore(MAX_CONCURRENT_SIGNALS)
        self._running: list[ChildMailbox] = []
        self._open: list[str] = []
        self._of_application: list[str] = []
        self.to_retry: dict[str, str] = {}
        """The failed runs that children will resume: their ids, and the run ids of their first executions."""
        self.to_fork: dict[str, Fork] = {}
        """The runs that children go on from, by the ids of these children."""
        self._unfinished: dict[str, str] = {}

    def fork(self, forks: Mapping[str, Fork]) -> None:
        """Lets children with these ids go on from other runs."""
        self.to_fork = {**forks}

    def retry(self, unfinished: Mapping[str, str]) -> None:
        """Lets children with these ids resume the failed runs with these first run ids."""
        self.to_retry = {**unfinished}

    @property
    def unfinished(self) -> dict[str, str]:
        """The child runs that failed or were canceled, including those that this run has not resumed yet."""
        return {**self.to_retry, **self._unfinished}

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the running children."""
        return tuple(mailbox.child.id for mailbox in self._running)

    @property
    def of_application(self) -> tuple[str, ...]:
        """The ids of the application's workflows that calls of tools wait for."""
        return tuple(self._of_application)

    def is_open(self, child_id: str) -> bool:
        """Whether a child with that id is running or being started."""
        return child_id in self._open

    def id_of(self, place: str, name: str) -> str:
        """The id of the child at a place."""
        return f"{workflow.info().workflow_id}/{place}/{name}"

    async def execute(
        self, workflow_type: str, turn_input: TurnInput, place: str, head: Head, *, continues: bool = False
    ) -> TurnResult:
        """The result of a turn in a child workflow, whose id consists of the run's id, ``place`` and the target's name.

        It never raises for a failure of the child: a child that never began, was terminated, or whose id would be too
        long for Temporal has no messages, and is still at ``head``. With ``continues``, a long run raises ContinueAsNew
        instead of starting another child.
        """
        nothing = TurnResult(head=head, turns=0, stop_reason="canceled")
        try:
            async with self._slots:
                if continues and self._started and should_continue_as_new():
                    raise ContinueAsNew
                child_id = self.id_of(place, turn_input.name)
                if byte_size(child_id) > MAX_WORKFLOW_ID:
                    return nothing.failed(_id_too_long(child_id))
                turn = await self._open_child(workflow_type, turn_input, child_id)
        except ChildWorkflowError as error:
            closed = RunClosed(f"the run of {turn_input.name} was closed: {error.cause or error}").as_failure()
            turn = nothing.failed(closed)
            if isinstance(error.cause, ChildCancelled):
                turn = nothing
        except (asyncio.CancelledError, ActivityInterrupted):
            turn = nothing
        if turn.stop_reason == "canceled" and not self._run.stop.is_requested:
            turn = turn.because_of(RunClosed(f"the run of {turn_input.name} was canceled").as_failure())
        return turn

    async def execute_application(
        self, plan: WorkflowPlan, arguments: Sequence[object], tool: ToolPlan, place: str, summary: str
    ) -> RawValue | None:
        """The result of an application's workflow, in a child. Its id has the run's id, ``place`` and the tool.

        If the run is to stop now, the workflow is requested to cancel, and not waited for: it may have no worker.

        Raises:
            ActivityFailed: it failed, was closed or timed out, or the id was used before and may not be used again.
            ActivityInterrupted: the run is to stop now; with the workflow's id if it was started.
        """
        child_id = self.id_of(place, tool.name)
        if byte_size(child_id) > MAX_WORKFLOW_ID:
            raise ActivityFailed(_id_too_long(child_id))
        async with self._slots:
            self._run.stop.checkpoint()
            self._of_application.append(child_id)
            with at_end(lambda: self._of_application.remove(child_id)):
                child: ChildWorkflowHandle[object, RawValue | None] | None = None
                try:
                    child = await self._start_application(plan, arguments, tool, child_id, summary)
                    if was_canceled():
                        raise asyncio.CancelledError
                    await workflow.wait([child])
                except asyncio.CancelledError:
                    if child is None and not was_canceled():
                        raise  # as before this was patched
                    await uncancelled(asyncio.create_task(_cancel(child_id)))
                    if child:  # nobody else reads its failure
                        child.add_done_callback(lambda done: done.cancelled() or done.exception())
                    raise ActivityInterrupted(child_id) from None
                try:
                    return await child
                except ChildWorkflowError as error:
                    raise ActivityFailed.of(application_workflow_failure(error.cause, plan.type)) from None

    async def _start_application(
        self, plan: WorkflowPlan, arguments: Sequence[object], tool: ToolPlan, child_id: str, summary: str
    ) -> ChildWorkflowHandle[object, RawValue | None]:
        retries = tool.retries
        try:
            return await workflow.start_child_workflow(
                plan.type,
                args=arguments,
                id=child_id,
                task_queue=plan.task_queue,
                result_type=RawValue,
                cancellation_type=ChildWorkflowCancellationType.ABANDON,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                execution_timeout=timedelta(seconds=tool.timeout) if tool.timeout else None,
                id_reuse_policy=_ID_REUSE[plan.id_reuse_policy],
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(seconds=retries.initial),
                    maximum_interval=timedelta(seconds=retries.maximum),
                    maximum_attempts=retries.attempts or 0,
                )
                if retries
                else None,
                static_summary=summary,
                priority=self._run.priority,
            )
        except WorkflowAlreadyStartedError:
            raise ActivityFailed.of(already_started(plan.type, child_id)) from None
        except ChildWorkflowError:  # it was canceled while it started, and may have started by now
            raise asyncio.CancelledError from None

    async def _open_child(self, workflow_type: str, turn_input: TurnInput, child_id: str) -> TurnResult:
        self._run.stop.checkpoint()
        self._open.append(child_id)

        def ends() -> None:
            self._open.remove(child_id)
            self._run.decisions.child_waits(child_id, waits=False)
            self._run.outages.child_waits(child_id, waits=False)

        with at_end(ends):
            return await self._result(workflow_type, turn_input, child_id)

    async def _result(self, workflow_type: str, turn_input: TurnInput, child_id: str) -> TurnResult:
        self._started += 1
        run = self._run
        gives_up = run.gives_up or turn_input.gives_up
        turn_input = turn_input.for_child(
            run.session.values,
            run.stop.state,
            run.inbox.pause,
            run.question,
            gives_up=gives_up,
            retries=self.to_retry.pop(child_id, None),
            fork=self.to_fork.pop(child_id, None),
        )
        with at_end(lambda: run.outages.end(child_id)):
            child = await self._start(workflow_type, turn_input, child_id)
        mailbox = ChildMailbox(child, self._signal_slots)
        self._running.append(mailbox)
        self._send_state(mailbox, turn_input)
        failed: ChildWorkflowError | None = None
        try:
            result: TurnResult | None = await _wait(mailbox.child)
        except ChildWorkflowError as error:
            result = mailbox.result or _result_in(error)
            failed = error
        self._running.remove(mailbox)
        if result is None or result.is_unfinished:
            self._unfinished[child_id] = child.first_execution_run_id or ""
        for message in await mailbox.close(result):
            self._run.inbox.put(message)
        if result is None:
            assert failed
            raise failed
        return result.with_unread(())

    async def _start(self, workflow_type: str, turn_input: TurnInput, child_id: str) -> Child:
        """Starts the child; an open run with the same id, left over from a reset, is canceled first."""
        searchable = self._run.searchable
        attributes = search_attributes.of_child(workflow.info().workflow_id) if searchable else None
        wait = 1.0
        while True:
            try:
                return await workflow.start_child_workflow(
                    workflow_type,
                    turn_input,
                    id=child_id,
                    result_type=TurnResult,
                    task_timeout=WORKFLOW_TASK_TIMEOUT,
                    cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                    parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                    static_summary=f"{workflow_type} · {turn_input.name}",
                    static_details=self._run.question or None,
                    priority=self._run.priority,
                    search_attributes=attributes,
                )
            except WorkflowAlreadyStartedError:
                if was_canceled():
                    raise asyncio.CancelledError from None
                await _cancel(child_id)
                summary = f"start {turn_input.name}"
                if workflow.patched(SHOW_WAITS_FOR_STARTS):
                    still_open = RunStillOpen(f"a run with the id {child_id} is still open: it is canceled")
                    self._run.outages.note(child_id, summary, still_open.as_failure(), timedelta(seconds=wait))
                about: Fields = {"subject": summary, "error": RunStillOpen.__name__}
                with recorded_wait("outage", workflow.now(), about=about) as recorded:
                    await workflow.sleep(wait)
                    recorded.outcome = "over"
                wait = min(2 * wait, MAX_RESTART_WAIT)

    def _send_state(self, mailbox: ChildMailbox, turn_input: TurnInput) -> None:
        """Sends a child that has just started the signals that the run received before, and while it started."""
        run = self._run
        if run.session.values != turn_input.session:
            mailbox.put(ChildMessage("session", {**dict.fromkeys(turn_input.session), **run.session.values}))
        if run.stop.reason == "terminated":
            mailbox.put(ChildMessage("terminate_team", TerminateRequest(reason=run.stop.note or "")))
        if run.inbox.pause:
            mailbox.put(ChildMessage("pause", {"name": run.inbox.pause.by}))
        elif turn_input.pause:
            mailbox.put(ChildMessage("resume", {"name": turn_input.pause.by}))
        for rule, decision in run.decisions.remembered.items():
            mailbox.put(ChildMessage("remembered", RememberedDecision(rule=rule, decision=decision)))
        for message in run.inbox.take():
            mailbox.put(ChildMessage("steer", message))

    def take_result(self, child: CanceledChild) -> None:
        """Takes the result of a running child that is about to close as canceled."""
        for mailbox in self._running:
            if mailbox.child.first_execution_run_id == child.run:
                mailbox.result = child.result

    def can_forward(self, request: SteerRequest) -> bool:
        """Whether this run's history has space for a copy of the message for each running child."""
        copies = byte_size(request.text) * len(self._running)
        return not copies or workflow.info().get_current_history_size() + copies <= MAX_FORWARDING_HISTORY

    async def signal_all(self, signal: str, value: object) -> int:
        """Sends a signal to all running children and waits until they have received it; returns their number.

        Signals to one child are sent in sequence, to different children concurrently. A person's message that no child
        has received returns to the run's inbox.
        """
        running = [*self._running]
        message = ChildMessage(signal, value)
        for mailbox in running:
            mailbox.put(message)
        for mailbox in running:
            await mailbox.wait_until_sent()
        return len(running)

    async def terminate_all(self) -> None:
        """Requests all running children to end after their current turn."""
        await self.signal_all("terminate_team", TerminateRequest(reason=self._run.stop.note or ""))


_ID_REUSE = {
    "AllowDuplicate": WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    "AllowDuplicateFailedOnly": WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
    "RejectDuplicate": WorkflowIDReusePolicy.REJECT_DUPLICATE,
}


def application_workflow_failure(cause: BaseException | None, workflow_type: str) -> ToolFailed | CallTimeout:
    """The failure of a tool call whose workflow has failed: its innermost cause says most."""
    if isinstance(cause, ChildTimeout):
        return CallTimeout(f"the workflow '{workflow_type}' took too long")
    if isinstance(cause, ChildCancelled | TerminatedError):
        how = "canceled" if isinstance(cause, ChildCancelled) else "terminated"
        return ToolFailed(f"the workflow '{workflow_type}' was {how}")
    while isinstance(cause, FailureError) and isinstance(cause.cause, FailureError):
        cause = cause.cause
    kind = cause.type if isinstance(cause, ApplicationError) else None
    message = cause.message if isinstance(cause, FailureError) else ""
    return ToolFailed(message or kind or f"the workflow '{workflow_type}' failed")


def already_started(workflow_type: str, child_id: str) -> ToolFailed:
    """The failure of a tool call whose workflow has an id that may not be used again."""
    return ToolFailed(f"the workflow '{workflow_type}' was already started for this call, with the id {child_id}")


def _id_too_long(child_id: str) -> Failure:
    text = f"the workflow id {child_id[:100]}… has {byte_size(child_id):,} bytes; Temporal takes {MAX_WORKFLOW_ID:,}"
    return InvalidInput(f"{text}: start the run with a shorter id, or shorten the names of its teams").as_failure()


def _result_in(error: ChildWorkflowError) -> TurnResult | None:
    """The result in the failure of a child whose turn failed; None if it has none."""
    details = error.cause.details if isinstance(error.cause, ApplicationError) else ()
    try:
        (result,) = details
        return TurnResult.model_validate_json(json.dumps(result))
    except ValueError:
        return None


async def _wait(child: Child) -> TurnResult:
    """Waits for a child. On cancellation the child is canceled by its id: Temporal would cancel only its first run."""
    try:
        if was_canceled():
            raise asyncio.CancelledError
        await workflow.wait([child])
    except asyncio.CancelledError:
        await uncancelled(asyncio.create_task(_cancel(child.id)))
    return await uncancelled(child)


async def _cancel(child_id: str) -> None:
    with contextlib.suppress(ApplicationError):  # it may have ended by now
        await workflow.get_external_workflow_handle(child_id).cancel()


async def start_expiry(seconds: float | None) -> None:
    """Schedules the deletion of this run's data after ``seconds``, even during cancellation; None: no deletion.

    A child run waits for that time. It outlives this run, whose status can be read until then.
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
    """Deletes the data of a run, with retries until it succeeds."""
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
