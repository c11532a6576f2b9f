"""Where is a model asked, and by which key? From its manifest, or from the worker's environment."""

from dataclasses import dataclass, field

from activities.secrets import Vault
from conversation.errors import InvalidManifest, KeyMissing
from resources.agent import DEFAULT_MODEL
from resources.model import Model
from resources.values import ValueSource, check_url

OPENAI = "https://api.openai.com/v1"
USUAL_MODEL = "gpt-4.1-mini"
NO_KEY = "none"
"""What a server of one's own that wants no key is given as one."""


@dataclass(frozen=True)
class Endpoint:
    """A model on a server."""

    model: str
    base_url: str
    api_key: str = field(repr=False)


def endpoint_of(model: Model | None, name: str, catalog: str, vault: Vault) -> Endpoint:
    """The endpoint of a Model, or of the model ``name`` on the environment's server; raises KeyMissing."""
    if model is None:
        return _of_environment(name, vault)
    config = model.spec.config.openai
    base_url = _text(config.base_url if config else None, model, catalog, vault) or OPENAI
    key = _text(config.api_key if config else None, model, catalog, vault)
    if not key and base_url == OPENAI:
        raise KeyMissing(f"{model.id} has no config.openai.apiKey, which {OPENAI} wants")
    return Endpoint(_text(model.spec.model, model, catalog, vault) or "", _checked(base_url), key or NO_KEY)


def _of_environment(name: str, vault: Vault) -> Endpoint:
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


def _text(source: ValueSource | None, model: Model, catalog: str, vault: Vault) -> str | None:
    if source is None:
        return None
    if source.value_from and source.value_from.secret_key_ref:
        ref = source.value_from.secret_key_ref
        try:
            return vault.read(catalog, model.namespace, ref)
        except KeyMissing:
            if ref.optional:
                return None
            raise
    return source.value
