"""Settings of model calls, such as the temperature: fields of a Model and of an Agent, and what each provider takes."""

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import Field, JsonValue

from .base import JsonModel, JsonObject, Text

ProviderName = Literal["openai", "openai-responses", "azure", "gemini", "anthropic", "bedrock"]

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ModelSettings(JsonModel):
    """Settings of model calls. None leaves the choice to the model."""

    temperature: float | None = Field(
        None, ge=0, le=2, allow_inf_nan=False, description="how random answers are, from 0 to 2"
    )
    top_p: float | None = Field(
        None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="the probability mass of the tokens that are sampled, from 0 to 1",
    )
    max_tokens: int | None = Field(None, ge=1, description="the maximum length of an answer, in tokens")
    stop: tuple[Text, ...] | None = Field(
        None, min_length=1, description="texts that end an answer where they would occur"
    )
    seed: int | None = Field(
        None, description="a number; the same one makes answers repeatable, as far as the model can"
    )
    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, allow_inf_nan=False, description="how much frequent tokens are avoided, from -2 to 2"
    )
    presence_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="how much tokens that have occurred are avoided, from -2 to 2",
    )
    reasoning_effort: ReasoningEffort | None = Field(
        None, description="how much a reasoning model thinks before it answers"
    )

    @property
    def chosen(self) -> JsonObject:
        """The settings that are not None, by their names in snake_case."""
        values = {name: getattr(self, name) for name in ModelSettings.model_fields}
        return {name: list(value) if name == "stop" else value for name, value in values.items() if value is not None}

    def or_those_of(self, other: "ModelSettings") -> "ModelSettings":
        """These settings; where one is None, that of ``other``."""
        return ModelSettings.model_validate({**other.chosen, **self.chosen})

    def unsupported_by(self, provider: str) -> Iterator[tuple[str, str]]:
        """The settings that a provider can't take: the name of the manifest's field, and what is wrong with it."""
        for name in self.chosen.keys() & UNSUPPORTED.get(provider, frozenset()):
            yield _field(name), f"can't be sent to a model of the provider '{provider}': remove it"
        highest = MAX_TEMPERATURE.get(provider)
        if highest is not None and self.temperature is not None and self.temperature > highest:
            yield (
                "temperature",
                f"is {self.temperature:g}; for the provider '{provider}' it must be {highest:g} or less",
            )
        efforts = CLAUDE_EFFORTS if provider == "anthropic" else EFFORTS
        if self.reasoning_effort and self.reasoning_effort not in efforts:
            known = ", ".join(efforts)
            yield "reasoningEffort", f"is '{self.reasoning_effort}'; the provider '{provider}' has: {known}"


def _field(name: str) -> str:
    return ModelSettings.model_fields[name].alias or name


UNSUPPORTED: dict[str, frozenset[str]] = {
    "openai-responses": frozenset({"stop", "seed", "frequency_penalty", "presence_penalty"}),
    "anthropic": frozenset({"seed", "frequency_penalty", "presence_penalty"}),
    "bedrock": frozenset({"seed", "frequency_penalty", "presence_penalty", "reasoning_effort"}),
}
"""The settings for which the API of a provider has no field. Bedrock's differ for each of its models."""

MAX_TEMPERATURE: dict[str, float] = {"anthropic": 1, "bedrock": 1}
"""The highest temperature of a provider, if it is not that of the field."""

EFFORTS: tuple[ReasoningEffort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh")
CLAUDE_EFFORTS: tuple[ReasoningEffort, ...] = ("low", "medium", "high", "xhigh", "max")

PROPERTIES: dict[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "top_p": ("top_p", "topP"),
    "max_tokens": ("max_completion_tokens", "max_tokens", "max_output_tokens", "maxTokens"),
    "stop": ("stop", "stop_sequences", "stopSequences"),
    "seed": ("seed",),
    "frequency_penalty": ("frequency_penalty",),
    "presence_penalty": ("presence_penalty",),
    "reasoning_effort": ("reasoning_effort",),
}
"""The names by which the ``properties`` of a Model may hold a setting: those of all APIs."""


def without_settings(properties: Iterable[tuple[str, JsonValue]], settings: ModelSettings) -> JsonObject:
    """The properties that no setting replaces."""
    replaced = {name for setting in settings.chosen for name in PROPERTIES[setting]}
    return {name: value for name, value in properties if name not in replaced}
