"""``strategy: round-robin``: the members speak in their order, round after round (seed 000; seed 001, 2)."""

from pydantic import JsonValue
from temporalio import workflow

from conversation.turn import Turn
from workflows.discussion import Discussion
from workflows.team import Team


@workflow.defn(name="round-robin")
class RoundRobin(Team):
    """Ends when a member terminates the team, or after ``maxTurns`` rounds of all members."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct(given)

    async def discuss(self, team: Discussion) -> None:
        rounds = team.plan.max_turns
        team.turns = rounds and rounds * len(team.members)
        while team.goes_on():
            done, seat = divmod(team.turn, len(team.members))
            if done == rounds:
                team.max_turns_reached()
                break
            await team.hear(seat)
