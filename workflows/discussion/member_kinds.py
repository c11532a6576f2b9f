"""The table of member kinds: how each kind of member takes its turn."""

from collections.abc import Callable
from typing import Any, Protocol

from ...conversation.messages.turn import TurnResult
from .agent_turn import AgentTurn
from .function_turn import FunctionTurn
from .human_turn import HumanTurn
from .member_turn import MemberTurn, TeamContext
from .nested_team_turn import NestedTeamTurn


class RunningMember(Protocol):
    """A turn of a member."""

    async def execute(self) -> TurnResult:
        """Takes the turn to its end."""


MEMBER_KINDS: dict[str, Callable[[Any, TeamContext, MemberTurn], RunningMember]] = {
    "agent": AgentTurn,
    "model": AgentTurn,
    "team": NestedTeamTurn,
    "activity": FunctionTurn,
    "human": HumanTurn,
}
"""For each ``kind`` of a MemberPlan, what takes its turn."""
