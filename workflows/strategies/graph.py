"""``strategy: graph``: edges from the last speaker lead to the next one (ARK: team strategies)."""

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.inputs import State
from ..discussion.discussion import Discussion, TeamTurn, reach_max_turns
from ..run.base import workflow_type
from ..run.turn import TurnOutput, TurnWorkflow


async def graph(team: Discussion) -> None:
    """Begins with the first member, and ends where no edge continues, or after ``maxTurns`` turns."""
    team.max_turns = team.plan.max_turns
    while team.can_continue() and (member := next_member(team)) is not None:
        if team.turns == team.max_turns:
            await reach_max_turns(team)
            break
        await team.run_member(member)


def next_member(team: Discussion) -> int | None:
    """The target of the edge whose condition is true, or that has no condition; None where no edge continues."""
    if team.last_speaker is None:
        return 0
    edges = [edge for edge in team.plan.edges if edge.from_ == team.last_speaker]
    if any(edge.conditional for edge in edges):
        chosen = team.evaluated.edge
        return None if chosen is None else team.plan.edges[chosen].to
    return edges[0].to if edges else None


@workflow_type("graph")
class GraphWorkflow(TurnWorkflow):
    """The workflow type ``graph``."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(graph, self.pinned, self.run_state, self.children, state)
