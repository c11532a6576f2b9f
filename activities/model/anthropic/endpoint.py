"""The endpoint of one of Anthropic's models: its server, key, API version, headers and properties."""

from dataclasses import dataclass, field

from pydantic import JsonValue

from ....conversation.errors import InvalidManifest, KeyMissing
from ....resources.model import AnthropicConfig
from ...context.headers import headers_of
from ...context.model_chain import ChainedModel
from ...context.value_resolver import ValueResolver
from ..connection import NO_KEY, checked_url, properties_of

ANTHROPIC = "https://api.anthropic.com"
VERSION = "2023-06-01"


@dataclass(frozen=True)
class AnthropicEndpoint:
    """A model on a server that speaks Anthropic's Messages API.

    ``guarded``: a run has brought the address, which must not lead into the worker's own network. ``brought``: a run
    has brought the Model, which gets nothing that is the worker's own.
    """

    model: str
    base_url: str
    api_key: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    properties: tuple[tuple[str, JsonValue], ...] = ()
    guarded: bool = False
    brought: bool = False


def anthropic_endpoint(chained: ChainedModel, values: ValueResolver) -> AnthropicEndpoint:
    """The endpoint of a model. Raises KeyMissing, InvalidManifest, or what ``ValueResolver.resolve`` raises."""
    model = chained.manifest
    config = model.spec.connection if model else None
    if model is None or not isinstance(config, AnthropicConfig):
        raise InvalidManifest(f"{chained.name} has no connection to Anthropic")
    base_url = checked_url(values.resolve(config.base_url, model) or ANTHROPIC)
    base_url = base_url.rstrip("/").removesuffix("/v1")  # the library adds /v1, which ARK's manifests have
    key = values.resolve(config.api_key, model)
    if not key and base_url == ANTHROPIC:
        raise KeyMissing(f"{model.id} has no config.anthropic.apiKey")
    version = ("anthropic-version", values.resolve(config.version, model) or VERSION)
    return AnthropicEndpoint(
        model=values.resolve(model.spec.model, model) or "",
        base_url=base_url,
        api_key=key or NO_KEY,
        headers=(version, *headers_of(model, config.headers, values)),
        properties=properties_of(config, values, model),
        guarded=values.is_guarded(model),
        brought=values.catalog.is_brought(model.id),
    )
