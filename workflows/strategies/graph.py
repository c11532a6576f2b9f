"""``strategy: graph``: who speaks next is where an edge leads from who spoke last (seed 001, 4)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.messages.turn import Turn
from ..discussion.discussion import Discussion
from ..team import Team


@workflow.defn(name="graph")
class Graph(Team):
    """Begins with the first member, and ends where no edge leads on, or after ``maxTurns`` turns."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()

    async def discuss(self, team: Discussion) -> None:
        team.turns = team.plan.max_turns
        while team.goes_on() and (seat := team.led_to()) is not None:
            if team.turn == team.turns:
                team.max_turns_reached()
                break
            await team.hear(seat)
