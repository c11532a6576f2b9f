"""The fields of a team that is a panel or a debate (round-robin pattern)."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from .agent import AgentTool
from .base import BY_SHAPE, LIST, MAPPING, SINGLE, JsonModel, JsonObject, Name, NameOrRef, Path, Reference, Text
from .conditions import Condition, PanelCondition
from .json_schema import JsonSchema
from .manifest import Manifest
from .member import Member, Speaker
from .strategies import except_for, only_for
from .template import check_names
from .values import ContributionsRef, Parameter

Context = Annotated[Annotated[Text, SINGLE] | Annotated[tuple[Parameter, ...], LIST], BY_SHAPE]
"""A text, or named values."""


class CapabilitySpec(JsonModel):
    """The ``spec`` of a Capability."""

    tools: tuple[AgentTool, ...] = Field((), description="tools {name, type}")
    context: Context | None = Field(
        None, description="context for the model: a text, or values {name, value} or {name, valueFrom}"
    )


class Capability(Manifest):
    """Tools and context under one name."""

    kind: Literal["Capability"] = "Capability"
    spec: CapabilitySpec = Field(description="the capability's tools and context")

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        yield from tool_references(self, self.spec.tools)


def tool_references(owner: Manifest, tools: tuple[AgentTool, ...]) -> Iterator[Reference]:
    """References to the manifests of the tools that are not built-in."""
    for index, tool in enumerate(tools):
        if not tool.built_in:
            yield Reference(("spec", "tools", index, "name"), ("Tool",), owner.namespace, tool.name)


def _as_speaker(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


RoleSetting = Annotated[
    Annotated[StrictBool, SINGLE] | Annotated[Speaker, MAPPING],
    BY_SHAPE,
    BeforeValidator(_as_speaker, json_schema_input_type=bool | Name | Speaker),
]
"""The holder of a role: ``true`` for the default agent, ``false`` for none, a name, or ``{name, type}``."""


class FunctionRef(JsonModel):
    """A function that is registered with the worker, and its parameters."""

    function: Text = Field(description="the name under which it is registered with the worker")
    parameters: JsonObject = Field({}, description="arguments of the function, by name")


TerminateCondition = Annotated[Annotated[PanelCondition, SINGLE] | Annotated[FunctionRef, MAPPING], BY_SHAPE]
"""A condition, or a function that returns true or false."""

EdgeCondition = Annotated[Annotated[Condition, SINGLE] | Annotated[FunctionRef, MAPPING], BY_SHAPE]
"""As a TerminateCondition, outside of panels."""

Instructions = Annotated[Annotated[Text, SINGLE] | Annotated[FunctionRef, MAPPING], BY_SHAPE]
"""A text, or a function that returns one."""


class Visibility(JsonModel):
    """Who can see the synthesizer's messages."""

    client: bool = Field(True, description="whether clients that follow the run see its messages")
    history: bool = Field(True, description="whether its messages join the conversation of the outer team")


PROMPT_NAMES = ("Name", "Role", "Stance", "Team", "Goal", "Round", "MaxRounds", "Instructions", "Context")
"""The placeholder names in the prompts of a panel."""


def _check_prompt(text: str) -> str:
    check_names(text, PROMPT_NAMES)
    return text


Prompt = Annotated[Text, AfterValidator(_check_prompt)]


class Prompts(JsonModel):
    """System prompts instead of the default ones, with names such as ``{{.Name}}``, ``{{.Role}}`` and ``{{.Goal}}``."""

    member: Prompt | None = Field(None, description="the system prompt of default members")
    referee: Prompt | None = Field(None, description="the system prompt of the default referee")
    synthesizer: Prompt | None = Field(None, description="the system prompt of the default synthesizer")
    moderator: Prompt | None = Field(None, description="the system prompt of the default moderator")
    judge: Prompt | None = Field(None, description="the system prompt of the default judge")


DEBATE = only_for("debate")

