"""Resolves the parts of a model's connection that all providers share: address, headers and properties."""

import json
import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import JsonValue

from ...contracts.errors import AnswerTooLong, InvalidManifest, KeyMissing, ModelRejected, ModelUnavailable
from ...contracts.settings import SCRIPTED_MODEL_URL
from ...resources.agent import DEFAULT_MODEL
from ...resources.model import AzureConfig, BedrockConfig, HttpConnection, Model, OpenAIConfig
from ...resources.provenance import Provenance
from ...resources.values import check_url
from ..context.metering import ChainedModel
from ..context.value_resolver import ValueResolver, headers_of
from ..runtime.outbound import BodyLimits, Destination, Outbound
from ..runtime.secrets import SecretStore

MAX_EVENT = 20_000_000
"""Bytes of one event of a stream, or of a whole response without a stream, such as an error."""

MAX_OBJECTS = 50_000
"""Opening braces and brackets in an event or a response."""


def outbound_to(server: Destination | None) -> Outbound:
    """The rules for the HTTP clients of providers: their libraries would read answers of any length."""
    return Outbound(
        BodyLimits(MAX_EVENT, MAX_OBJECTS),
        destination=server,
        server="the model's server",
        exceeded=AnswerTooLong,
        refused=ModelRejected,
        unreachable=ModelUnavailable,
    )


NO_KEY = "none"
"""The key that is sent to a server that requires none."""


def environment_headers(variable: str) -> list[str]:
    """The names of the headers in an environment variable, which a provider's library adds to requests.

    They belong to the worker: they are omitted for inline Models.
    """
    return [line.partition(":")[0].strip() for line in os.environ.get(variable, "").split("\n") if ":" in line]


def properties_of(
    config: HttpConnection | BedrockConfig, values: ValueResolver, model: Model
) -> tuple[tuple[str, JsonValue], ...]:
    """Additional fields of a request. A text that is JSON, such as a number, true or an object, is sent as JSON."""
    return tuple((name, _json(values.resolve(value, model) or "")) for name, value in sorted(config.properties.items()))


def checked_server(server: Destination) -> Destination:
    """Returns the server. Raises InvalidManifest if its URL is not an HTTP URL."""
    try:
        check_url(server.url)
    except ValueError as error:
        raise InvalidManifest(f"the base URL of a model {error}") from None
    return server


def _json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


OPENAI = "https://api.openai.com/v1"
DEFAULT_URLS = {
    "openai": OPENAI,
    "openai-responses": OPENAI,
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai/",
}
"""The default servers by type. An Azure resource has its own address."""

ENVIRONMENT = "openai"
"""The type of models without a manifest, on the server in the environment variables."""

ON_ENVIRONMENT = frozenset({ENVIRONMENT, "openai-responses"})
"""The types of Models that use that server if they name none."""

AZURE_VERSION = "2024-10-21"
FALLBACK_MODEL = "gpt-4.1-mini"


@dataclass(frozen=True)
class Endpoint:
    """A model on a server. The worker's own headers and keys are sent only if the server's provenance is the worker.

    ``azure_version`` is the API version of an Azure resource, and None for other servers. ``gemini``: the Model has the
    type ``gemini``. ``scripted``: it is the scripted model of a test, which is told the agent's name.
    """

    model: str
    server: Destination
    api_key: str = field(repr=False)
    azure_version: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    properties: tuple[tuple[str, JsonValue], ...] = ()
    gemini: bool = False
    scripted: bool = False

    @property
    def base_url(self) -> str:
        """The address of the server, to which the library adds paths."""
        return self.server.url

    @property
    def where(self) -> str:
        """The model and its server, for errors."""
        return f"{self.model} at {self.server.authority}"

    @property
    def is_openai(self) -> bool:
        """Whether OpenAI itself serves the model, or Azure."""
        return self.azure_version is not None or urlsplit(self.base_url).hostname == urlsplit(OPENAI).hostname

    @property
    def wants_signatures(self) -> bool:
        """Whether the server rejects tool calls without a thought signature, as Gemini does since version 3."""
        google = self.gemini or f".{urlsplit(self.base_url).hostname}".endswith(".googleapis.com")
        return google and re.search(r"gemini-[12]\b", self.model) is None


