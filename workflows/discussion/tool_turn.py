"""The turn of a tool: one use of it, with the input of the query as its arguments."""

import asyncio

from ...conversation.contracts.continuation import State
from ...conversation.contracts.plan import ToolPlan, ToolTarget
from ...conversation.contracts.tool_requests import UseToolRequest
from ...conversation.errors import CallRejected
from ...conversation.messages.turn import Thread, TurnResult
from ..calls.child_workflows import ChildWorkflows
from ..state.errors import ActivityFailed, ActivityInterrupted, NotAllowed
from ..state.run_state import RunState
from .tool_use import ToolUse


class ToolTurn:
    """Uses one tool once; its result is the answer."""

    next_turn = None

    def __init__(self, plan: ToolTarget, thread: Thread, run: RunState, children: ChildWorkflows) -> None:
        self._plan, self._thread, self._run, self._children = plan, thread, run, children
        self.so_far = TurnResult(head=thread.head, turns=0)

    @property
    def state(self) -> State:
        """There is none: a run with one activity never continues as new."""
        raise AssertionError("the turn of a tool does not continue as new")

    async def execute(self) -> TurnResult:
        """The tool's result as the message of the turn."""
        plan, thread = self._plan, self._thread
        request = UseToolRequest(thread=thread, speaker=f"Tool/{plan.namespace}/{plan.name}")
        given = {"timeout": plan.timeout, "asks": plan.asks, "approval": plan.approval, "questions": plan.questions}
        tool = ToolPlan(name=plan.name).model_copy(update=given)
        use, turn = ToolUse(tool, request, self._run, self._children), TurnResult(head=thread.head)
        try:
            used = await use.attempt(plan.name)
            turn = turn.model_copy(update={"head": used.head, "messages": (used.message,)})
        except (ActivityInterrupted, asyncio.CancelledError):
            turn = turn.model_copy(update={"stop_reason": self._run.stop.reason or "canceled"})
        except NotAllowed as rejected:
            failure = CallRejected(str(rejected)).as_failure()
            turn = turn.model_copy(update={"stop_reason": "failed", "failure": failure})
        except ActivityFailed as failed:
            turn = turn.ended_by(failed.failure, request.speaker)
        return turn.model_copy(update={"usage": use.usage})
