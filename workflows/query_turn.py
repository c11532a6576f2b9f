"""The turn of a query's only target, where that is an agent, a model or a tool: the query takes it in its own run."""

from ..conversation.contracts.continuation import AgentState
from ..conversation.contracts.plan import AgentPlan, ToolTarget
from ..conversation.contracts.status import Status
from ..conversation.messages.turn import Thread, TurnResult
from .calls.child_workflows import ChildWorkflows
from .discussion.agent_turn import AgentTurn
from .discussion.single_turn import single_turn
from .discussion.tool_turn import ToolTurn
from .state.run_state import RunState


class QueryTurn:
    """The turn of the only target; it has not ``begun`` where a query has none, or has not come to it."""

    def __init__(self, run: RunState, children: ChildWorkflows) -> None:
        self._run, self._children = run, children
        self._turn: AgentTurn | ToolTurn | None = None
        self._restored: AgentState | None = None

    @property
    def begun(self) -> bool:
        """Whether the turn has begun."""
        return self._turn is not None

    @property
    def state(self) -> AgentState | None:
        """What the next run needs to go on with the turn, which is never a tool's."""
        return self._turn.state if isinstance(self._turn, AgentTurn) else None

    def restore(self, state: AgentState | None) -> None:
        """Takes up where the run before this one has left the turn."""
        self._restored = state

    async def take(self, plan: AgentPlan | ToolTarget, thread: Thread) -> TurnResult:
        """The result of the turn, under the budget of its agent, if that has one."""
        own = thread.under(plan.speaker) if isinstance(plan, AgentPlan) and plan.budget and thread.account else thread
        self._turn = single_turn(plan, own, self._run, self._children, self._restored)
        turn = await self._turn.execute()
        return turn.model_copy(update={"ended": False, "note": self._run.stop.note or turn.note})

    def in_status(self, status: Status) -> Status:
        """The status of the query while it takes the turn, with what was said in it so far."""
        if not self._turn:
            return status
        so_far = self._turn.so_far
        told = {"message": so_far.message, "token_usage": so_far.usage}
        response = status.responses[0].model_copy(update={**told, "messages": so_far.messages, "turns": so_far.turns})
        return status.model_copy(update={**told, "responses": (response,), "runs": self._children.running or None})
