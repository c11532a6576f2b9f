"""The activities of teams: ``evaluate``, and those of panels: ``brief``, ``perform`` and ``conclude``."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel, JsonValue
from pydantic_core import to_json
from temporalio import activity

from ..contracts.errors import BatonError, ConditionFailed, OutputRejected
from ..contracts.message import Head, Message, last_spoken
from ..contracts.panel import (
    Briefing,
    BriefRequest,
    ConcludeRequest,
    DebateShape,
    PanelShape,
    PerformRequest,
    PerformResult,
)
from ..contracts.requests import AskModelResult, EvaluateRequest, EvaluateResult
from ..contracts.text import MAX_MESSAGE, byte_size, parse_json
from ..contracts.turn import Thread
from ..journal.journal import Journal
from ..journal.rows import Row
from ..observability.spans import call_span, recorded_call
from ..resources.base import JsonObject
from ..resources.conditions import Facts, evaluate, is_quick
from ..resources.panel import FunctionRef
from ..resources.team import Team
from ..resources.validation import functions_of
from ..temporal.activity import idempotency_key, workflow_id
from ..temporal.bounded_process import BoundedFunction, EvaluationFailed
from ..temporal.threads import COMPUTING
from .context.lookup import find_team
from .context.output_schema import output_error
from .context.outside import Outside, OutsideCall, canonical_request, raise_recorded
from .context.value_resolver import ValueResolver
from .panel import SpeakerContext, Transcript, panel_output_schema
from .runtime.functions import CallPlace, FunctionRegistry, calling_at, converting
from .runtime.secrets import SecretStore


@dataclass(frozen=True)
class _Performance:
    """The call of a function that is a member: its ``argument``, and the last message as ``text``."""

    call: OutsideCall
    values: ValueResolver
    argument: object
    text: str


class TeamActivities:
    """The activities of teams that do not call a model."""

    def __init__(
        self,
        journal: Journal,
        functions: FunctionRegistry,
        secrets: SecretStore,
        outside: Outside | None = None,
    ) -> None:
        self._journal = journal
        self._functions = functions
        self._secrets = secrets
        self._outside = outside

    @activity.defn(name="evaluate")
    async def evaluate(self, request: EvaluateRequest) -> EvaluateResult:
        """Whether ``terminateWhen`` is true; if not, the first edge of the last speaker whose ``when`` holds."""
        catalog = await self._journal.catalog(request.thread.catalog)
        team = find_team(catalog, request.team)
        needs_all = request.brief or any(functions_of(team))
        rows = await self._journal.read(request.thread.head, None if needs_all else _is_spoken(request.thread))
        facts = _facts(request, team, rows)
        if request.candidates is not None:
            return EvaluateResult(member=await self._choice(request, team, rows, facts))
        if await self._ends(request, team, rows, facts):
            return EvaluateResult(ends=True)
        return EvaluateResult(edge=await self._edge(request, team, rows, facts))

    @activity.defn(name="brief")
    async def brief(self, request: BriefRequest) -> Thread:
        """A new conversation for the turn of a member that is a team, with its briefing as the question."""
        speaker = await self._speaker(request)
        briefing = await self._secrets.redact_message(Message(role="user", content=speaker.as_json()))
        return request.thread.asking(await self._journal.append(Head(), [briefing], idempotency_key()))

    @activity.defn(name="perform")
    async def perform(self, request: PerformRequest) -> PerformResult:
        """Returns the result that the journal has for this activity; calls the function only if there is none."""
        brief = request.brief
        row_id = f"{idempotency_key()}/reply"
        attributes = partial(_attributes, request.function)
        if row := await self._journal.find(row_id):
            recorded_call("execute_tool", request.function, attributes, kind="internal")
            if self._outside:
                await self._outside.note((await self._performance(request)).call, {"text": row.message.content})
            return PerformResult(message=row.message.truncated(), head=row.head)
        performance = await self._performance(request)
        values = performance.values

        async def live() -> JsonObject:
            argument = self._functions.argument(request.function, performance.argument, performance.text)
            span = call_span("execute_tool", request.function, attributes, kind="internal")
            with span, calling_at(_place(request)):
                value = await self._functions.invoke(request.function, argument)
            is_text = brief.part == "member" and not _is_structured(value)
            with converting(request.function, value):
                text, coerced = as_text(value) if is_text else as_answer(value)
            return {"text": text, "coerced": True} if coerced else {"text": text}

        async with self._journal.leases.hold(row_id) as lease:
            coerced = False
            if not lease.is_answered:
                answer = await (self._outside.answer(performance.call, live) if self._outside else live())
                raise_recorded(answer)
                text = str(answer["text"])
                coerced = bool(answer.get("coerced"))
                message = await self._secrets.redact_message(Message(role="assistant", content=text, name=request.name))
                if wrong := await output_error(message, panel_output_schema(values.catalog, brief)):
                    raise OutputRejected(f"the result of the function '{request.function}' {wrong}")
                await self._journal.answer(lease, request.thread.head, message)
        row = await self._journal.row(row_id)
        return PerformResult(message=row.message.truncated(), head=row.head, coerced=coerced)

    async def _performance(self, request: PerformRequest) -> "_Performance":
        brief = request.brief
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        rows = await self._journal.read(request.thread.head)
        argument: Briefing | PanelShape | DebateShape
        if request.turn is not None:
            team = find_team(values.catalog, brief.team)
            transcript = Transcript.after_question(team, rows, request.thread.question)
            argument = transcript.briefing_at(request.turn, brief.session, request.name)
        else:
            speaker = SpeakerContext(brief, values, rows, request.thread.question)
            transcript = speaker.transcript
            argument = speaker.transcript.shape(brief.round) if brief.part == "synthesizer" else speaker.briefing
        spoken = last_spoken([row.message for row in transcript.rows])
        rendered: JsonObject = {
            "function": request.function,
            "argument": argument.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        call = OutsideCall(
            kind="function",
            caller=f"{brief.team}/{request.name}",
            purpose=request.function,
            run=workflow_id(),
            request=canonical_request(rendered, self._secrets.redact),
        )
        return _Performance(call, values, argument, spoken.content if spoken else transcript.goal)

    @activity.defn(name="conclude")
    async def conclude(self, request: ConcludeRequest) -> AskModelResult:
        """Writes the panel's result, and returns it, with shortened texts if it is too long for a history."""
        speaker = await self._speaker(request)
        shape = speaker.transcript.shape(request.brief.round)
        message = Message(
            role="assistant",
            content=_json(shape),
            name=speaker.team.name,
            part="deliverable",
            round=request.brief.round,
        )
        row = await self._journal.append_once(request.thread.head, message, f"{idempotency_key()}/reply")
        return AskModelResult(message=message.with_content(_json(shortened(shape))), head=row.head)

    async def _speaker(self, request: BriefRequest | ConcludeRequest) -> SpeakerContext:
        rows = await self._journal.read(request.thread.head)
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        return SpeakerContext(request.brief, values, rows, request.thread.question)

    async def _ends(self, request: EvaluateRequest, team: Team, rows: Sequence[Row], facts: Facts) -> bool:
        ends = team.spec.terminate_when
        if isinstance(ends, FunctionRef):
            return await self._decides(request, team, rows, facts, ("terminateWhen", ends))
        return ends is not None and await _holds(team, ("terminateWhen", ends), facts)

    async def _edge(self, request: EvaluateRequest, team: Team, rows: Sequence[Row], facts: Facts) -> int | None:
        for index, edge in enumerate(team.spec.graph.edges if team.spec.graph else ()):
            if edge.from_ != facts["speaker"]:
                continue
            field = f"graph.edges[{index}].when"
            if isinstance(edge.when, FunctionRef):
                follows = await self._decides(request, team, rows, facts, (field, edge.when))
            else:
                follows = edge.when is None or await _holds(team, (field, edge.when), facts)
            if follows:
                return index
        return None

    async def _decides(
        self,
        request: EvaluateRequest,
        team: Team,
        rows: Sequence[Row],
        facts: Facts,
        condition: tuple[str, FunctionRef],
    ) -> bool:
        """What a function that is a condition returns. Raises ConditionFailed."""
        field, ref = condition
        value = await self._result_of(request, team, rows, facts, (field, ref.function, ref.parameters))
        if not isinstance(value, bool):
            problem = f"the function '{ref.function}' returned {type(value).__name__}, not True or False"
            raise ConditionFailed(f"{team.id}: {field} can't be evaluated: {problem}")
        return value

    async def _choice(self, request: EvaluateRequest, team: Team, rows: Sequence[Row], facts: Facts) -> int | None:
        """The index of the member that the selector's function names; None if it names none. Raises ConditionFailed."""
        selector = team.spec.selector
        assert selector and selector.function and request.candidates is not None
        where = ("selector", selector.function, selector.parameters)
        value = await self._result_of(request, team, rows, facts, where)
        if value is None:
            return None
        names = {team.spec.members[index].name_in_team: index for index in request.candidates}
        if not isinstance(value, str) or value not in names:
            returned = f"'{value}'" if isinstance(value, str) else type(value).__name__
            problem = f"returned {returned}, not one of {', '.join(names)} or None"
            raise ConditionFailed(f"{team.id}: the selector function '{selector.function}' {problem}")
        return names[value]

    async def _result_of(
        self,
        request: EvaluateRequest,
        team: Team,
        rows: Sequence[Row],
        facts: Facts,
        call: tuple[str, str, JsonObject],
    ) -> object:
        """The result of a function for a decision about the team. Raises ConditionFailed, and ProgramMissing."""
        field, function, parameters = call
        question = request.thread.question
        if request.brief:
            transcript = Transcript.of(team, rows, question, request.brief.begun)
            briefing = transcript.briefing(request.brief, team.name)
        else:
            transcript = Transcript.after_question(team, rows, question)
            briefing = transcript.briefing_at(request.turn, request.session, team.name)
        by_default: object = briefing if request.brief or request.candidates is not None else facts
        try:
            argument = self._functions.argument(function, by_default, str(facts["message"]), briefing)
            with calling_at(CallPlace(team.name, request.turn, briefing.session)):
                return await self._functions.invoke(function, argument, **parameters)
        except BatonError as error:
            raise ConditionFailed(f"{team.id}: {field} can't be evaluated: {error.message}") from None


