"""``kind: Model``: a language model on a server (ARK: queries, recovery strategies)."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from .base import SECRET, Deprecated, FieldError, JsonModel, NotSupportedYet, Pattern, Ref, Reference
from .manifest import Manifest
from .values import Address, Headers, TextOrValue

RESERVED = {"model", "messages", "tools", "stream", "stream_options"}
"""Fields of a request that ``properties`` can't set."""

ProviderName = Literal["openai", "azure", "bedrock", "gemini"]

LATER = NotSupportedYet(frozenset({"bedrock"}))
OLDER = Deprecated(frozenset(get_args(ProviderName)), "type: completions, and provider: {}")


class OpenAIConfig(JsonModel):
    """Any server that speaks OpenAI's chat completions."""

    base_url: Address | None = Field(None, description="the server's address")
    api_key: Annotated[TextOrValue | None, SECRET] = Field(None, description="the key, best from a Secret")
    headers: Headers = Field((), description="headers of each request")
    properties: dict[str, TextOrValue] = Field({}, description="more fields of a request, such as temperature")


class AzureConfig(OpenAIConfig):
    """Azure OpenAI."""

    api_version: TextOrValue | None = None


class BedrockConfig(JsonModel):
    """Amazon Bedrock."""

    region: TextOrValue | None = None
    access_key_id: Annotated[TextOrValue | None, SECRET] = None
    secret_access_key: Annotated[TextOrValue | None, SECRET] = None
    session_token: Annotated[TextOrValue | None, SECRET] = None
    model_arn: TextOrValue | None = None
    max_tokens: int | None = Field(None, ge=1, le=100_000)
    temperature: Annotated[str, Pattern(r"0(\.[0-9]+)?|1(\.0+)?", "is not a number from 0 to 1")] | None = None
    properties: dict[str, TextOrValue] = {}


class ModelConfig(JsonModel):
    """The connection, under the name of the model's type."""

    openai: OpenAIConfig | None = None
    azure: AzureConfig | None = None
    gemini: OpenAIConfig | None = None
    bedrock: BedrockConfig | None = None


class ModelSpec(JsonModel):
    """The ``spec`` of a Model. ``fallback`` is asked when the retries of this model are used up."""

    type: Annotated[Literal[ProviderName, "completions"], LATER, OLDER] = Field(
        description="'completions', or the provider: 'openai', 'azure', 'bedrock' or 'gemini'"
    )
    provider: Annotated[ProviderName | None, LATER] = Field(None, description="the provider, with type 'completions'")
    model: TextOrValue = Field(description="the id of the model on its server, as {value: ID}")
    config: ModelConfig = Field(ModelConfig(), description="the connection, under the name of the provider")
    fallback: Ref | None = Field(None, description="the Model to ask if this one fails")

    @model_validator(mode="after")
    def _config_fits(self) -> Self:
        if (self.type == "completions") != bool(self.provider):
            wrong = (
                f"can't be used with type '{self.type}'"
                if self.provider
                else "is missing: with type 'completions' it names the provider"
            )
            raise FieldError(("provider",), wrong)
        connection = self.connection
        if connection is None:
            raise FieldError(("config", self.server), f"is missing: a model of type '{self.server}' needs it")
        if other := next((name for name in sorted(self.config.model_fields_set) if name != self.server), None):
            raise FieldError(("config", other), f"can't be used for a model of type '{self.server}': remove it")
        if isinstance(connection, OpenAIConfig):
            self._check(connection)
        return self

    def _check(self, connection: OpenAIConfig) -> None:
        if own := RESERVED & connection.properties.keys():
            raise FieldError(("config", self.server, "properties"), f"'{min(own)}' is set by Baton itself")
        if connection.base_url is None and self.server == "azure":
            raise FieldError(("config", "azure", "baseUrl"), "is missing: it is the address of the server")

    @property
    def server(self) -> str:
        """The provider, from either field."""
        return self.provider or self.type

    @property
    def connection(self) -> OpenAIConfig | BedrockConfig | None:
        """The connection settings of the provider."""
        found: OpenAIConfig | BedrockConfig | None = getattr(self.config, self.server)
        return found


class Model(Manifest):
    """A language model."""

    kind: Literal["Model"] = "Model"
    spec: ModelSpec = Field(description="the model's type, id and connection")

    def references(self) -> Iterator[Reference]:
        yield from super().references()
        if fallback := self.fallback_reference():
            yield fallback

    def fallback_reference(self) -> Reference | None:
        """The Model to ask if this one fails."""
        ref = self.spec.fallback
        return self._refer(("spec", "fallback", "name"), ("Model",), ref) if ref else None
