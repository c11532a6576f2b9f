"""The activity ``evaluate``: evaluates a team's conditions after a turn, or a panel's after a round."""

from collections.abc import Callable, Sequence

from temporalio import activity

from ..conversation.contracts.requests import EvaluateRequest, EvaluateResult
from ..conversation.errors import ConditionFailed
from ..conversation.failure import BatonError
from ..conversation.messages.message import last_spoken
from ..conversation.messages.turn import Thread
from ..resources.base import JsonObject
from ..resources.condition import Facts
from ..resources.panel import FunctionRef
from ..resources.team import Team
from .context.conditions import holds
from .context.lookup import find_team
from .journal.journal import Journal
from .journal.row import Row
from .panel.transcript import Transcript
from .process.functions import FunctionRegistry


class Evaluate:
    """The activity ``evaluate``."""

    def __init__(self, journal: Journal, functions: FunctionRegistry) -> None:
        self._journal, self._functions = journal, functions

    @activity.defn(name="evaluate")
    async def evaluate(self, request: EvaluateRequest) -> EvaluateResult:
        """Whether ``terminateWhen`` is true; if not, the first edge of the last speaker with a true or no ``when``."""
        catalog = await self._journal.catalog(request.thread.catalog)
        team = find_team(catalog, request.team)
        rows = await self._journal.read(request.thread.head, None if request.brief else _is_spoken(request.thread))
        facts = _facts(request, team, rows)
        if await self._ends(request, team, rows, facts):
            return EvaluateResult(ends=True)
        return EvaluateResult(edge=await _edge(request, team, facts))

    async def _ends(self, request: EvaluateRequest, team: Team, rows: Sequence[Row], facts: Facts) -> bool:
        ends = team.spec.terminate_when
        if not isinstance(ends, FunctionRef):
            return ends is not None and await _holds(team, ("terminateWhen", ends), facts)
        given: object = facts
        if request.brief:
            transcript = Transcript.of(team, rows, request.thread.question, request.brief.begun)
            given = transcript.briefing(request.brief, team.name)
        try:
            value = await self._functions.invoke(ends.function, given, **ends.parameters)
        except BatonError as error:
            raise ConditionFailed(f"{team.id}: terminateWhen can't be evaluated: {error.message}") from None
        if not isinstance(value, bool):
            problem = f"the function '{ends.function}' gives {type(value).__name__}, not True or False"
            raise ConditionFailed(f"{team.id}: terminateWhen can't be evaluated: {problem}")
        return value


def _is_spoken(thread: Thread) -> Callable[[Row], bool]:
    """Whether a row is a spoken message: conditions need only the last one, so the journal is read back to that."""
    return lambda row: row.id != thread.question and last_spoken([row.message]) is not None


async def _edge(request: EvaluateRequest, team: Team, facts: Facts) -> int | None:
    for place, edge in enumerate(team.spec.graph.edges if team.spec.graph else ()):
        field = f"graph.edges[{place}].when"
        if edge.from_ == facts["speaker"] and (edge.when is None or await _holds(team, (field, edge.when), facts)):
            return place
    return None


def _facts(request: EvaluateRequest, team: Team, rows: Sequence[Row]) -> Facts:
    word = last_spoken([row.message for row in rows if row.id != request.thread.question])
    members = team.spec.members
    facts: JsonObject = {
        "message": word.content if word and not request.silent else "",
        "speaker": "" if request.seat is None else members[request.seat].name_in_team,
        "turn": request.turn,
        "round": -(-request.turn // len(members)),
        "tokens": request.tokens,
        "elapsed": request.elapsed,
    }
    if request.brief is None:
        return facts
    transcript = Transcript.of(team, rows, request.thread.question, request.brief.begun)
    return facts | {
        "goal": transcript.goal,
        "round": request.brief.round,
        "critiques": [each.model_dump(by_alias=True) for each in transcript.critiques],
        "contributions": [each.model_dump(by_alias=True) for each in transcript.contributions],
        "session": request.brief.session,
    }


async def _holds(team: Team, condition: tuple[str, str], facts: Facts) -> bool:
    field, expression = condition
    try:
        return await holds(expression, facts)
    except ValueError as error:
        raise ConditionFailed(f"{team.id}: {field} can't be evaluated after turn {facts['turn']}: {error}") from None