def _place(request: PerformRequest) -> CallPlace:
    """The place of a member, or of another role in a panel."""
    turn = request.brief.round if request.turn is None else request.turn
    return CallPlace(request.name, turn, request.brief.session)


def _is_structured(value: object) -> bool:
    """Whether a member's result is a value that becomes JSON."""
    return isinstance(value, BaseModel) and not isinstance(getattr(value, "text", None), str)


SECONDS = 2.0
"""The time limit of one evaluation."""

_evaluate = BoundedFunction(f"{__package__}.context.condition_process:evaluate_request", seconds=SECONDS)


async def holds(expression: str, facts: Facts) -> bool:
    """Whether a condition is true of these facts. Raises ValueError if it can't be evaluated within its limits."""
    if "cel" not in sys.modules:
        await COMPUTING.run(importlib.import_module, "cel")  # takes 0.1 s
    try:
        quick = is_quick(expression, facts)
    except Exception:  # the library raises errors of many types, and `evaluate` reports them
        quick = True
    if quick:
        return evaluate(expression, facts)
    try:
        return await _evaluate.call([expression, dict(facts)]) is True
    except EvaluationFailed as failed:
        raise ValueError(str(failed)) from None


def _is_spoken(thread: Thread) -> Callable[[Row], bool]:
    """A predicate for spoken messages. Conditions need only the last one, so the journal is read back to it."""
    return lambda row: row.id != thread.question and last_spoken([row.message]) is not None


