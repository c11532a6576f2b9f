"""A turn of a member: its number, its place in the conversation, and the shared context of its team."""

from dataclasses import dataclass, field, replace

from ...contracts.inputs import AgentState
from ...contracts.panel import SpeakerBrief
from ...contracts.turn import Thread
from ..calls.children import ChildWorkflows
from ..state.run_state import RunState


@dataclass(frozen=True)
class TeamContext:
    """The state that the turns of a team's members share: the team's name, the state of the run, and its children.

    ``warned`` are the functions for which the log already has the warning that they return no text.
    """

    name: str
    run: RunState
    children: ChildWorkflows
    warned: set[str] = field(default_factory=lambda: set[str]())


@dataclass(frozen=True)
class MemberTurn:
    """Turn ``number`` of at most ``of``, taken by the member ``name`` at a place in the conversation.

    In a panel the member reads a ``brief`` instead of the conversation. An agent's turn that the previous run has begun
    resumes from ``state``.
    """

    name: str
    number: int
    of: int | None
    thread: Thread
    brief: SpeakerBrief | None = None
    state: AgentState | None = None

    def resumed(self, state: AgentState | None) -> "MemberTurn":
        """The turn at the point where the previous run left it."""
        return replace(self, state=state)
