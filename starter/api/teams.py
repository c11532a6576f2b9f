"""How does a program write a team? With whoever takes part in it, be it a role, an agent, a team or a function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from ...resources.base import JsonObject
from ...resources.functions import Function
from ...resources.strategies import Strategy
from .manifest import Luggage, Manifest, fields, known, plain, schema_of
from .resources import Agent, Model, Schema, Tool

Named = str | Function | Mapping[str, Any]
"""A text, a function, or a function with parameters: ``{"function": f, "parameters": {...}}``."""


@dataclass(frozen=True)
class Member:
    """A place in a roster: a default member by its ``role``, or who has the place: an agent, a team or a function."""

    name: str
    role: str | None = None
    stance: str | None = None
    speaker: Manifest | Function | str | None = None


Seat = str | Mapping[str, Any] | Member | Manifest | Function
"""One entry of a roster."""

Part = bool | str | Mapping[str, Any] | Manifest | Function
"""Who has a part: true for the default one, false for none, an agent, a team or a function."""


class TeamOptions(TypedDict, total=False):
    """What else a team may be told, each as its manifest's field of that name in camelCase; None leaves it out."""

    description: str | None
    max_turns: int | None
    on_max_turns: Literal["fail", "complete"] | None
    loops: bool | None
    selector: Mapping[str, Any] | None
    graph: Mapping[str, Any] | None
    aggregator: str | Agent | None
    max_concurrency: int | None
    on_member_error: Literal["fail", "continue"] | None
    no_progress: Mapping[str, Any] | None
    context_window: Mapping[str, int] | None
    terminate_when: Named | None
    max_rounds: int | None
    referee: Part | None
    moderator: Part | None
    judge: Part | None
    synthesizer: Part | None
    output_schema: Schema | None
    instructions: Named | None
    model: str | Model | None
    tools: Sequence[Tool] | None
    uses: Sequence[str | Manifest] | None
    context: str | Sequence[Mapping[str, Any]] | None
    prompts: Mapping[str, str] | None
    contributions: Mapping[str, str] | None
    audit: str | None
    session: JsonObject | None
    synthesizer_visibility: Mapping[str, bool] | None
    anonymize_transcript: bool | None
    shuffle_for_judge: bool | None


class Team(Manifest):
    """Members that answer a question together, by a strategy."""

    def __init__(
        self,
        name: str,
        *,
        strategy: Strategy,
        members: Sequence[Seat],
        namespace: str = "default",
        **options: Unpack[TeamOptions],
    ) -> None:
        known(TeamOptions, options, "Team")
        luggage = Luggage()
        schema, answers = schema_of(options.get("output_schema"))
        spec = {**options, **_parts(luggage, options), "output_schema": schema}
        whole = fields({"strategy": strategy, "members": [_seat(luggage, each) for each in members], **spec})
        super().__init__("Team", name, whole, namespace=namespace, luggage=luggage, answers=answers)


def _seat(luggage: Luggage, given: Seat) -> object:
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, Member):
        given = {key: value for key, value in vars(given).items() if value is not None}
    if not isinstance(given, Mapping) or "speaker" not in given:
        return luggage.speaker(given)
    place = {key: value for key, value in given.items() if key not in ("speaker", "role")}  # a role is a default one's
    found = luggage.speaker(given["speaker"])
    speaker = {"name": found} if isinstance(found, str) else plain(found)
    assert isinstance(speaker, dict)
    return {**place, **speaker, "as": place.get("name")}


def _parts(luggage: Luggage, options: TeamOptions) -> dict[str, object]:
    """The options in which manifests or functions may stand."""
    given: dict[str, object] = {}
    for key, value in options.items():
        match key:
            case "referee" | "moderator" | "judge" | "synthesizer":
                given[key] = luggage.speaker(value)
            case "terminate_when" | "instructions":
                given[key] = luggage.named(value)
            case "model" | "aggregator":
                given[key] = luggage.reference(value)
            case "selector" if isinstance(value, Mapping):
                given[key] = {name: luggage.reference(each) for name, each in value.items()}
            case "tools" if isinstance(value, list | tuple):
                given[key] = [luggage.tool(each) for each in value]
            case "uses" if isinstance(value, list | tuple):
                given[key] = [luggage.reference(each) for each in value]
    return given
