"""The turn of a panel's member that is a function of the worker."""

from temporalio import workflow

from ...conversation.contracts.member_plans import ActivityMember
from ...conversation.contracts.panel_requests import PerformRequest
from ...conversation.messages.message import TokenUsage
from ...conversation.messages.turn import TurnResult
from ..calls import panels
from .member_turn import MemberTurn, TeamContext


class FunctionTurn:
    """Calls the function with what the brief is about."""

    def __init__(self, member: ActivityMember, team: TeamContext, turn: MemberTurn) -> None:
        self._member, self._team, self._turn = member, team, turn

    async def execute(self) -> TurnResult:
        """The function's result as the message of the turn."""
        team, turn, function = self._team, self._turn, self._member.function
        assert turn.brief, "the loader accepts functions as members of panels only"
        request = PerformRequest(thread=turn.thread, brief=turn.brief, function=function, name=turn.name)
        performed = await panels.perform(team.run, request)
        if performed.coerced and turn.name not in team.warned:
            team.warned.add(turn.name)
            text = "panel %s: %s gave neither a text nor {text}: made one by str()"
            workflow.logger.warning(text, team.name, turn.name)
        usage = TokenUsage(tool_calls=1)
        return TurnResult(head=performed.head, messages=(performed.message,), usage=usage)
