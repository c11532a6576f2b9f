"""The turn of one agent, model or tool by itself, in no team."""

from ...conversation.contracts.continuation import AgentState, State
from ...conversation.contracts.plan import AgentPlan, ToolTarget
from ...conversation.messages.turn import Thread
from ..calls.child_workflows import ChildWorkflows
from ..state.run_state import RunState
from .agent_turn import AgentTurn
from .member_turn import MemberTurn, TeamContext
from .tool_turn import ToolTurn


def single_turn(
    plan: AgentPlan | ToolTarget, thread: Thread, run: RunState, children: ChildWorkflows, state: State | None = None
) -> AgentTurn | ToolTurn:
    """The turn at its beginning, or where the ``state`` of the run before this one has left it."""
    if isinstance(plan, ToolTarget):
        return ToolTurn(plan, thread, run, children)
    assert state is None or isinstance(state, AgentState)
    turn = MemberTurn(plan.name, number=1, of=1, thread=thread, index=0, state=state)
    return AgentTurn(plan, TeamContext(plan.name, run, children), turn)