Rounds = Annotated[int, Field(strict=True, ge=1)]


class PanelFields(JsonModel):
    """The fields of panels and debates (round-robin pattern: config reference).

    A field without ``only_for`` is for every strategy whose teams can be panels.
    """

    max_rounds: Rounds | None = Field(
        None, description="the maximum number of rounds: 1 or more (maxRounds must be > 0)"
    )
    terminate_when: Annotated[TerminateCondition | None, except_for("parallel")] = Field(
        None, description="a condition in CEL, or {function: NAME}, that ends the team"
    )
    referee: Annotated[RoleSetting | None, only_for("round-robin")] = Field(
        None, description="true or an agent: it criticizes each round"
    )
    moderator: Annotated[RoleSetting | None, DEBATE] = Field(
        None, description="true or an agent: it chooses who speaks in each round of a debate"
    )
    judge: Annotated[RoleSetting | None, DEBATE] = Field(
        None, description="the agent that judges a debate, instead of the default one"
    )
    synthesizer: RoleSetting | None = Field(None, description="false for none, or an agent instead of the default one")
    output_schema: JsonSchema | None = Field(None, description="a JSON Schema of the synthesizer's output")
    instructions: Instructions | None = Field(None, description="instructions for default members, or {function: NAME}")
    model: NameOrRef | None = Field(None, description="the Model of the default members")
    tools: tuple[AgentTool, ...] = Field((), description="tools of the default members")
    uses: tuple[NameOrRef, ...] = Field((), description="Capabilities of the default members: tools and context")
    context: Context | None = Field(
        None, description="context of the default members: a text, or values {name, value} or {name, valueFrom}"
    )
    prompts: Prompts | None = Field(None, description="system prompts instead of the default ones")
    contributions: ContributionsRef | None = Field(
        None, description="{session, key} under which others read the transcript"
    )
    audit: Name | None = Field(None, description="the id of its list of audit tasks; by default the team's name")
    session: JsonObject | None = Field(None, description="the initial values of the session, for conditions")
    synthesizer_visibility: Visibility | None = Field(None, description="{client, history}, both true by default")
    anonymize_transcript: Annotated[bool, DEBATE] = Field(
        True, description="whether the names of the speakers are hidden from a debate's judge"
    )
    shuffle_for_judge: Annotated[bool, DEBATE] = Field(
        True, description="whether a debate's judge reads the contributions of each round in shuffled order"
    )

    def problems(self, members: Sequence[Member], *, stances: bool) -> Iterator[tuple[Path, str]]:
        """The errors of a panel with these members; with ``stances`` every member needs one (round-robin pattern)."""
        if stances and len(members) < 2:
            yield ("members",), "must contain at least 2 entries for a debate"
        yield from _member_problems(members, stances=stances)
        if self.output_schema is not None and self.synthesizer is False:
            yield ("outputSchema",), "cannot be set when synthesizer: false, as there is nothing to apply it to"
        if self.output_schema is not None and isinstance(self.synthesizer, Speaker) and self.synthesizer.type == "team":
            text = "can't be set with a team as synthesizer: set it at the agent that writes the result"
            yield ("outputSchema",), text
        if self.judge is False:
            yield ("judge",), "can't be false: every debate has a judge"
        if self.moderator is False:
            yield ("moderator",), "can't be false: omit it for a debate without a moderator"


def _member_problems(members: Sequence[Member], *, stances: bool) -> Iterator[tuple[Path, str]]:
    names = [member.name_in_team for member in members]
    for index, (member, name) in enumerate(zip(members, names, strict=True)):
        if name in names[:index]:
            yield ("members", index), f"duplicate roster name '{name}': contributions are identified by these names"
        if stances and not (member.stance or "").strip():
            yield ("members", index, "stance"), f"is missing: debater '{name}' needs a non-empty stance"
        if member.stance and not stances:
            yield ("members", index, "stance"), "can't be used in a panel, only with the strategy 'debate'"