def endpoint_of(model: ChainedModel, values: ValueResolver) -> Endpoint:
    """The endpoint of a model; without a manifest, on the server in the environment variables.

    If the worker has a scripted model, that is the endpoint of all models, without their keys, headers and properties.
    Raises KeyMissing, InvalidManifest, or an error of ``ValueResolver.resolve``.
    """
    if url := values.secrets.environment(SCRIPTED_MODEL_URL):
        name = model.manifest and values.resolve(model.manifest.spec.model, model.manifest)
        server = Destination(url=url, provenance=Provenance.FILES, private_hosts=True)
        return Endpoint(model=name or model.name, server=checked_server(server), api_key=NO_KEY, scripted=True)
    return _of_manifest(model.manifest, values) if model.manifest else _of_environment(model.name, values.secrets)


def _of_manifest(model: Model, values: ValueResolver) -> Endpoint:
    config = model.spec.connection
    server = model.spec.server
    if not isinstance(config, OpenAIConfig):
        raise InvalidManifest(f"{model.id}: a model of type '{server}' has no OpenAI connection")
    default_url = DEFAULT_URLS.get(server)
    auth = config.auth if isinstance(config, AzureConfig) else None
    key = values.resolve(auth.api_key if auth else config.api_key, model)
    headers = headers_of(model, config.headers, values)
    at = values.server_of(model, default_url)
    if server in ON_ENVIRONMENT:
        of_worker = _environment_server(values.secrets)
        # An inline Model that sends headers does not reach the worker's server, which may trust them.
        if config.base_url is None and (values.catalog.provenance_of(model).is_own or not headers):
            at = of_worker
        # The key goes only to its own server, and never to an address that an inline Model names.
        if at and not key and at.provenance.is_own and at.url.rstrip("/") == of_worker.url.rstrip("/"):
            key = values.secrets.environment_secret("OPENAI_API_KEY")
    if at is None or (not key and at.url == default_url):
        missing = "baseUrl" if at is None else "apiKey"
        raise KeyMissing(f"{model.id} has no config.{server}.{missing}")
    version = values.resolve(config.api_version, model) or AZURE_VERSION if isinstance(config, AzureConfig) else None
    return Endpoint(
        model=values.resolve(model.spec.model, model) or "",
        server=checked_server(at),
        api_key=key or NO_KEY,
        azure_version=version,
        headers=headers,
        properties=properties_of(config, values, model),
        gemini=server == "gemini",
    )


def _environment_server(secrets: SecretStore) -> Destination:
    """The server in the worker's environment variables, OpenAI's by default."""
    url = secrets.environment("OPENAI_BASE_URL") or OPENAI
    return Destination(url=url, provenance=Provenance.FILES, private_hosts=secrets.allows_private_hosts)


def _of_environment(name: str, secrets: SecretStore) -> Endpoint:
    """The model ``name`` on the server in the worker's environment variables. Raises KeyMissing if they name none."""
    key = secrets.environment_secret("OPENAI_API_KEY")
    if not key and not secrets.environment("OPENAI_BASE_URL"):
        raise KeyMissing(
            f"there is no Model '{name}', and the worker has no OPENAI_API_KEY to call a model with that name"
        )
    server = checked_server(_environment_server(secrets))
    return Endpoint(model=environment_model(name, secrets), server=server, api_key=key or NO_KEY)


def environment_model(name: str, secrets: SecretStore) -> str:
    """The name of a model without a manifest on the server in the environment variables."""
    return (secrets.environment("OPENAI_MODEL") or FALLBACK_MODEL) if name == DEFAULT_MODEL else name
