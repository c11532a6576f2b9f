"""The turn of a member that is a team: a child workflow."""

import asyncio

from ...conversation.contracts.inputs import TurnInput
from ...conversation.contracts.member_plans import TeamMember
from ...conversation.contracts.panel_requests import BriefRequest
from ...conversation.messages.message import Message
from ...conversation.messages.turn import TurnResult
from ..calls import effects, panels
from ..state.cancellation import uncancelled
from .member_turn import MemberTurn, TeamContext


class NestedTeamTurn:
    """Runs the team at the turn's place in the conversation, or on a brief in a conversation of its own."""

    def __init__(self, member: TeamMember, team: TeamContext, turn: MemberTurn) -> None:
        self._member, self._team, self._turn = member, team, turn

    async def execute(self) -> TurnResult:
        """What the team has said, as far as that joins the conversation."""
        member, turn = self._member, self._turn
        thread, place = turn.thread, f"turn-{turn.number}"
        if brief := turn.brief:
            thread = await panels.brief(self._team.run, BriefRequest(thread=thread, brief=brief), turn.name)
            place = f"round-{brief.round}/{brief.part if brief.seat is None else brief.seat + 1}"
        given = TurnInput(team=member.name, namespace=member.namespace, thread=thread)
        result = await self._team.children.execute(member.strategy, given, place, turn.thread.head)
        if turn.brief or member.joins == "conversation":
            return result
        return await self._joined(result)

    async def _joined(self, result: TurnResult) -> TurnResult:
        """The turn of a panel, of which only the result joins the conversation, or nothing."""
        head = self._turn.thread.head
        if result.failure:
            return result.model_copy(update={"head": head})
        if self._member.joins == "nothing" or not result.message:
            return result.model_copy(update={"head": head, "messages": (), "cut": False})
        message = Message(role="assistant", content=result.message, name=self._member.name)
        task = asyncio.create_task(effects.append(self._team.run, head, (message,)))
        return result.model_copy(update={"head": await uncancelled(task), "messages": (message,), "cut": False})
