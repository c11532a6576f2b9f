"""``strategy: sequential``: one pass through the members, each hearing all that was said before it (seed 001, 1)."""

from pydantic import JsonValue
from temporalio import workflow

from conversation.turn import Turn
from workflows.discussion import Discussion
from workflows.team import Team


@workflow.defn(name="sequential")
class Sequential(Team):
    """Ends when every member has spoken once, or when one of them terminates the team."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct(given)

    async def discuss(self, team: Discussion) -> None:
        team.turns = len(team.members)
        while team.goes_on() and team.turn < len(team.members):
            await team.hear(team.members[team.turn])
