"""What does a panel or a debate need to be told? The fields of a team's ``spec`` beyond strategy and members."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from .agent import AgentTool
from .base import JsonModel, JsonObject, Name, NameOrRef, Path, Text
from .capability import Context
from .condition import PanelCondition
from .json_schema import JsonSchema
from .member import Member, Speaker
from .strategies import AppliesTo
from .template import check_names
from .union_by_shape import BY_SHAPE, MAPPING, SINGLE
from .values import ContributionsRef


def _as_speaker(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


RoleSetting = Annotated[
    Annotated[StrictBool, SINGLE] | Annotated[Speaker, MAPPING],
    BY_SHAPE,
    BeforeValidator(_as_speaker, json_schema_input_type=bool | Name | Speaker),
]
"""``true`` for the default one, ``false`` for none, or who it is: an agent by its name, or ``{name, type}``."""


class FunctionRef(JsonModel):
    """A function that the worker has registered, and the parameters that it is called with."""

    function: Text = Field(description="the name under which the worker has registered it")
    parameters: JsonObject = {}


TerminateCondition = Annotated[Annotated[PanelCondition, SINGLE] | Annotated[FunctionRef, MAPPING], BY_SHAPE]
"""A condition, or a function that gives true or false."""

Instructions = Annotated[Annotated[Text, SINGLE] | Annotated[FunctionRef, MAPPING], BY_SHAPE]
"""A text, or a function that gives one."""


class Visibility(JsonModel):
    """To whom the synthesizer's words are shown."""

    client: bool = Field(True, description="whether those who watch the run are shown them")
    history: bool = Field(True, description="whether they join the conversation of the team around this one")


PROMPT_NAMES = ("Name", "Role", "Stance", "Team", "Goal", "Round", "MaxRounds", "Instructions", "Context")
"""What can stand in a panel's prompts."""


def _check_prompt(text: str) -> str:
    check_names(text, PROMPT_NAMES)
    return text


Prompt = Annotated[Text, AfterValidator(_check_prompt)]


class Prompts(JsonModel):
    """System prompts in place of the default ones, with ``{{.Name}}``, ``{{.Role}}``, ``{{.Goal}}`` and their like."""

    member: Prompt | None = None
    referee: Prompt | None = None
    synthesizer: Prompt | None = None
    moderator: Prompt | None = None
    judge: Prompt | None = None


DEBATE = AppliesTo(("debate",))

Rounds = Annotated[int, Field(strict=True, ge=1)]


class PanelFields(JsonModel):
    """The fields of panels and debates (round-robin pattern: config reference).

    A field without ``AppliesTo`` is for every strategy whose teams can be panels.
    """

    max_rounds: Rounds | None = Field(
        None, description="how many rounds there are at most: 1 or more (maxRounds must be > 0)"
    )
    terminate_when: Annotated[
        TerminateCondition | None, AppliesTo(("sequential", "round-robin", "selector", "graph", "debate"))
    ] = Field(None, description="a condition in CEL, or {function: NAME}, that ends the team")
    referee: Annotated[RoleSetting | None, AppliesTo(("round-robin",))] = Field(
        None, description="true or an agent: who criticizes each round"
    )
    moderator: Annotated[RoleSetting | None, DEBATE] = Field(
        None, description="true or an agent: who opens each round of a debate"
    )
    judge: Annotated[RoleSetting | None, DEBATE] = Field(
        None, description="the agent that judges a debate, in place of the default one"
    )
    synthesizer: RoleSetting | None = Field(None, description="false for none, or an agent in place of the default one")
    output_schema: JsonSchema | None = Field(None, description="a JSON Schema of what the synthesizer delivers")
    instructions: Instructions | None = Field(None, description="what default members are told, or {function: NAME}")
    model: NameOrRef | None = Field(None, description="the Model of default members")
    tools: tuple[AgentTool, ...] = Field((), description="tools of default members")
    uses: tuple[NameOrRef, ...] = Field((), description="Capabilities of default members: tools and context")
    context: Context | None = Field(
        None, description="what default members know: a text, or values {name, value} or {name, valueFrom}"
    )
    prompts: Prompts | None = Field(None, description="system prompts in place of the default ones")
    contributions: ContributionsRef | None = Field(
        None, description="{session, key} under which others read the transcript"
    )
    audit: Name | None = Field(None, description="the id of its list of tasks; by default the team's name")
    session: JsonObject | None = Field(None, description="the session's values at the start, for conditions")
    synthesizer_visibility: Visibility | None = Field(None, description="{client, history}, both true by default")
    anonymize_transcript: Annotated[bool, DEBATE] = Field(
        True, description="whether a debate's judge is not told who said what"
    )
    shuffle_for_judge: Annotated[bool, DEBATE] = Field(
        True, description="whether a debate's judge reads each round in another order"
    )

    def problems(self, members: Sequence[Member], *, stances: bool) -> Iterator[tuple[Path, str]]:
        """What is wrong with a panel of these members, or a debate (seed 002)."""
        if stances and len(members) < 2:
            yield ("members",), "must contain at least 2 entries: nobody can debate alone"
        for index, member in enumerate(members):
            if member.name_in_team in [other.name_in_team for other in members[:index]]:
                yield (
                    ("members", index),
                    f"duplicate roster name '{member.name_in_team}': names tell contributions apart",
                )
            if stances and not (member.stance or "").strip():
                yield (
                    ("members", index, "stance"),
                    f"is missing: debater '{member.name_in_team}' needs a non-empty stance",
                )
            if member.stance and not stances:
                yield ("members", index, "stance"), "has no use in a panel, but with the strategy 'debate'"
        if self.output_schema is not None and self.synthesizer is False:
            yield ("outputSchema",), "cannot be set when synthesizer: false, as nothing is delivered that it applies to"
        if self.output_schema is not None and isinstance(self.synthesizer, Speaker) and self.synthesizer.type == "team":
            yield ("outputSchema",), "can't be set beside a team as synthesizer: give it to the agent that delivers"
        if self.judge is False:
            yield ("judge",), "can't be false: a debate's verdict is its point"
        if self.moderator is False:
            yield ("moderator",), "can't be false: leave it out for a debate without one"
