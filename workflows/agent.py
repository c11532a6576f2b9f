"""The workflow types ``agent``, ``model`` and ``tool``: one turn of an agent, of a model by itself, or of a tool."""

from pydantic import JsonValue
from temporalio import workflow

from ..conversation.contracts.continuation import State
from ..conversation.contracts.plan import AgentPlan, ToolTarget
from .base.turn_workflow import RunningTurn, TurnOutput, TurnWorkflow
from .discussion.single_turn import single_turn


@workflow.defn(name="agent")
class AgentWorkflow(TurnWorkflow):
    """The workflow type ``agent`` (ARK: agent execution)."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> RunningTurn:
        plan = self.pinned.plan
        assert isinstance(plan, AgentPlan | ToolTarget)
        return single_turn(plan, self.pinned.thread, self.run_state, self.children, state)


@workflow.defn(name="model")
class ModelWorkflow(AgentWorkflow):
    """The workflow type ``model``: a model without prompt and tools (ARK: queries, targets)."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnOutput:
        return await self.execute()


@workflow.defn(name="tool")
class ToolWorkflow(AgentWorkflow):
    """The workflow type ``tool``: one use of a tool, with the input as its arguments (ARK: queries, targets)."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnOutput:
        return await self.execute()
