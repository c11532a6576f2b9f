"""``kind: Model``: a language model on a server."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from resources.base import NOT_YET, FieldError, Manifest, NotYet, Plain, Ref, Reference
from resources.values import Header, TextOrValue, ValueSource

ModelType = Literal["openai", "azure", "bedrock", "gemini"]


class OpenAIConfig(Plain):
    """Any server that speaks OpenAI's chat completions."""

    base_url: TextOrValue | None = None
    api_key: TextOrValue | None = None
    headers: Annotated[tuple[Header, ...], NOT_YET] = ()
    properties: Annotated[dict[str, ValueSource], NOT_YET] = {}


class AzureConfig(OpenAIConfig):
    """Azure OpenAI."""

    api_version: TextOrValue | None = None


class BedrockConfig(Plain):
    """Amazon Bedrock."""

    region: TextOrValue | None = None
    access_key_id: TextOrValue | None = None
    secret_access_key: TextOrValue | None = None
    session_token: TextOrValue | None = None
    model_arn: TextOrValue | None = None
    max_tokens: int | None = Field(None, ge=1, le=100_000)
    temperature: str | None = None
    properties: dict[str, ValueSource] = {}


class ModelConfig(Plain):
    """The connection, under the name of the model's type."""

    openai: OpenAIConfig | None = None
    azure: AzureConfig | None = None
    gemini: OpenAIConfig | None = None
    bedrock: BedrockConfig | None = None


class ModelSpec(Plain):
    """A model's ``spec``. ``fallback`` is asked when this model's retries are spent (seed 003, Recovery Strategies)."""

    type: Annotated[ModelType, NotYet(frozenset({"azure", "bedrock", "gemini"}))] = Field(
        description="'openai', 'azure', 'bedrock' or 'gemini'"
    )
    model: TextOrValue = Field(description="the id of the model on its server, as {value: ID}")
    config: ModelConfig = ModelConfig()
    fallback: Ref | None = None

    @model_validator(mode="after")
    def _config_fits(self) -> Self:
        if getattr(self.config, self.type) is None:
            raise FieldError(("config", self.type), f"is missing: a model of type '{self.type}' needs it")
        return self


class Model(Manifest):
    """A language model that agents ask."""

    kind: Literal["Model"] = "Model"
    spec: ModelSpec = Field(description="the model's type, id and connection")

    def references(self) -> Iterator[Reference]:
        if self.spec.fallback:
            yield self._refer(("spec", "fallback", "name"), ("Model",), self.spec.fallback)
