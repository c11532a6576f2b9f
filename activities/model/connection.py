"""Resolves the parts of a model's connection that all providers share: its address, headers and properties."""

import json
import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import JsonValue

from ...contracts.errors import AnswerTooLong, InvalidManifest, KeyMissing, ModelRejected, ModelUnavailable
from ...resources.agent import DEFAULT_MODEL
from ...resources.model import AzureConfig, BedrockConfig, HttpConnection, Model, OpenAIConfig
from ...resources.values import check_url
from ..context.metering import ChainedModel
from ..context.value_resolver import ValueResolver, headers_of
from ..runtime.outbound import BodyLimits, Outbound
from ..runtime.secrets import SecretStore

MAX_EVENT = 20_000_000
"""Bytes of one event of a stream, or of a whole answer that is none, such as an error."""

MAX_OBJECTS = 50_000
"""Opening braces and brackets in them."""

OUTBOUND = Outbound(
    BodyLimits(MAX_EVENT, MAX_OBJECTS),
    guarded=True,
    server="the model's server",
    exceeded=AnswerTooLong,
    refused=ModelRejected,
    unreachable=ModelUnavailable,
)
"""The rules for the HTTP clients of providers: their libraries would read answers of any length.

Guarded, unless the manifest is the worker's own: see ``Endpoint.guarded``.
"""

NO_KEY = "none"
"""The key that is sent to a server that needs none."""


def environment_headers(variable: str) -> list[str]:
    """The names of the headers in a variable of the environment, which a provider's library adds by itself.

    They are the worker's own: no inline Model gets them.
    """
    return [line.partition(":")[0].strip() for line in os.environ.get(variable, "").split("\n") if ":" in line]


def properties_of(
    config: HttpConnection | BedrockConfig, values: ValueResolver, model: Model
) -> tuple[tuple[str, JsonValue], ...]:
    """More fields of a request: a text that is JSON (a number, true, an object …) is sent as JSON."""
    return tuple((name, _json(values.resolve(each, model) or "")) for name, each in sorted(config.properties.items()))


def checked_url(base_url: str) -> str:
    """The address itself; raises InvalidManifest for anything but an HTTP address."""
    try:
        check_url(base_url)
    except ValueError as error:
        raise InvalidManifest(f"the base URL of a model {error}") from None
    return base_url


def _json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


OPENAI = "https://api.openai.com/v1"
DEFAULT_URLS = {"openai": OPENAI, "gemini": "https://generativelanguage.googleapis.com/v1beta/openai/"}
"""The servers of the makers of models. An Azure resource has an address of its own."""

AZURE_VERSION = "2024-10-21"
USUAL_MODEL = "gpt-4.1-mini"


@dataclass(frozen=True)
class Endpoint:
    """A model on a server. ``azure_version`` is the API version of an Azure resource, and None for other servers.

    ``guarded``: the address must not lead into the worker's own network. ``inline``: the Model is an inline manifest,
    and gets nothing that is the worker's own. ``gemini``: the Model says so.
    """

    model: str
    base_url: str
    api_key: str = field(repr=False)
    azure_version: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    properties: tuple[tuple[str, JsonValue], ...] = ()
    guarded: bool = False
    inline: bool = False
    gemini: bool = False

    @property
    def where(self) -> str:
        """The model and its server, as people read it."""
        return f"{self.model} at {urlsplit(self.base_url).hostname}"

    @property
    def wants_signatures(self) -> bool:
        """Whether it refuses tool calls without a thought signature: Gemini does, from version 3 on."""
        google = self.gemini or f".{urlsplit(self.base_url).hostname}".endswith(".googleapis.com")
        return google and re.search(r"gemini-[12]\b", self.model) is None


def endpoint_of(model: ChainedModel, values: ValueResolver) -> Endpoint:
    """The endpoint of a model, or of the environment's model where it has no manifest.

    Raises KeyMissing, InvalidManifest, or what ``ValueResolver.resolve`` raises.
    """
    return _of_manifest(model.manifest, values) if model.manifest else _of_environment(model.name, values.secrets)


def _of_manifest(model: Model, values: ValueResolver) -> Endpoint:
    config = model.spec.connection
    server = model.spec.server
    if not isinstance(config, OpenAIConfig):
        raise InvalidManifest(f"{model.id}: a model of type '{server}' has no connection of OpenAI's kind")
    default_url = DEFAULT_URLS.get(server)
    base_url = values.resolve(config.base_url, model) or default_url
    auth = config.auth if isinstance(config, AzureConfig) else None
    key = values.resolve(auth.api_key if auth else config.api_key, model)
    if base_url is None or (not key and base_url == default_url):
        missing = "baseUrl" if base_url is None else "apiKey"
        raise KeyMissing(f"{model.id} has no config.{server}.{missing}")
    version = values.resolve(config.api_version, model) or AZURE_VERSION if isinstance(config, AzureConfig) else None
    return Endpoint(
        model=values.resolve(model.spec.model, model) or "",
        base_url=checked_url(base_url),
        api_key=key or NO_KEY,
        azure_version=version,
        headers=headers_of(model, config.headers, values),
        properties=properties_of(config, values, model),
        guarded=values.is_guarded(model),
        inline=values.catalog.is_inline(model.id),
        gemini=server == "gemini",
    )


def _of_environment(name: str, secrets: SecretStore) -> Endpoint:
    """The model ``name`` on the server that the worker's environment names; raises KeyMissing if it names none."""
    base_url = secrets.environment("OPENAI_BASE_URL")
    key = secrets.environment_secret("OPENAI_API_KEY")
    if not key and not base_url:
        raise KeyMissing(
            f"there is no Model '{name}', and the worker's environment has no OPENAI_API_KEY to ask one by that name"
        )
    return Endpoint(environment_model(name, secrets), checked_url(base_url or OPENAI), key or NO_KEY)


def environment_model(name: str, secrets: SecretStore) -> str:
    """What the environment's server is asked for where there is no Model ``name``."""
    return (secrets.environment("OPENAI_MODEL") or USUAL_MODEL) if name == DEFAULT_MODEL else name
