"""The workflows ``agent`` and ``model``: one speaker asked by itself. Ending its team, it just ends its own turn."""

from pydantic import JsonValue
from temporalio import workflow

from ..conversation.contracts.continuation import AgentState, State
from ..conversation.contracts.plan import AgentPlan
from ..conversation.contracts.requests import Pinned
from ..conversation.messages.turn import Turn
from .base.turn_workflow import Member
from .discussion.agent_turn import AgentTurn


@workflow.defn(name="agent")
class Agent(Member):
    """Takes one turn of one agent (seed 004)."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()

    async def speak(self, pinned: Pinned, state: State | None) -> Turn:
        assert isinstance(pinned.plan, AgentPlan)
        assert state is None or isinstance(state, AgentState)
        self.speaking = turn = AgentTurn(pinned.plan, pinned.thread, self.stop, of=1, rests=True, state=state)
        return (await turn.take()).model_copy(update={"ended": False, "note": self.stop.note})


@workflow.defn(name="model")
class Model(Agent):
    """Lets a model answer as it is, without a prompt or tools (seed 003, Use Cases)."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()
