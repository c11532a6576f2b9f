"""The child workflows of a run: each takes a turn at a place in the conversation."""

import asyncio
import contextlib
import json

from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.exceptions import CancelledError as ChildCancelled
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from ...conversation.contracts.control_messages import SteerRequest, TerminateRequest
from ...conversation.contracts.decisions import RememberedDecision
from ...conversation.contracts.inputs import TurnInput
from ...conversation.errors import InvalidInput, RunClosed
from ...conversation.failure import Failure
from ...conversation.messages.message import Head
from ...conversation.messages.turn import TurnResult
from ...conversation.temporal.temporal_client import WORKFLOW_TASK_TIMEOUT
from ...conversation.text import byte_size
from ...resources.workflow_ids import MAX_WORKFLOW_ID
from ..state.cancellation import uncancelled
from ..state.constants import MAX_CONCURRENT_CHILDREN, ORDERED_MESSAGES, PAUSED_AT_START, SESSION_AFTER_START
from ..state.continue_as_new import should_continue_as_new
from ..state.errors import ContinueAsNew
from ..state.run_state import RunState
from .child_mailbox import Child, ChildMailbox, ChildMessage

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
                    return nothing.model_copy(update={"stop_reason": "failed", "failure": _id_too_long(child_id)})
                turn = nothing if self._run.stop.now else await self._open_child(workflow_type, given, child_id)
        except ChildWorkflowError as error:
            closed = RunClosed(f"the run of {given.name} was closed: {error.cause or error}").as_failure()
            turn = nothing.model_copy(update={"stop_reason": "failed", "failure": closed})
            if isinstance(error.cause, ChildCancelled):
                turn = nothing
        except asyncio.CancelledError:
            turn = nothing
        if turn.stop_reason == "canceled" and not self._run.stop.reason:
            canceled = RunClosed(f"the run of {given.name} was canceled").as_failure()
            turn = turn.model_copy(update={"failure": canceled})
        return turn

    async def _open_child(self, workflow_type: str, given: TurnInput, child_id: str) -> TurnResult:
        self._open.append(child_id)
        try:
            return await self._result(workflow_type, given, child_id)
        finally:
            self._open.remove(child_id)
            self._run.decisions.child_waits(child_id, waits=False)

    async def _result(self, workflow_type: str, given: TurnInput, child_id: str) -> TurnResult:
        self._started += 1
        session = self._run.session.values
        pause = self._run.inbox.pause if self._run.inbox.pause and workflow.patched(PAUSED_AT_START) else None
        own = {"session": session, "stop": self._run.stop.state, "pause": pause, "question": self._run.question}
        given = given.model_copy(update={"fails": True, **{name: value for name, value in own.items() if value}})
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
        return result.model_copy(update={"unread": ()}) if result.unread else result

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
        if run.session.values != given.session and workflow.patched(SESSION_AFTER_START):
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
        running, message = [*self._running], ChildMessage(signal, value)
        if (len(running) > 1 or any(each.is_sending for each in running)) and not workflow.patched(ORDERED_MESSAGES):
            for each in running:
                await each.send_now(message)
            return len(running)
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