def _facts(request: EvaluateRequest, team: Team, rows: Sequence[Row]) -> Facts:
    question = request.thread.question
    transcript = Transcript.of(team, rows, question, request.brief.begun) if request.brief else None
    message = "" if request.silent else request.answer
    if message is None:
        said = transcript.rows if transcript else [row for row in rows if row.id != question]
        spoken = last_spoken([row.message for row in said])
        message = spoken.content if spoken else ""
    members = team.spec.members
    facts: JsonObject = {
        "message": message,
        "value": _json_value(message),
        "speaker": "" if request.member_index is None else members[request.member_index].name_in_team,
        "turn": request.turn,
        "round": -(-request.turn // len(members)),
        "tokens": request.tokens,
        "elapsed": request.elapsed,
    }
    if request.brief is None or transcript is None:
        return facts
    return facts | {
        "goal": transcript.goal,
        "round": request.brief.round,
        "critiques": [critique.model_dump(by_alias=True) for critique in transcript.critiques],
        "contributions": [contribution.model_dump(by_alias=True) for contribution in transcript.contributions],
        "session": request.brief.session,
    }


def _json_value(text: str) -> JsonValue:
    """The JSON object or array in a message; {} for any other text."""
    try:
        value = parse_json(text, constants=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict | list) else {}


async def _holds(team: Team, condition: tuple[str, str], facts: Facts) -> bool:
    field, expression = condition
    try:
        return await holds(expression, facts)
    except ValueError as error:
        raise ConditionFailed(f"{team.id}: {field} can't be evaluated after turn {facts['turn']}: {error}") from None


def _attributes(function: str) -> JsonObject:
    return {"gen_ai.tool.name": function, "gen_ai.tool.type": "function"}


def as_text(value: object) -> tuple[str, bool]:
    """A member's contribution from its function's result, and whether it had to be converted to a text.

    (Round-robin pattern: customizing members)
    """
    if isinstance(value, str):
        return value, False
    if isinstance(value, dict) and isinstance(text := value.get("text"), str):
        return text, False
    if isinstance(text := getattr(value, "text", None), str):
        return text, False
    return str(value), True


def as_answer(value: object) -> tuple[str, bool]:
    """The answer of a role that is not a member: a text, an object ``{text}``, or any other value as JSON."""
    if isinstance(value, BaseModel | dict | list) and not (isinstance(value, dict) and value.keys() == {"text"}):
        return to_json(value, by_alias=True, exclude_none=True, fallback=str).decode(), False
    return as_text(value)


def _json(shape: PanelShape | DebateShape) -> str:
    return shape.model_dump_json(by_alias=True)


def shortened(shape: PanelShape | DebateShape) -> PanelShape | DebateShape:
    """The result, with all texts truncated to one length so that its JSON fits into a history."""
    limit = MAX_MESSAGE
    while byte_size(_json(shape)) > MAX_MESSAGE and limit > 1:
        limit //= 2
        shape = shape.truncated(limit)
    return shape
