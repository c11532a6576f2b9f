"""``strategy: debate``: members argue for their stances, and a judge decides (seed 002, See also)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.messages.turn import Turn
from ..discussion.discussion import Discussion
from ..panel.rounds import Panel
from ..team import Team


@workflow.defn(name="debate")
class Debate(Team):
    """Ends after ``maxRounds``, when its moderator is done, or when ``terminateWhen`` holds; then it is judged."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()

    async def discuss(self, team: Discussion) -> None:
        assert team.plan.panel
        debate = Panel(team, team.plan.panel, self.session)
        await debate.begin()
        while debate.goes_on():
            if debate.waiting:
                await debate.hear_next()
                continue
            if await debate.is_over():
                break
            debate.open_round()
            await debate.hear_moderator()
        await debate.hear_judge()
        await debate.deliver()
