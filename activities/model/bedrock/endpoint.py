"""The endpoint of a model at Amazon Bedrock: its region, credentials, limits and properties."""

from dataclasses import dataclass, field

from pydantic import JsonValue

from ....conversation.errors import InvalidManifest, KeyMissing
from ....resources.model import BedrockConfig, Model
from ...context.model_chain import ChainedModel
from ...context.value_resolver import ValueResolver
from ..connection import checked_url, properties_of

_OF_ENVIRONMENT = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")
"""Secrets that AWS' library reads from the environment by itself."""


@dataclass(frozen=True)
class Credentials:
    """Keys for requests: an API key, or a pair of keys for signatures. Without any, AWS' library finds its own."""

    api_key: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None


@dataclass(frozen=True)
class BedrockEndpoint:
    """A model of Bedrock in a region. ``model`` is its id, or the ARN of a profile or a provisioned model.

    ``guarded``: a run has brought the address, which must not lead into the worker's own network.
    """

    model: str
    region: str | None = None
    base_url: str | None = None
    credentials: Credentials = field(default=Credentials(), repr=False)
    max_tokens: int | None = None
    temperature: float | None = None
    properties: tuple[tuple[str, JsonValue], ...] = ()
    guarded: bool = False

    @property
    def where(self) -> str:
        """The model and its place, for errors."""
        return f"{self.model} at Bedrock{f' in {self.region}' if self.region else ''}"


def bedrock_endpoint(chained: ChainedModel, values: ValueResolver) -> BedrockEndpoint:
    """The endpoint of a model. Raises KeyMissing, InvalidManifest, or what ``ValueResolver.resolve`` raises."""
    model = chained.manifest
    config = model.spec.connection if model else None
    if model is None or not isinstance(config, BedrockConfig):
        raise InvalidManifest(f"{chained.name} has no connection to Bedrock")
    base_url, secrets = values.resolve(config.base_url, model), values.secrets
    for name in _OF_ENVIRONMENT:
        secrets.environment_secret(name)  # it is redacted from now on
    region = values.resolve(config.region, model) or secrets.environment("AWS_REGION")
    return BedrockEndpoint(
        model=values.resolve(config.model_arn, model) or values.resolve(model.spec.model, model) or "",
        region=region or secrets.environment("AWS_DEFAULT_REGION"),
        base_url=checked_url(base_url) if base_url else None,
        credentials=_credentials(config, model, values),
        max_tokens=config.max_tokens,
        temperature=float(config.temperature) if config.temperature else None,
        properties=properties_of(config, values, model),
        guarded=values.is_guarded(model),
    )


def _credentials(config: BedrockConfig, model: Model, values: ValueResolver) -> Credentials:
    found = Credentials(
        api_key=values.resolve(config.api_key, model),
        access_key_id=values.resolve(config.access_key_id, model),
        secret_access_key=values.resolve(config.secret_access_key, model),
        session_token=values.resolve(config.session_token, model),
    )
    if bool(found.access_key_id) != bool(found.secret_access_key):
        missing = "secretAccessKey" if found.access_key_id else "accessKeyId"
        raise KeyMissing(f"{model.id} has no config.bedrock.{missing}")
    if values.catalog.is_brought(model.id) and not (found.api_key or found.access_key_id):
        raise KeyMissing(
            f"{model.id}: spec.config.bedrock: a run has brought it, and it names no keys: the worker's own keys of "
            "AWS serve its own manifests"
        )
    return found
