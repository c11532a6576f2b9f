"""The workflow types ``agent``, ``model`` and ``tool``: one turn of an agent, a model call, or a tool call."""

import asyncio

from pydantic import JsonValue
from temporalio import workflow

from ..contracts.errors import CallRejected
from ..contracts.inputs import AgentState, State, ToolState
from ..contracts.plan import AgentPlan, ToolPlan, ToolTarget
from ..contracts.requests import UseToolRequest
from ..contracts.turn import Thread, TurnResult
from .calls.children import ChildWorkflows
from .discussion.agent_turn import AgentTurn, ToolUse
from .discussion.member_turn import MemberTurn, TeamContext
from .run.base import workflow_type
from .run.turn import RunningTurn, TurnOutput, TurnWorkflow
from .state.run_state import RunState
from .state.stopping import ActivityFailed, ActivityInterrupted, NotAllowed


class ToolTurn:
    """Calls a tool once; its result is the answer."""

    next_turn = None

    def __init__(self, plan: ToolTarget, thread: Thread, run: RunState, children: ChildWorkflows) -> None:
        self._plan = plan
        self._thread = thread
        self._run = run
        self._children = children
        self.so_far = TurnResult(head=thread.head, turns=0)

    @property
    def state(self) -> ToolState:
        """Empty: the run keeps the decision that the call waits for."""
        return ToolState(kind="tool")

    async def execute(self) -> TurnResult:
        """The tool's result as the message of the turn."""
        plan = self._plan
        thread = self._thread
        request = UseToolRequest(thread=thread, speaker=f"Tool/{plan.namespace}/{plan.name}")
        tool = ToolPlan(
            name=plan.name,
            timeout=plan.timeout,
            asks=plan.asks,
            activity=plan.activity,
            workflow=plan.workflow,
            approval=plan.approval,
            questions=plan.questions,
            retries=plan.retries,
        )
        use = ToolUse(tool, request, self._run, self._children)
        turn = TurnResult(head=thread.head)
        try:
            await self._run.ready(continues=True)
            used = await use.attempt(plan.name)
            turn = turn.saying(used.head, used.message)
        except (ActivityInterrupted, asyncio.CancelledError):
            turn = turn.stopped(self._run.stop.interruption)
        except NotAllowed as rejected:
            turn = turn.failed(CallRejected(str(rejected)).as_failure())
        except ActivityFailed as failed:
            turn = turn.ended_by(failed.failure, request.speaker)
        return turn.with_usage(use.usage)


def single_turn(
    plan: AgentPlan | ToolTarget, turn: MemberTurn, run: RunState, children: ChildWorkflows
) -> AgentTurn | ToolTurn:
    """The turn at its beginning, or as restored from the state of the previous run."""
    if isinstance(plan, ToolTarget):
        return ToolTurn(plan, turn.thread, run, children)
    return AgentTurn(plan, TeamContext(plan.name, run, children), turn)


@workflow_type("agent")
class AgentWorkflow(TurnWorkflow):
    """The workflow type ``agent`` (ARK: agent execution)."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> RunningTurn:
        plan = self.pinned.plan
        assert isinstance(plan, AgentPlan | ToolTarget)
        turn = MemberTurn(
            name=plan.name,
            number=self.run_input.turn or 1,
            of=self.run_input.turns if self.run_input.turn else 1,
            thread=self.pinned.thread,
            state=state if isinstance(state, AgentState) else None,
        )
        return single_turn(plan, turn, self.run_state, self.children)


@workflow_type("model")
class ModelWorkflow(AgentWorkflow):
    """The workflow type ``model``: a model without prompt and tools (ARK: queries, targets)."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()


@workflow_type("tool")
class ToolWorkflow(AgentWorkflow):
    """The workflow type ``tool``: one tool call, with the input as its arguments (ARK: queries, targets)."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()
