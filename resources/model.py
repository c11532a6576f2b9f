"""``kind: Model``: a language model on a server (ARK: queries, recovery strategies)."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, JsonValue, model_validator
from pydantic.alias_generators import to_camel

from ..installation import EXTRAS, missing_extra
from .base import (
    NOT_SUPPORTED_YET,
    SECRET,
    Deprecated,
    Duration,
    FieldError,
    JsonModel,
    NoEffect,
    Pattern,
    Ref,
    Reference,
    parse_duration,
)
from .budget import Pricing
from .manifest import CircuitBreaker, Manifest
from .model_settings import PROPERTIES, ModelSettings, ProviderName
from .retry_policy import RetryPolicy
from .values import Address, Headers, Property, TextOrValue, ValueSource

STATELESS = {"input", "instructions", "store", "include", "previous_response_id", "conversation", "background"}
"""The same for the Responses API: the server keeps no state."""

RESERVED = {"model", "messages", "system", "tools", "stream", "stream_options", "modelId", "toolConfig"}
"""Fields of a request that ``properties`` can't set."""


OLDER = Deprecated(frozenset(get_args(ProviderName)), "type: completions, and provider: {}")


class HttpConnection(JsonModel):
    """A server with a key."""

    base_url: Address | None = Field(None, description="the server's address")
    api_key: Annotated[TextOrValue | None, SECRET] = Field(None, description="the API key, preferably from a Secret")
    headers: Headers = Field((), description="headers of each request")
    properties: dict[str, Property] = Field({}, description="more fields of a request, such as store")


class OpenAIConfig(HttpConnection):
    """Any server that speaks OpenAI's chat completions."""


class AzureAuth(JsonModel):
    """A method of authentication to Azure."""

    api_key: Annotated[TextOrValue | None, SECRET] = Field(None, description="the API key, preferably from a Secret")
    managed_identity: Annotated[JsonValue, NOT_SUPPORTED_YET] = None
    workload_identity: Annotated[JsonValue, NOT_SUPPORTED_YET] = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("needs exactly one of apiKey, managedIdentity, workloadIdentity")
        return self


class AzureConfig(OpenAIConfig):
    """Azure OpenAI."""

    auth: AzureAuth | None = Field(None, description="{apiKey}, instead of apiKey")
    api_version: TextOrValue | None = Field(None, description="the version of the API; 2024-10-21 by default")


class AnthropicConfig(HttpConnection):
    """Anthropic's API, or a server that speaks its Messages API."""

    version: TextOrValue | None = Field(None, description="the version of the API, '2023-06-01' by default")


class BedrockConfig(JsonModel):
    """Amazon Bedrock. Without keys, the AWS SDK uses the worker's credentials."""

    region: TextOrValue | None = Field(
        None, description="the region, such as us-east-1; by default the worker's AWS_REGION"
    )
    base_url: Address | None = Field(
        None, description="an address instead of the region's endpoint, such as a VPC endpoint"
    )
    api_key: Annotated[TextOrValue | None, SECRET] = Field(None, description="an API key, instead of a key pair")
    access_key_id: Annotated[TextOrValue | None, SECRET] = Field(None, description="the id of the access key")
    secret_access_key: Annotated[TextOrValue | None, SECRET] = Field(None, description="the secret access key")
    session_token: Annotated[TextOrValue | None, SECRET] = Field(
        None, description="the session token of temporary credentials"
    )
    model_arn: TextOrValue | None = Field(None, description="the ARN to call instead of the model's id")
    max_tokens: int | None = Field(None, ge=1, le=100_000, description="the maximum length of an answer, in tokens")
    temperature: Annotated[str, Pattern(r"0(\.[0-9]+)?|1(\.0+)?", "is not a number from 0 to 1")] | None = Field(
        None, description="the temperature, as text: '0.2'"
    )
    properties: dict[str, Property] = Field({}, description="more fields of a request, such as guardrailConfig")


class ModelConfig(JsonModel):
    """The connection, under the name of the model's type."""

    openai: OpenAIConfig | None = Field(None, description="an OpenAI-compatible server")
    openai_responses: OpenAIConfig | None = Field(
        None, alias="openai-responses", description="a server with OpenAI's Responses API"
    )
    azure: AzureConfig | None = Field(None, description="Azure OpenAI")
    gemini: OpenAIConfig | None = Field(None, description="Gemini, through its OpenAI-compatible endpoint")
    anthropic: AnthropicConfig | None = Field(None, description="Anthropic, or a server with its Messages API")
    bedrock: BedrockConfig | None = Field(None, description="Amazon Bedrock")


