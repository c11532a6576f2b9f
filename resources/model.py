"""``kind: Model``: a language model on a server (seed 003, Recovery Strategies)."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from resources.base import SECRET, FieldError, NotYet, Plain, Ref, Reference
from resources.manifest import Manifest
from resources.values import Headers, TextOrValue, check_url

RESERVED = {"model", "messages", "tools", "stream", "stream_options"}
"""Parts of a request that no property can set."""

ModelType = Literal["openai", "azure", "bedrock", "gemini"]


class OpenAIConfig(Plain):
    """Any server that speaks OpenAI's chat completions."""

    base_url: TextOrValue | None = Field(None, description="the server's address")
    api_key: Annotated[TextOrValue | None, SECRET] = Field(None, description="the key, best from a Secret")
    headers: Headers = Field((), description="headers of each request")
    properties: dict[str, TextOrValue] = Field({}, description="what else a request says, such as temperature")


class AzureConfig(OpenAIConfig):
    """Azure OpenAI."""

    api_version: TextOrValue | None = None


class BedrockConfig(Plain):
    """Amazon Bedrock."""

    region: TextOrValue | None = None
    access_key_id: Annotated[TextOrValue | None, SECRET] = None
    secret_access_key: Annotated[TextOrValue | None, SECRET] = None
    session_token: Annotated[TextOrValue | None, SECRET] = None
    model_arn: TextOrValue | None = None
    max_tokens: int | None = Field(None, ge=1, le=100_000)
    temperature: str | None = None
    properties: dict[str, TextOrValue] = {}


class ModelConfig(Plain):
    """The connection, under the name of the model's type."""

    openai: OpenAIConfig | None = None
    azure: AzureConfig | None = None
    gemini: OpenAIConfig | None = None
    bedrock: BedrockConfig | None = None


class ModelSpec(Plain):
    """A model's ``spec``. ``fallback`` is asked when this model's retries are spent."""

    type: Annotated[ModelType, NotYet(frozenset({"bedrock"}))] = Field(
        description="'openai', 'azure', 'bedrock' or 'gemini'"
    )
    model: TextOrValue = Field(description="the id of the model on its server, as {value: ID}")
    config: ModelConfig = Field(ModelConfig(), description="the connection, under the name of the type")
    fallback: Ref | None = Field(None, description="the Model that is asked when this one can't answer")

    @model_validator(mode="after")
    def _config_fits(self) -> Self:
        if getattr(self.config, self.type) is None:
            raise FieldError(("config", self.type), f"is missing: a model of type '{self.type}' needs it")
        connection = getattr(self.config, self.type)
        if isinstance(connection, OpenAIConfig) and (own := RESERVED & connection.properties.keys()):
            raise FieldError(("config", self.type, "properties"), f"'{min(own)}' is what Baton sends by itself")
        if other := next((name for name in self.config.model_fields_set if name != self.type), None):
            raise FieldError(("config", other), f"has no use for a model of type '{self.type}': take it out")
        if isinstance(connection, OpenAIConfig) and connection.base_url and connection.base_url.value:
            try:
                check_url(connection.base_url.value)
            except ValueError as error:
                raise FieldError(("config", self.type, "baseUrl"), str(error)) from None
        return self


class Model(Manifest):
    """A language model that agents ask."""

    kind: Literal["Model"] = "Model"
    spec: ModelSpec = Field(description="the model's type, id and connection")

    def references(self) -> Iterator[Reference]:
        yield from super().references()
        if fallback := self.fallback_reference():
            yield fallback

    def fallback_reference(self) -> Reference | None:
        """The Model that is asked when this one can't answer."""
        ref = self.spec.fallback
        return self._refer(("spec", "fallback", "name"), ("Model",), ref) if ref else None
