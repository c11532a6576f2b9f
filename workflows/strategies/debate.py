"""``strategy: debate``: members argue for their stances, and a judge decides (round-robin pattern: debate)."""

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.inputs import State
from ..discussion.discussion import Discussion, TeamTurn
from ..discussion.panel import PanelDiscussion
from ..run.base import workflow_type
from ..run.turn import TurnOutput, TurnWorkflow


async def debate(team: Discussion) -> None:
    """Ends after ``maxRounds``, when its moderator ends it, or when ``terminateWhen`` is true; then it is judged."""
    panel = PanelDiscussion(team)
    await panel.begin()
    while panel.can_continue():
        if panel.waiting:
            await panel.run_next_member()
            continue
        if await panel.is_over():
            break
        panel.open_round()
        await panel.run_moderator()
    await panel.run_judge()
    await panel.deliver()


@workflow_type("debate")
class DebateWorkflow(TurnWorkflow):
    """The workflow type ``debate``."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(debate, self.pinned, self.run_state, self.children, state)
