"""Who speaks next in a selector's team? Never the same twice in a row; where only one may, nobody has to be asked."""

from ...conversation.contracts.requests import Selected, SelectRequest
from ..calls import effects
from .discussion import Discussion


async def choose(team: Discussion) -> int | None:
    """The seat of who speaks next; None where the discussion is over."""
    candidates = _candidates(team)
    may_end = team.plan.chooser and team.plan.chooser.can_end and team.turn
    if not candidates or (len(candidates) == 1 and not may_end):
        return candidates[0] if candidates else None
    selected = await team.attempt(_select(team, candidates))
    if selected is None:
        return None
    team.spend(selected.usage)
    if selected.said:
        await team.append([selected.said])
        team.say(selected.said)
    if selected.how == "terminated":
        team.end()
    return selected.seat


def _candidates(team: Discussion) -> list[int]:
    """Who may speak now: all, or those to whom an edge leads; but for who spoke last, if there is another."""
    seats = [*range(len(team.members))]
    if team.plan.edges and team.seat is not None:
        seats = list(dict.fromkeys(edge.to for edge in team.plan.edges if edge.from_ == team.seat))
    return [seat for seat in seats if seat != team.seat] or seats


async def _select(team: Discussion, candidates: list[int]) -> Selected:
    models = team.plan.chooser.models if team.plan.chooser else ()

    def request(fallback: int) -> SelectRequest:
        return SelectRequest(
            thread=team.thread,
            team=team.plan.id,
            candidates=tuple(candidates),
            fallback=fallback,
            turn=team.turn + 1,
        )

    return await effects.first_answer(models, lambda fallback: effects.select(request(fallback), models))
