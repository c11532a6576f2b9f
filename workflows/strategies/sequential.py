"""``strategy: sequential``: one pass through the members, in order (ARK: team strategies)."""

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.inputs import State
from ..discussion.discussion import Discussion, TeamTurn, reach_max_turns
from ..run.base import workflow_type
from ..run.turn import TurnOutput, TurnWorkflow


async def sequential(team: Discussion) -> None:
    """Ends when every member has spoken once, or when one of them terminates the team; ``loops`` repeats it."""
    team.max_turns = team.plan.max_turns if team.plan.loops else len(team.members)
    while team.can_continue():
        if team.turns == team.max_turns:
            if team.plan.loops:
                await reach_max_turns(team)
            break
        await team.run_member(team.turns % len(team.members))


@workflow_type("sequential")
class SequentialWorkflow(TurnWorkflow):
    """The workflow type ``sequential``."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(sequential, self.pinned, self.run_state, self.children, state)
