"""Definitions of teams and panels in Python: ``Team``, ``Member``, ``round_robin``, ``debate``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, overload

from pydantic import BaseModel, JsonValue
from typing_extensions import TypeVar

from ...contracts.panel import DebateShape, PanelShape, RefereeOutput
from ...resources.base import JsonObject
from ...resources.default_prompts import default_prompt
from ...resources.functions import Function
from ...resources.panel import PROMPT_NAMES
from ...resources.strategies import Strategy, default_rounds
from ...resources.template import fill
from .definitions import (
    Dependencies,
    OutputModel,
    ResourceDefinition,
    SchemaInput,
    ToolInput,
    check,
    check_list,
    check_text,
    reject_unknown,
    schema_of,
    spec_fields,
    with_options_in_signature,
)
from .resources import AgentDefinition, ModelDefinition

TextOrFunction = str | Function | Mapping[str, Any]
"""A text, a function, or a function with parameters: ``{"function": f, "parameters": {...}}``."""


@dataclass(frozen=True)
class MemberDefinition:
    """A member of a team: an agent, a team or a function as ``speaker``, or otherwise a default agent with a ``role``.

    A speaker has its own prompt, which does not include its ``role`` (round-robin pattern: roster). ``handoffs`` are
    the names of the members to which it can transfer the conversation, with ``strategy="handoff"``; by default all.
    """

    name: str
    role: str | None = None
    stance: str | None = None
    speaker: ResourceDefinition | Function | str | None = None
    handoffs: Sequence[str] | None = None


MemberInput = str | Mapping[str, Any] | MemberDefinition | ResourceDefinition | Function
"""An entry of ``members``."""

RoleInput = bool | str | Mapping[str, Any] | ResourceDefinition | Function
"""The holder of a role in a panel: True for the default agent, False for none, or an agent, a team or a function."""


class TeamOptions(TypedDict, total=False):
    """Further fields of a team, like the manifest's fields with the same names in camelCase; None omits a field."""

    description: str | None
    max_turns: int | None
    on_max_turns: Literal["fail", "complete"] | None
    loops: bool | None
    selector: Mapping[str, Any] | Function | None
    graph: Mapping[str, Any] | None
    aggregator: str | AgentDefinition[Any] | None
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
    namespace: str | None


TeamValue_co = TypeVar("TeamValue_co", covariant=True, default=Any)
"""The type of ``value`` in the result of a team. It depends on who answers last, so a program may state it."""


