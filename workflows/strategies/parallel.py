"""``strategy: parallel``: all members answer at once, unseen by each other (seed 003, Team Strategies)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.messages.turn import Turn
from ..discussion.discussion import Discussion
from ..discussion.parallel_turns import hear_all
from ..team import Team


@workflow.defn(name="parallel")
class Parallel(Team):
    """Ends when all have answered, or when an ``aggregator`` has made one answer of theirs."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()

    async def discuss(self, team: Discussion) -> None:
        aggregator = team.plan.aggregator
        team.turns = len(team.members) + (aggregator is not None)
        answer = await hear_all(team)
        if aggregator and team.goes_on():
            team.join(aggregator, await team.take(aggregator, team.turn + 1))
        else:
            team.answer(answer)
