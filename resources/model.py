"""``kind: Model``: a language model on a server (seed 003, Recovery Strategies)."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from .base import SECRET, Deprecated, FieldError, JsonModel, NotSupportedYet, Pattern, Ref, Reference
from .manifest import Manifest
from .values import Address, Headers, TextOrValue

RESERVED = {"model", "messages", "tools", "stream", "stream_options"}
"""Parts of a request that no property can set."""

Provider = Literal["openai", "azure", "bedrock", "gemini"]

LATER = NotSupportedYet(frozenset({"bedrock"}))
OLDER = Deprecated(frozenset(get_args(Provider)), "type: completions, and provider: {}")


class OpenAIConfig(JsonModel):
    """Any server that speaks OpenAI's chat completions."""

    base_url: Address | None = Field(None, description="the server's address")
    api_key: Annotated[TextOrValue | None, SECRET] = Field(None, description="the key, best from a Secret")
    headers: Headers = Field((), description="headers of each request")
    properties: dict[str, TextOrValue] = Field({}, description="what else a request says, such as temperature")


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
    """A model's ``spec``. ``fallback`` is asked when this model's retries are spent."""

    type: Annotated[Provider | Literal["completions"], LATER, OLDER] = Field(
        description="'completions', or the provider: 'openai', 'azure', 'bedrock' or 'gemini'"
    )
    provider: Annotated[Provider | None, LATER] = Field(None, description="whose server it is, with 'completions'")
    model: TextOrValue = Field(description="the id of the model on its server, as {value: ID}")
    config: ModelConfig = Field(ModelConfig(), description="the connection, under the name of the provider")
    fallback: Ref | None = Field(None, description="the Model that is asked when this one can't answer")

    @model_validator(mode="after")
    def _config_fits(self) -> Self:
        if (self.type == "completions") != bool(self.provider):
            wrong = f"has no use beside type '{self.type}'" if self.provider else "is missing: whose server is it?"
            raise FieldError(("provider",), wrong)
        connection = self.connection
        if connection is None:
            raise FieldError(("config", self.server), f"is missing: a model of type '{self.server}' needs it")
        if other := next((name for name in sorted(self.config.model_fields_set) if name != self.server), None):
            raise FieldError(("config", other), f"has no use for a model of type '{self.server}': take it out")
        if isinstance(connection, OpenAIConfig):
            self._check(connection)
        return self

    def _check(self, connection: OpenAIConfig) -> None:
        if own := RESERVED & connection.properties.keys():
            raise FieldError(("config", self.server, "properties"), f"'{min(own)}' is what Baton sends by itself")
        if connection.base_url is None and self.server == "azure":
            raise FieldError(("config", "azure", "baseUrl"), "is missing: where is the server?")

    @property
    def server(self) -> str:
        """Whose server it is, whichever way that is spelled."""
        return self.provider or self.type

    @property
    def connection(self) -> OpenAIConfig | BedrockConfig | None:
        """The connection to that server."""
        found: OpenAIConfig | BedrockConfig | None = getattr(self.config, self.server)
        return found


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
