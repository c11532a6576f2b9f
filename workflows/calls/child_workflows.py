"""How does a run let another run take a turn? Child workflows, started at a place in the conversation."""

import asyncio
import contextlib

from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.exceptions import CancelledError as ChildCancelled
from temporalio.workflow import ChildWorkflowCancellationType, ChildWorkflowHandle, ParentClosePolicy

from ...conversation.contracts.control_messages import EndRequest, SteerRequest
from ...conversation.contracts.inputs import TurnInput
from ...conversation.errors import RunClosed
from ...conversation.messages.message import Head
from ...conversation.messages.turn import Turn
from ...conversation.temporal.temporal_client import TASK_TIMEOUT
from ..state.cancellation import Stop, uninterrupted
from ..state.continue_as_new import WIDTH, Rest, is_long
from ..state.session_state import Session
from .task_queues import priority


class Children:
    """The child runs of a run. A graceful end is passed on to them; an end now cancels them."""

    def __init__(self, stop: Stop, session: Session) -> None:
        self.stop, self.session = stop, session
        self.begun = 0
        self._free = asyncio.Semaphore(WIDTH)
        self._running: list[ChildWorkflowHandle[object, Turn]] = []

    async def take(self, kind: str, given: TurnInput, place: str, head: Head, *, rests: bool = False) -> Turn:
        """Lets ``given`` take its turn in a child run of the workflow type ``kind``.

        Whatever happens to the child, a turn comes back; one that never began or was killed has said nothing. With
        ``rests``, Rest is raised instead of beginning one more in a run that has become long.
        """
        nothing = Turn(head=head, turns=0, stop_reason="canceled")
        try:
            async with self._free:
                if rests and self.begun and is_long():
                    raise Rest
                child_id = f"{workflow.info().workflow_id}/{place}/{given.name}"
                turn = nothing if self.stop.now else await self._result(kind, given, child_id)
        except ChildWorkflowError as error:
            closed = RunClosed(f"the run of {given.name} was closed: {error.cause or error}").as_failure()
            turn = nothing.model_copy(update={"stop_reason": "failed", "failure": closed})
            if isinstance(error.cause, ChildCancelled):
                turn = nothing
        except asyncio.CancelledError:
            turn = nothing
        if turn.stop_reason == "canceled" and not self.stop.reason:
            canceled = RunClosed(f"the run of {given.name} was canceled").as_failure()
            turn = turn.model_copy(update={"failure": canceled})
        return turn

    async def _result(self, kind: str, given: TurnInput, child_id: str) -> Turn:
        self.begun += 1
        session = self.session.values
        given = given.model_copy(update={"session": session}) if session else given
        child = await self._started(kind, given, child_id)
        self._running.append(child)
        try:
            if self.session.values != session and workflow.patched("session-after-start"):
                await self._send(child, "session", {**dict.fromkeys(session), **self.session.values})
            if self.stop.reason == "terminated":
                await self._send(child, "terminate_team", EndRequest(reason=self.stop.note or ""))
            if self.stop.floor.paused:
                await self._send(child, "pause", None)
            for said in self.stop.floor.take():
                await self._send(child, "steer", SteerRequest(text=said.content, name=said.name or "user"))
            return await _ended(child)
        finally:
            self._running.remove(child)

    async def _started(self, kind: str, given: TurnInput, child_id: str) -> ChildWorkflowHandle[object, Turn]:
        """Starts the child; one of that id that a reset has left running is canceled first."""
        while True:
            try:
                return await workflow.start_child_workflow(
                    kind,
                    given,
                    id=child_id,
                    result_type=Turn,
                    task_timeout=TASK_TIMEOUT,
                    cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                    parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                    static_summary=f"{kind} · {given.name}",
                    priority=priority(),
                )
            except WorkflowAlreadyStartedError:
                await _cancel(child_id)
                await workflow.sleep(1)

    async def pass_on(self, signal: str, value: object) -> int:
        """Sends a signal to the running children; to how many of them it went."""
        running = [*self._running]
        for child in running:
            await self._send(child, signal, value)
        return len(running)

    async def end(self) -> None:
        """Passes on to the running children that they are to end."""
        await self.pass_on("terminate_team", EndRequest(reason=self.stop.note or ""))

    async def _send(self, child: ChildWorkflowHandle[object, Turn], signal: str, value: object) -> None:
        try:
            await child.signal(signal, value)
        except Exception:
            workflow.logger.debug("the child run %s has ended already", child.id)


async def _ended(child: ChildWorkflowHandle[object, Turn]) -> Turn:
    """Waits for a child; given up, it is canceled by its id, because Temporal would cancel its first run alone."""
    try:
        await workflow.wait([child])
    except asyncio.CancelledError:
        await uninterrupted(asyncio.create_task(_cancel(child.id)))
    return await uninterrupted(child)


async def _cancel(child_id: str) -> None:
    with contextlib.suppress(ApplicationError):  # it may have ended by now
        await workflow.get_external_workflow_handle(child_id).cancel()
