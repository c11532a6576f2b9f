"""``evaluate``: a team's conditions are judged after a turn, on all that was said in it."""

from temporalio import activity

from activities.heartbeat import heartbeats
from activities.journal import Journal
from conversation.errors import ConditionFailed, UnknownResource
from conversation.message import last_word
from conversation.requests import Evaluated, EvaluateRequest
from resources.condition import Fact, holds
from resources.team import Team


class Evaluate:
    """The activity ``evaluate``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="evaluate")
    async def evaluate(self, request: EvaluateRequest) -> Evaluated:
        """Whether ``terminateWhen`` is true, and the first edge whose ``when`` is, or that has none."""
        async with heartbeats():
            catalog = await self._journal.catalog(request.thread.catalog)
            team = catalog.by_id(request.team)
            if not isinstance(team, Team):
                raise UnknownResource(f"the run's catalog has no {request.team}")
            facts = await self._facts(request, team)
        ends = team.spec.terminate_when
        if ends and _judged(team, ("terminateWhen", ends), facts):
            return Evaluated(ends=True)
        speaker = team.spec.members[request.seat].address
        for place, edge in enumerate(team.spec.graph.edges if team.spec.graph else ()):
            field = f"graph.edges[{place}].when"
            if edge.from_ == speaker and (edge.when is None or _judged(team, (field, edge.when), facts)):
                return Evaluated(edge=place)
        return Evaluated()

    async def _facts(self, request: EvaluateRequest, team: Team) -> dict[str, Fact]:
        rows = await self._journal.read(request.thread.head)
        word = last_word([row.message for row in rows if row.id != request.thread.question])
        members = len(team.spec.members)
        return {
            "message": word.content if word else "",
            "speaker": team.spec.members[request.seat].address,
            "turn": request.turn,
            "round": -(-request.turn // members),
            "tokens": request.tokens,
            "elapsed": request.elapsed,
        }


def _judged(team: Team, condition: tuple[str, str], facts: dict[str, Fact]) -> bool:
    field, expression = condition
    try:
        return holds(expression, facts)
    except ValueError as error:
        raise ConditionFailed(f"{team.id}: {field} can't be judged after turn {facts['turn']}: {error}") from None
