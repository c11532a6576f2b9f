"""``strategy: selector``: a model chooses who speaks next (ARK: team strategies)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.contracts.continuation import State
from ..base.turn_workflow import TurnOutput, TurnWorkflow
from ..discussion.discussion import Discussion
from ..discussion.max_turns import reach_max_turns
from ..discussion.speaker_selection import select_speaker
from ..discussion.team_turn import TeamTurn


async def selector(team: Discussion) -> None:
    """Ends when the selector or a member terminates the team, when nobody may follow, or after ``maxTurns`` turns."""
    team.max_turns = team.plan.max_turns
    while team.can_continue():
        if team.turns == team.max_turns:
            await reach_max_turns(team)
            break
        member = await select_speaker(team)
        if member is None or not team.can_continue():
            break
        await team.run_member(member)


@workflow.defn(name="selector")
class SelectorWorkflow(TurnWorkflow):
    """The workflow type ``selector``."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(selector, self.pinned, self.run_state, self.children, state)
