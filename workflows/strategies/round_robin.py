"""``strategy: round-robin``: the members speak in order, round after round (ARK: team strategies)."""

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.inputs import State
from ..discussion.discussion import Discussion, TeamTurn, reach_max_turns
from ..discussion.panel import PanelDiscussion
from ..run.base import workflow_type
from ..run.turn import TurnOutput, TurnWorkflow


async def round_robin(team: Discussion) -> None:
    """Ends when a member terminates the team, or after ``maxTurns`` rounds of all members (in ARK's dialect, turns)."""
    if team.plan.panel:
        await run_panel(PanelDiscussion(team))
        return
    bound = team.plan.max_turns
    members = len(team.members)
    team.max_turns = bound if team.plan.dialect == "ark" else bound and bound * members
    while team.can_continue():
        if team.turns == team.max_turns:
            await reach_max_turns(team)
            break
        await team.run_member(team.turns % members)


async def run_panel(panel: PanelDiscussion) -> None:
    """Ends after ``maxRounds`` or by ``terminateWhen``; a referee may speak after each round (round-robin pattern)."""
    await panel.begin()
    while panel.can_continue():
        if panel.waiting:
            await panel.run_next_member()
            continue
        await panel.run_referee()
        if await panel.is_over():
            break
        panel.open_round()
    await panel.deliver()


@workflow_type("round-robin")
class RoundRobinWorkflow(TurnWorkflow):
    """The workflow type ``round-robin``."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(round_robin, self.pinned, self.run_state, self.children, state)
