"""A turn of a member: its number, its place in the conversation, and what its team gives to it."""

from dataclasses import dataclass, field

from ...contracts.inputs import AgentState
from ...contracts.panel import SpeakerBrief
from ...contracts.turn import Thread
from ..calls.children import ChildWorkflows
from ..state.run_state import RunState


@dataclass(frozen=True)
class TeamContext:
    """What the turns of a team's members share: the team's name, the state of the run, and its children.

    ``warned`` are the functions of which the log already says that they return no text.
    """

    name: str
    run: RunState
    children: ChildWorkflows
    warned: set[str] = field(default_factory=lambda: set[str]())


@dataclass(frozen=True)
class MemberTurn:
    """Turn ``number`` of at most ``of``, taken by the member that is called ``name``, at a place in the conversation.

    In a panel the member reads a ``brief`` instead of the conversation. With an ``index`` no other member speaks at the
    same time: a long run may continue as new in the middle of an agent's turn, which then resumes from ``state``.
    """

    name: str
    number: int
    of: int | None
    thread: Thread
    brief: SpeakerBrief | None = None
    index: int | None = None
    state: AgentState | None = None
