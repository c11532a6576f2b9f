"""The workflow types ``agent`` and ``model``: one turn of an agent, or of a model without prompt and tools."""

from pydantic import JsonValue
from temporalio import workflow

from ..conversation.contracts.continuation import AgentState, State
from ..conversation.contracts.plan import AgentPlan
from .base.turn_workflow import TurnOutput, TurnWorkflow
from .discussion.agent_turn import AgentTurn
from .discussion.member_turn import MemberTurn, TeamContext


@workflow.defn(name="agent")
class AgentWorkflow(TurnWorkflow):
    """The workflow type ``agent`` (ARK: agent execution)."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> AgentTurn:
        plan = self.pinned.plan
        assert isinstance(plan, AgentPlan)
        assert state is None or isinstance(state, AgentState)
        turn = MemberTurn(plan.name, number=1, of=1, thread=self.pinned.thread, index=0, state=state)
        return AgentTurn(plan, TeamContext(plan.name, self.run_state, self.children), turn)


@workflow.defn(name="model")
class ModelWorkflow(AgentWorkflow):
    """The workflow type ``model`` (ARK: queries, targets)."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnOutput:
        return await self.execute()
