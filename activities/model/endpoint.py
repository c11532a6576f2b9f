"""Where is a model asked, and by which key? From its manifest, or from the worker's environment."""

import json
from dataclasses import dataclass, field

from pydantic import JsonValue

from ...conversation.errors import InvalidManifest, KeyMissing
from ...resources.agent import DEFAULT_MODEL
from ...resources.model import AzureConfig, Model, OpenAIConfig
from ...resources.values import check_url
from ..context.value_resolver import Values
from ..process.secrets import Vault

OPENAI = "https://api.openai.com/v1"
HOMES = {"openai": OPENAI, "gemini": "https://generativelanguage.googleapis.com/v1beta/openai/"}
"""Where the makers of models serve them; an Azure resource has an address of its own."""

AZURE_VERSION = "2024-10-21"
USUAL_MODEL = "gpt-4.1-mini"
NO_KEY = "none"
"""What a server of one's own that wants no key is given as one."""


@dataclass(frozen=True)
class Endpoint:
    """A model on a server. ``azure_version`` is set for Azure, which is asked in its own way."""

    model: str
    base_url: str
    api_key: str = field(repr=False)
    azure_version: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    properties: tuple[tuple[str, JsonValue], ...] = ()


def endpoint_of(model: Model, values: Values) -> Endpoint:
    """The endpoint of a Model; raises KeyMissing, InvalidManifest, or what ``Values.text`` raises."""
    config, server = model.spec.connection, model.spec.server
    if not isinstance(config, OpenAIConfig):
        raise InvalidManifest(f"{model.id}: models of type '{server}' can't be asked yet")
    home = HOMES.get(server)
    base_url = values.text(config.base_url, model) or home
    key = values.text(config.api_key, model)
    if base_url is None or (not key and base_url == home):
        missing = "baseUrl" if base_url is None else "apiKey"
        raise KeyMissing(f"{model.id} has no config.{server}.{missing}")
    version = values.text(config.api_version, model) or AZURE_VERSION if isinstance(config, AzureConfig) else None
    headers = [(header.name, values.text(header.value, model) or "") for header in config.headers]
    properties = [(name, _json(values.text(each, model) or "")) for name, each in sorted(config.properties.items())]
    name = values.text(model.spec.model, model) or ""
    return Endpoint(name, _checked(base_url), key or NO_KEY, version, tuple(headers), tuple(properties))


def environment_endpoint(name: str, vault: Vault) -> Endpoint:
    """The model ``name`` on the server that the worker's environment names; raises KeyMissing if it names none."""
    base_url = vault.environment("OPENAI_BASE_URL")
    key = vault.environment_secret("OPENAI_API_KEY")
    if not key and not base_url:
        raise KeyMissing(
            f"there is no Model '{name}', and the worker's environment has no OPENAI_API_KEY to ask one by that name"
        )
    model = (vault.environment("OPENAI_MODEL") or USUAL_MODEL) if name == DEFAULT_MODEL else name
    return Endpoint(model, _checked(base_url or OPENAI), key or NO_KEY)


def _checked(base_url: str) -> str:
    try:
        check_url(base_url)
    except ValueError as error:
        raise InvalidManifest(f"the base URL of a model {error}") from None
    return base_url


def _json(text: str) -> JsonValue:
    """A property's value: a number, true or false, an object, or else the text itself."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value
