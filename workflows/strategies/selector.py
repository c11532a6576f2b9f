"""``strategy: selector``: a model chooses the next speaker (ARK: team strategies)."""

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.inputs import State
from ...contracts.requests import SelectRequest, SelectResult
from ..calls import effects
from ..discussion.discussion import Discussion, TeamTurn, reach_max_turns
from ..run.base import workflow_type
from ..run.turn import TurnOutput, TurnWorkflow


async def select_speaker(team: Discussion) -> int | None:
    """The index of the next speaker; None if the discussion is over."""
    candidates = _candidates(team)
    function = team.plan.selector and team.plan.selector.function
    may_end = team.plan.selector and team.plan.selector.can_end and team.turns
    if function and candidates:
        await team.attempt(team.read_inbox())
        return await team.choose(candidates) if team.can_continue() else None
    if not candidates or (len(candidates) == 1 and not may_end):
        return candidates[0] if candidates else None
    await team.attempt(team.read_inbox())
    if not team.can_continue():
        return None
    selected = await team.attempt(_select(team, candidates))
    if selected is None:
        return None
    team.result.add_usage(selected.usage)
    if selected.said:
        await team.append([selected.said])
        team.result.add_message(selected.said)
    if selected.how == "terminated":
        team.result.terminate()
    return selected.member_index


def _candidates(team: Discussion) -> list[int]:
    """The possible next speakers: all, or the targets of edges, without the last speaker if there is another."""
    indexes = [*range(len(team.members))]
    if team.plan.edges and team.last_speaker is not None:
        indexes = list(dict.fromkeys(edge.to for edge in team.plan.edges if edge.from_ == team.last_speaker))
    return [index for index in indexes if index != team.last_speaker] or indexes


async def _select(team: Discussion, candidates: list[int]) -> SelectResult:
    request = SelectRequest(thread=team.thread, team=team.plan.id, candidates=tuple(candidates), turn=team.turns + 1)
    assert team.plan.selector, "the loader gives every team of this strategy a selector"
    return await effects.select(team.run, request, team.plan.selector)


async def selector(team: Discussion) -> None:
    """Ends when the selector or a member terminates the team, when no edge continues, or after ``maxTurns`` turns."""
    team.max_turns = team.plan.max_turns
    while team.can_continue():
        if team.turns == team.max_turns:
            await reach_max_turns(team)
            break
        member = await select_speaker(team)
        if member is None or not team.can_continue():
            break
        await team.run_member(member)


@workflow_type("selector")
class SelectorWorkflow(TurnWorkflow):
    """The workflow type ``selector``."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(selector, self.pinned, self.run_state, self.children, state)
