"""``strategy: round-robin``: the members speak in their order, round after round (seeds 000, 001 and 002)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.messages.turn import Turn
from ..discussion.discussion import Discussion
from ..panel.rounds import Panel
from ..team import Team


@workflow.defn(name="round-robin")
class RoundRobin(Team):
    """Ends when a member terminates the team, or after ``maxTurns`` rounds of all members; a panel as ``hold`` says."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()

    async def discuss(self, team: Discussion) -> None:
        if team.plan.panel:
            await hold(Panel(team, team.plan.panel, self.session))
            return
        rounds = team.plan.max_turns
        team.turns = rounds and rounds * len(team.members)
        while team.goes_on():
            done, seat = divmod(team.turn, len(team.members))
            if done == rounds:
                team.max_turns_reached()
                break
            await team.hear(seat)


async def hold(panel: Panel) -> None:
    """Round after round, up to the last or until ``terminateWhen`` holds (seed 002, How it works)."""
    await panel.begin()
    while panel.goes_on():
        if panel.waiting:
            await panel.hear_next()
            continue
        await panel.hear_referee()
        if await panel.is_over():
            break
        panel.open_round()
    await panel.deliver()
