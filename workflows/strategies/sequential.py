"""``strategy: sequential``: one pass through the members, each hearing all that was said before it (seed 001, 1)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.messages.turn import Turn
from ..discussion.discussion import Discussion
from ..team import Team


@workflow.defn(name="sequential")
class Sequential(Team):
    """Ends when every member has spoken once, or when one of them terminates the team; with ``loops`` it goes on."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()

    async def discuss(self, team: Discussion) -> None:
        team.turns = team.plan.max_turns if team.plan.loops else len(team.members)
        while team.goes_on():
            if team.turn == team.turns:
                if team.plan.loops:
                    team.max_turns_reached()
                break
            await team.hear(team.turn % len(team.members))
