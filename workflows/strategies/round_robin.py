"""``strategy: round-robin``: the members speak in their order, round after round (ARK: team strategies)."""

from pydantic import JsonValue
from temporalio import workflow

from ...conversation.contracts.continuation import State
from ...conversation.contracts.status import RunResult
from ...conversation.messages.turn import TurnResult
from ..base.turn_workflow import TurnWorkflow
from ..discussion.discussion import Discussion
from ..discussion.team_turn import TeamTurn
from ..panel.rounds import PanelDiscussion


async def round_robin(team: Discussion) -> None:
    """Ends when a member terminates the team, or after ``maxTurns`` rounds of all members."""
    if team.plan.panel:
        await run_panel(PanelDiscussion(team))
        return
    rounds = team.plan.max_turns
    team.max_turns = rounds and rounds * len(team.members)
    while team.can_continue():
        done, member = divmod(team.turns, len(team.members))
        if done == rounds:
            team.result.reach_max_turns()
            break
        await team.run_member(member)


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


@workflow.defn(name="round-robin")
class RoundRobinWorkflow(TurnWorkflow):
    """The workflow type ``round-robin``."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult | RunResult:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(round_robin, self.pinned, self.run_state, self.children, state)
