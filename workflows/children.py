"""How does a run let another run take a turn? Child workflows, started at a place in the conversation."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import CancelledError as ChildCancelled
from temporalio.exceptions import ChildWorkflowError
from temporalio.workflow import ChildWorkflowCancellationType, ChildWorkflowHandle, ParentClosePolicy

from conversation.errors import RunClosed
from conversation.message import Head
from conversation.requests import EndRequest
from conversation.turn import Turn, TurnInput
from conversation.wire import TASK_TIMEOUT
from workflows.stopping import Stop


class Children:
    """The child runs of a run. A graceful end is passed on to them; an end now cancels them."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self._running: list[ChildWorkflowHandle[object, Turn]] = []

    async def take(self, kind: str, given: TurnInput, place: str, head: Head) -> Turn:
        """Lets ``given`` take its turn in a child run of the workflow type ``kind``.

        Whatever happens to the child, a turn comes back; one that never began or was killed has said nothing.
        """
        try:
            return await self._result(kind, given, f"{workflow.info().workflow_id}/{place}/{given.name}")
        except ChildWorkflowError as error:
            if isinstance(error.cause, ChildCancelled):
                return Turn(head=head, turns=0, stop_reason="canceled")
            closed = RunClosed(f"the run of {given.name} was closed: {error.cause or error}")
            return Turn(head=head, turns=0, stop_reason="failed", failure=closed.as_failure())
        except asyncio.CancelledError:
            return Turn(head=head, turns=0, stop_reason="canceled")

    async def _result(self, kind: str, given: TurnInput, child_id: str) -> Turn:
        child: ChildWorkflowHandle[object, Turn] = await workflow.start_child_workflow(
            kind,
            given,
            id=child_id,
            result_type=Turn,
            task_timeout=TASK_TIMEOUT,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            static_summary=f"{kind} · {given.name}",
        )
        self._running.append(child)
        try:
            if self.stop.reason:
                await self._tell(child)
            return await child
        finally:
            self._running.remove(child)

    async def tell(self) -> None:
        """Passes on to the running children that they are to end."""
        for child in [*self._running]:
            await self._tell(child)

    async def _tell(self, child: ChildWorkflowHandle[object, Turn]) -> None:
        try:
            await child.signal("terminate_team", EndRequest(reason=self.stop.note or ""))
        except Exception:
            workflow.logger.debug("the child run %s has ended already", child.id)
