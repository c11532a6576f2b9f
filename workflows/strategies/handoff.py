"""``strategy: handoff``: the members transfer the conversation to each other."""

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.inputs import State
from ..discussion.discussion import Discussion, TeamTurn, reach_max_turns
from ..run.base import workflow_type
from ..run.turn import TurnOutput, TurnWorkflow


async def handoff(team: Discussion) -> None:
    """Ends when a member answers without a transfer, or terminates the team, or after ``maxTurns`` turns.

    It begins with the member that had the conversation at the end of its previous query.
    """
    team.max_turns = team.plan.max_turns
    while team.can_continue():
        member = team.plan.first if team.turns == 0 else team.handed_to
        if member is None:
            break
        if team.turns == team.max_turns:
            await reach_max_turns(team)
            break
        await team.run_member(member)


@workflow_type("handoff")
class HandoffWorkflow(TurnWorkflow):
    """The workflow type ``handoff``."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(handoff, self.pinned, self.run_state, self.children, state)
