"""What a client brings with a query: tools that it executes itself, and settings of the agent; what an Agent allows."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, JsonValue, model_validator
from pydantic.alias_generators import to_camel

from .base import FieldError, JsonModel, JsonObject, Pattern, Text
from .json_schema import JsonSchema, broken_schema_rules
from .model_settings import ModelSettings

MAX_TOOLS = 128
"""Tools of one client, the limit of OpenAI's API."""

MAX_TOOLS_SIZE = 256_000
"""Characters of the definitions of all tools of a client, as JSON: the journal has them with the run's manifests."""

MAX_INSTRUCTIONS = 100_000
"""Characters of a client's instructions."""

ToolName = Annotated[str, Pattern(r"[a-zA-Z0-9_-]{1,64}", "is not a tool's name: 1 to 64 letters, digits, '_' and '-'")]


class ClientTool(JsonModel):
    """A tool that the client executes: a call of it waits until the client has given the result."""

    name: ToolName = Field(description="the tool's name")
    description: str = Field("", max_length=32_000, description="a description for the model")
    parameters: JsonSchema = Field(
        {"type": "object", "properties": {}}, description="the JSON Schema of the arguments of its calls"
    )

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if wrong := broken_schema_rules(self.parameters):
            raise FieldError(("parameters",), wrong[0])
        return self


SettingName = Literal[
    "instructions",
    "temperature",
    "topP",
    "maxTokens",
    "stop",
    "seed",
    "frequencyPenalty",
    "presencePenalty",
    "reasoningEffort",
    "outputSchema",
]
"""The settings that an Agent can allow to clients."""

API_DEFAULTS: dict[str, JsonValue] = {"temperature": 1, "topP": 1, "frequencyPenalty": 0, "presencePenalty": 0}
"""Defaults of the model APIs, which many clients send although their users have chosen nothing."""


class ClientSettings(ModelSettings):
    """Settings that a client chooses for the agent of its query. None leaves the choice to the agent's manifest."""

    instructions: Text | None = Field(
        None, max_length=MAX_INSTRUCTIONS, description="instructions for the model, after the agent's own prompt"
    )
    output_schema: JsonSchema | None = Field(None, description="a JSON Schema of the final answer")
    tool_choice: Literal["auto", "none"] = Field(
        "auto", description="'none': the model does not see the client's tools in this query"
    )
    parallel_tool_calls: bool = Field(
        True, description="false: calls of the client's tools in one message wait one after the other"
    )

    @property
    def chosen_of_agent(self) -> JsonObject:
        """The settings that change the agent, by their names in camelCase."""
        values: JsonObject = {to_camel(name): value for name, value in self.chosen.items()}
        if self.instructions:
            values["instructions"] = self.instructions
        if self.output_schema is not None:
            values["outputSchema"] = self.output_schema
        return values

    def without(self, names: frozenset[str]) -> "ClientSettings":
        """The settings without those of these names, in camelCase."""
        fields = type(self).model_fields
        return self.model_copy(
            update={name: field.default for name, field in fields.items() if to_camel(name) in names}
        )


class ClientRequest(JsonModel):
    """What a client brings with a query: tools and settings for its only target, an agent that has to allow them."""

    tools: tuple[ClientTool, ...] = Field(
        (), max_length=MAX_TOOLS, description="tools {name, description, parameters} that the client executes"
    )
    settings: ClientSettings = Field(ClientSettings(), description="settings for the agent, such as {temperature: 0}")

    @model_validator(mode="after")
    def _distinct_and_small(self) -> Self:
        names = [tool.name for tool in self.tools]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise FieldError(("tools",), f"'{twice}' appears twice: a model can't tell them apart")
        size = len(json.dumps([tool.model_dump(mode="json") for tool in self.tools], ensure_ascii=False))
        if size > MAX_TOOLS_SIZE:
            raise FieldError(("tools",), f"have {size:,} characters, and may have at most {MAX_TOOLS_SIZE:,}")
        return self

    @property
    def offered_tools(self) -> tuple[ClientTool, ...]:
        """The tools that the model sees."""
        return self.tools if self.settings.tool_choice == "auto" else ()

    def with_settings(self, settings: ClientSettings) -> "ClientRequest":
        """The request with other settings."""
        return self.model_copy(update={"settings": settings})


class ClientAccess(JsonModel):
    """What an agent allows to the clients of queries. By default it allows nothing."""

    tools: bool = Field(False, description="true: clients may bring tools that they execute themselves")
    settings: tuple[SettingName | Literal["*"], ...] = Field(
        (), description="the settings that clients may choose, such as [instructions, temperature]; '*' stands for all"
    )
    on_other_settings: Literal["refuse", "ignore"] | None = Field(
        None,
        description="if a client chooses another setting: 'refuse' the query, or 'ignore' the setting; by default, "
        "only requests in OpenAI's protocols ignore it",
    )

    @property
    def allowed_settings(self) -> tuple[str, ...]:
        """The names of the settings that clients may choose."""
        return get_args(SettingName) if "*" in self.settings else self.settings

    def ignored(self, settings: ClientSettings) -> frozenset[str]:
        """The settings that have no effect: they are not allowed, and ignored, or only defaults of the model APIs."""
        return frozenset(
            name
            for name, value in settings.chosen_of_agent.items()
            if name not in self.allowed_settings
            and (self.on_other_settings == "ignore" or API_DEFAULTS.get(name, ...) == value)
        )

    def refused(self, settings: ClientSettings) -> Iterator[str]:
        """The settings for which a query is refused."""
        ignored = self.ignored(settings)
        yield from (
            name for name in settings.chosen_of_agent if name not in self.allowed_settings and name not in ignored
        )
