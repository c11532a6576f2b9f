"""``strategy: parallel``: all members answer at once, without reading each other (ARK: queries, team strategies)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.contracts.continuation import State
from ..base.turn_workflow import TurnOutput, TurnWorkflow
from ..discussion.discussion import Discussion
from ..discussion.member_turn import MemberTurn
from ..discussion.parallel_turns import run_all_members
from ..discussion.team_turn import TeamTurn


async def parallel(team: Discussion) -> None:
    """Ends when all have answered, or when an ``aggregator`` has made one answer of theirs."""
    aggregator = team.plan.aggregator
    team.max_turns = len(team.members) + (aggregator is not None)
    answer = await run_all_members(team)
    if aggregator and team.can_continue():
        turn = MemberTurn(aggregator.name, team.turns + 1, team.max_turns, team.thread)
        team.result.add_turn(aggregator.name, await team.run_turn(aggregator, turn))
    else:
        team.result.set_answer(answer)


@workflow.defn(name="parallel")
class ParallelWorkflow(TurnWorkflow):
    """The workflow type ``parallel``."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(parallel, self.pinned, self.run_state, self.children, state)
