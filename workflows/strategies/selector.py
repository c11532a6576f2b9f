"""``strategy: selector``: a model chooses who speaks next (seed 001, 3)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.messages.turn import Turn
from ..discussion.discussion import Discussion
from ..discussion.speaker_selection import choose
from ..team import Team


@workflow.defn(name="selector")
class Selector(Team):
    """Ends when the selector or a member terminates the team, when nobody may follow, or after ``maxTurns`` turns."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()

    async def discuss(self, team: Discussion) -> None:
        team.turns = team.plan.max_turns
        while team.goes_on():
            if team.turn == team.turns:
                team.max_turns_reached()
                break
            seat = await choose(team)
            if seat is None or not team.goes_on():
                break
            await team.hear(seat)
