"""Definitions of teams in Python: ``baton.Team`` and ``baton.Member``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from ...resources.base import JsonObject
from ...resources.functions import Function
from ...resources.strategies import Strategy
from .arguments import check, check_list
from .manifest import Dependencies, ResourceDefinition, camel_case, reject_unknown, schema_of, spec_fields
from .resources import AgentDefinition, ModelDefinition, SchemaInput, ToolInput

TextOrFunction = str | Function | Mapping[str, Any]
"""A text, a function, or a function with parameters: ``{"function": f, "parameters": {...}}``."""


@dataclass(frozen=True)
class MemberDefinition:
    """A member of a team: as ``speaker`` an agent, a team or a function, else a default agent with a ``role``.

    A speaker has a prompt of its own, and is not told its ``role`` (round-robin pattern: roster).
    """

    name: str
    role: str | None = None
    stance: str | None = None
    speaker: ResourceDefinition | Function | str | None = None


MemberInput = str | Mapping[str, Any] | MemberDefinition | ResourceDefinition | Function
"""One entry of ``members``."""

RoleInput = bool | str | Mapping[str, Any] | ResourceDefinition | Function
"""Who has a role in a panel: true for the default agent, false for nobody, or an agent, a team or a function."""


class TeamOptions(TypedDict, total=False):
    """More fields of a team, each as the manifest's field of that name in camelCase; None leaves it out."""

    description: str | None
    max_turns: int | None
    on_max_turns: Literal["fail", "complete"] | None
    loops: bool | None
    selector: Mapping[str, Any] | None
    graph: Mapping[str, Any] | None
    aggregator: str | AgentDefinition | None
    max_concurrency: int | None
    on_member_error: Literal["fail", "continue"] | None
    no_progress: Mapping[str, Any] | None
    context_window: Mapping[str, int] | None
    budget: Mapping[str, Any] | None
    terminate_when: TextOrFunction | None
    max_rounds: int | None
    referee: RoleInput | None
    moderator: RoleInput | None
    judge: RoleInput | None
    synthesizer: RoleInput | None
    output_schema: SchemaInput | None
    instructions: TextOrFunction | None
    model: str | ModelDefinition | None
    tools: Sequence[ToolInput] | None
    uses: Sequence[str | ResourceDefinition] | None
    context: str | Sequence[Mapping[str, Any]] | None
    prompts: Mapping[str, str] | None
    contributions: Mapping[str, str] | None
    audit: str | None
    session: JsonObject | None
    synthesizer_visibility: Mapping[str, bool] | None
    anonymize_transcript: bool | None
    shuffle_for_judge: bool | None


class TeamDefinition(ResourceDefinition):
    """A team: members that answer a question together, by a strategy."""

    def __init__(
        self,
        name: str,
        *,
        strategy: Strategy,
        members: Sequence[MemberInput],
        namespace: str = "default",
        **options: Unpack[TeamOptions],
    ) -> None:
        reject_unknown(TeamOptions, options, "Team")
        check_list(members, "members", wanted="a list of names, mappings, agents, teams or functions")
        dependencies = Dependencies()
        schema, output_model = schema_of(options.get("output_schema"))
        spec = {**options, **_option_values(dependencies, options), "output_schema": schema}
        entries = [_member(dependencies, each) for each in members]
        whole = spec_fields({"strategy": strategy, "members": entries, **spec})
        super().__init__("Team", name, whole, namespace=namespace, dependencies=dependencies, output_model=output_model)


def _member(dependencies: Dependencies, given: MemberInput) -> object:
    """A member as in a manifest."""
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, MemberDefinition):
        given = {key: value for key, value in vars(given).items() if value is not None}
    if isinstance(given, Mapping) and "role" in given and not given.keys() & {"speaker", "type"}:
        given = {**given, "type": "default"}
    if isinstance(given, Mapping) and "block" in given:
        raise TypeError("block is called speaker here, as in {'name': 'critic', 'speaker': agent}")
    if not isinstance(given, Mapping) or "speaker" not in given:
        return dependencies.speaker(given)
    own = {key: value for key, value in given.items() if key not in ("speaker", "role")}  # it is not told its role
    found = dependencies.speaker(given["speaker"])
    speaker = {"name": found} if isinstance(found, str) else camel_case(found)
    check(speaker, dict, "speaker", "a name, an agent, a team or a function")
    assert isinstance(speaker, dict)
    return {**own, **speaker, "as": own.get("name")}


def _option_values(dependencies: Dependencies, options: TeamOptions) -> dict[str, object]:
    """The options that may hold definitions or functions, as in a manifest."""
    given: dict[str, object] = {}
    for key, value in options.items():
        match key:
            case "referee" | "moderator" | "judge" | "synthesizer":
                given[key] = dependencies.speaker(value)
            case "terminate_when" | "instructions":
                given[key] = dependencies.text_or_function(value)
            case "model" | "aggregator":
                given[key] = dependencies.reference(value)
            case "selector" if isinstance(value, Mapping):
                given[key] = {name: dependencies.reference(each) for name, each in value.items()}
            case "tools" if isinstance(value, list | tuple):
                given[key] = [dependencies.tool(each) for each in value]
            case "uses" if isinstance(value, list | tuple):
                given[key] = [dependencies.reference(each) for each in value]
    return given