class TeamDefinition(ResourceDefinition[TeamValue_co]):
    """A team: members that answer a question together, according to a strategy.

    The ``value`` of its results is that of the agent that ends it: of the last member of a ``sequential`` team, or of
    the aggregator of a ``parallel`` one, an instance of the pydantic model that is its ``output_schema``. Type checkers
    learn it from ``team: baton.Team[Verdict] = baton.Team(…)``. A panel has an ``output_schema`` of its own.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        strategy: Strategy,
        members: Sequence[MemberInput],
        output_schema: Mapping[str, Any] | None = None,
        **options: Unpack[TeamOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: "TeamDefinition[OutputModel | PanelShape | DebateShape]",
        name: str,
        *,
        strategy: Strategy,
        members: Sequence[MemberInput],
        output_schema: type[OutputModel],
        **options: Unpack[TeamOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        strategy: Strategy,
        members: Sequence[MemberInput],
        output_schema: SchemaInput | None = None,
        **options: Unpack[TeamOptions],
    ) -> None: ...

    @with_options_in_signature
    def __init__(
        self,
        name: str,
        *,
        strategy: Strategy,
        members: Sequence[MemberInput],
        output_schema: SchemaInput | None = None,
        **options: Unpack[TeamOptions],
    ) -> None:
        reject_unknown(TeamOptions, options, "Team")
        check_list(members, "members", expected="a list of names, mappings, agents, teams or functions")
        namespace = options.pop("namespace", None) or "default"
        dependencies = Dependencies()
        schema, output_model = schema_of(output_schema)
        spec = {
            "strategy": strategy,
            "members": [_member(dependencies, member) for member in members],
            **options,
            **_resolved(dependencies, options),
            "output_schema": schema,
        }
        super().__init__(
            "Team",
            name,
            spec_fields(spec),
            namespace=namespace,
            dependencies=dependencies,
            output_model=output_model or _model_of_last(strategy, members, options),
        )


def _model_of_last(strategy: Strategy, members: Sequence[MemberInput], options: TeamOptions) -> type[BaseModel] | None:
    """The output model of the agent or team that ends a team with its answer, if the strategy determines it."""
    last: object = None
    if strategy == "sequential" and not options.get("loops"):
        last = members[-1] if members else None
    elif strategy == "parallel":
        last = options.get("aggregator")
    if isinstance(last, MemberDefinition):
        last = last.speaker
    elif isinstance(last, Mapping):
        last = last.get("speaker")
    return last.output_model if isinstance(last, ResourceDefinition) else None


def _member(dependencies: Dependencies, member: MemberInput) -> object:
    """A member as in a manifest."""
    if isinstance(member, str):
        speaker = dependencies.speaker(member)
        return {"name": speaker} if isinstance(speaker, str) else speaker
    if isinstance(member, MemberDefinition):
        member = {key: value for key, value in vars(member).items() if value is not None}
    if not isinstance(member, Mapping):
        return dependencies.speaker(member)
    if "block" in member:
        raise TypeError("block is called speaker here, as in {'name': 'critic', 'speaker': agent}")
    if "speaker" not in member:
        is_default = "role" in member and "type" not in member
        return dependencies.speaker({**member, "type": "default"} if is_default else member)
    # A speaker has its own prompt, into which no role is inserted.
    fields = {key: value for key, value in member.items() if key not in ("speaker", "role")}
    speaker = dependencies.speaker(member["speaker"])
    if isinstance(speaker, str):
        speaker = {"name": speaker}
    check(speaker, dict, "speaker", "a name, an agent, a team or a function")
    assert isinstance(speaker, dict)
    return {**fields, **speaker, "as": fields.get("name")}


def _resolved(dependencies: Dependencies, options: TeamOptions) -> dict[str, object]:
    """The options that may contain definitions or functions, with these replaced by references."""
    resolved: dict[str, object] = {}
    for key, value in options.items():
        match key:
            case "referee" | "moderator" | "judge" | "synthesizer":
                resolved[key] = dependencies.speaker(value)
            case "terminate_when" | "instructions":
                resolved[key] = dependencies.text_or_function(value)
            case "context" if callable(value):
                raise TypeError("context takes a text or values, no function; a function for a text is instructions=…")
            case "model" | "aggregator":
                resolved[key] = dependencies.reference(value)
            case "selector":
                resolved[key] = _selector(dependencies, value)
            case "graph" if isinstance(value, Mapping) and isinstance(value.get("edges"), list | tuple):
                resolved[key] = {**value, "edges": [_edge(dependencies, edge) for edge in value["edges"]]}
            case "tools" if isinstance(value, list | tuple):
                resolved[key] = [dependencies.tool(tool) for tool in value]
            case "uses" if isinstance(value, list | tuple):
                resolved[key] = [dependencies.reference(capability) for capability in value]
    return resolved


def _selector(dependencies: Dependencies, selector: object) -> object:
    """A selector as in a manifest; a function selects by itself."""
    if callable(selector):
        return {"function": dependencies.function(selector)}
    if not isinstance(selector, Mapping):
        return selector
    references = {name: dependencies.reference(selector[name]) for name in ("agent", "model") if name in selector}
    functions = {name: dependencies.function(item) for name, item in selector.items() if callable(item)}
    return {**selector, **references, **functions}


def _edge(dependencies: Dependencies, edge: object) -> object:
    """An edge as in a manifest."""
    if not isinstance(edge, Mapping) or "when" not in edge:
        return edge
    return {**edge, "when": dependencies.text_or_function(edge["when"])}


@overload
def round_robin(
    name: str,
    roster: Sequence[MemberInput],
    *,
    output_schema: type[OutputModel],
    **options: Unpack[TeamOptions],
) -> TeamDefinition[OutputModel | PanelShape]: ...


@overload
def round_robin(
    name: str,
    roster: Sequence[MemberInput],
    *,
    output_schema: Mapping[str, Any],
    **options: Unpack[TeamOptions],
) -> TeamDefinition[JsonValue | PanelShape]: ...


@overload
def round_robin(
    name: str, roster: Sequence[MemberInput], *, output_schema: None = None, **options: Unpack[TeamOptions]
) -> TeamDefinition[str | PanelShape]: ...


@with_options_in_signature
def round_robin(
    name: str,
    roster: Sequence[MemberInput],
    *,
    output_schema: SchemaInput | None = None,
    **options: Unpack[TeamOptions],
) -> TeamDefinition[Any]:
    """A panel: its members speak in turn, round by round, on the goal that is its input (round-robin pattern: config).

    By default there are at most 5 rounds, no referee, and a default synthesizer. The result is the synthesizer's text,
    or with ``synthesizer=False`` a ``PanelShape``.

    Raises:
        ManifestError: the roster is empty or has duplicate names, ``max_rounds`` is not a positive integer, there is an
            ``output_schema`` without a synthesizer, or the manifest has another error.
        TypeError: an option is unknown.
    """
    reject_unknown(TeamOptions, options, "round_robin")
    if options.get("max_rounds") is None:
        options["max_rounds"] = default_rounds("round-robin")
    return TeamDefinition(name, strategy="round-robin", members=roster, output_schema=output_schema, **options)


@overload
def debate(
    name: str,
    debaters: Sequence[MemberInput],
    *,
    output_schema: type[OutputModel],
    **options: Unpack[TeamOptions],
) -> TeamDefinition[OutputModel | DebateShape]: ...


@overload
def debate(
    name: str,
    debaters: Sequence[MemberInput],
    *,
    output_schema: Mapping[str, Any],
    **options: Unpack[TeamOptions],
) -> TeamDefinition[JsonValue | DebateShape]: ...


@overload
def debate(
    name: str, debaters: Sequence[MemberInput], *, output_schema: None = None, **options: Unpack[TeamOptions]
) -> TeamDefinition[str | DebateShape]: ...


@with_options_in_signature
def debate(
    name: str,
    debaters: Sequence[MemberInput],
    *,
    output_schema: SchemaInput | None = None,
    **options: Unpack[TeamOptions],
) -> TeamDefinition[Any]:
    """A debate: the debaters argue for their ``stance``, and a judge decides the question that is its input.

    By default there are at most 2 rounds, no moderator, and a default judge and synthesizer. The result is the
    synthesizer's text, or with ``synthesizer=False`` a ``DebateShape``. Raises the errors of ``round_robin``.
    """
    reject_unknown(TeamOptions, options, "debate")
    return TeamDefinition(name, strategy="debate", members=debaters, output_schema=output_schema, **options)


def roster_agent(
    name: str,
    role: str,
    *,
    team: str,
    model: str | ModelDefinition | None = None,
    tools: Sequence[ToolInput] = (),
    more: str = "",
) -> AgentDefinition:
    """The default member of the panel ``team`` as an agent, to change its model or tools, or to add to its prompt."""
    prompt = _prompt("member", more, Name=name, Role=role, Team=team)
    return AgentDefinition(name, prompt=prompt, model=model, tools=tools)


def referee(
    name: str = "referee",
    *,
    team: str,
    model: str | ModelDefinition | None = None,
    tools: Sequence[ToolInput] = (),
    more: str = "",
) -> AgentDefinition[RefereeOutput]:
    """The default referee of the panel ``team`` as an agent; it answers with ``{"critique": …}``."""
    return AgentDefinition(
        name, prompt=_prompt("referee", more, Team=team), model=model, tools=tools, output_schema=RefereeOutput
    )


def synthesizer(
    name: str = "synthesizer",
    *,
    team: str,
    model: str | ModelDefinition | None = None,
    tools: Sequence[ToolInput] = (),
    more: str = "",
    output_schema: SchemaInput | None = None,
) -> AgentDefinition[Any]:
    """The default synthesizer of the panel ``team`` as an agent; its input is the panel's ``PanelShape`` as JSON."""
    prompt = _prompt("synthesizer", more, Team=team)
    return AgentDefinition(name, prompt=prompt, model=model, tools=tools, output_schema=output_schema)


def _prompt(part: str, more: str, **known: str) -> str:
    """A default prompt with its constant values; the values of a round are empty. ``more`` is appended."""
    for name, value in {**known, "more": more}.items():
        check_text(value, name.lower())
    empty = dict.fromkeys(PROMPT_NAMES, "")
    text = fill(default_prompt("round-robin", part), {**empty, **known}.__getitem__)
    return f"{text}\n\n{more}" if more else text