class ModelSpec(ModelSettings):
    """The ``spec`` of a Model. ``fallback`` is called when the retries of this model are exhausted."""

    type: Annotated[Literal[ProviderName, "completions"], OLDER] = Field(
        "completions",
        description="'completions', or the provider: "
        "'openai', 'openai-responses', 'azure', 'gemini', 'anthropic' or 'bedrock'",
    )
    provider: ProviderName | None = Field(None, description="the provider, with type 'completions'")
    model: TextOrValue = Field(description="the id of the model on its server, as {value: ID}")
    config: ModelConfig = Field(ModelConfig(), description="the connection, under the name of the provider")
    timeout: Duration | None = Field(None, description="how long one answer may take, such as '10m'; 290s by default")
    stream: bool = Field(True, description="whether answers are streamed")
    pricing: Pricing | None = Field(None, description="what a million tokens cost: {input, output, cachedInput}")
    circuit_breaker: CircuitBreaker | None = Field(
        None, description="{failures, window, openFor, onOpen}: opens a circuit breaker if a server fails often"
    )
    poll_interval: Annotated[Duration | None, NoEffect("a model is called when it is needed")] = Field(
        None, description="how often ARK checks whether it is available"
    )
    fallback: Ref | None = Field(None, description="the Model that is called if this one fails")
    retry_policy: RetryPolicy | None = Field(
        None, description="how often a call is attempted: {maximumAttempts, initialInterval, maximumInterval}"
    )

    @model_validator(mode="after")
    def _config_fits(self) -> Self:
        if not self.model_fields_set & {"type", "provider"}:
            raise FieldError(("type",), "is missing: write 'completions', and name the provider")
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
        named = sorted(name.replace("_", "-") for name in self.config.model_fields_set)
        if foreign := next((name for name in named if name != self.server), None):
            raise FieldError(("config", foreign), f"can't be used for a model of type '{self.server}': remove it")
        self._check(connection)
        return self

    def _check(self, connection: HttpConnection | BedrockConfig) -> None:
        names = RESERVED | (STATELESS if self.server == "openai-responses" else set())
        if reserved := names & connection.properties.keys():
            raise FieldError(("config", self.server, "properties"), f"'{min(reserved)}' is set by Baton itself")
        if isinstance(connection, AzureConfig) and connection.auth and connection.api_key:
            raise FieldError(("config", "azure", "apiKey"), "can't be combined with auth: keep one of them")
        if self.server == "azure" and isinstance(connection, HttpConnection) and connection.base_url is None:
            raise FieldError(("config", "azure", "baseUrl"), "is missing: it is the address of the server")
        for field, wrong in self.unsupported_by(self.server):
            raise FieldError((field,), wrong)
        for name in self.chosen:
            if twice := self._property_names(connection).intersection(PROPERTIES[name]):
                wrong = f"'{min(twice)}' can't be combined with spec.{to_camel(name)}: keep one of them"
                raise FieldError(("config", self.server), wrong)

    @staticmethod
    def _property_names(connection: HttpConnection | BedrockConfig) -> set[str]:
        """The names of a connection's properties, and of Bedrock's own fields for the same."""
        names = {*connection.properties}
        if isinstance(connection, BedrockConfig):
            own = {"maxTokens": connection.max_tokens, "temperature": connection.temperature}
            names |= {name for name, value in own.items() if value is not None}
        return names

    @property
    def server(self) -> str:
        """The provider, from either field."""
        return self.provider or self.type

    @property
    def connection(self) -> HttpConnection | BedrockConfig | None:
        """The connection settings of the provider."""
        connection: HttpConnection | BedrockConfig | None = getattr(self.config, self.server.replace("-", "_"))
        return connection


class Model(Manifest):
    """A language model."""

    kind: Literal["Model"] = "Model"
    spec: ModelSpec = Field(description="the model's type, id and connection")

    @property
    def address(self) -> ValueSource | None:
        """The address of its server; None for the provider's default."""
        return self.spec.connection.base_url if self.spec.connection else None

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        if fallback := self.fallback_reference():
            yield fallback

    @property
    def timeout(self) -> float | None:
        """The timeout of an answer in seconds; None for the default."""
        return parse_duration(self.spec.timeout).total_seconds() if self.spec.timeout else None

    @property
    def max_output_tokens(self) -> int | None:
        """The maximum tokens of an answer, if the manifest has it as a number."""
        if self.spec.max_tokens:
            return self.spec.max_tokens
        connection = self.spec.connection
        if isinstance(connection, BedrockConfig) and connection.max_tokens:
            return connection.max_tokens
        limits = (connection.properties.get(name) for name in PROPERTIES["max_tokens"]) if connection else ()
        return next((int(limit.value) for limit in limits if limit and limit.value and limit.value.isdecimal()), None)

    def fallback_reference(self) -> Reference | None:
        """The Model to call if this one fails."""
        ref = self.spec.fallback
        return self._refer(("spec", "fallback", "name"), ("Model",), ref) if ref else None


def missing_library(provider: str) -> str | None:
    """The error text if the library of a provider is not installed here; None if it is."""
    return missing_extra(provider, f"a model of the provider '{provider}'") if provider in EXTRAS else None
