"""The table of model providers: which provider asks the models of which type."""

from collections.abc import Callable

from ...conversation.errors import InvalidManifest
from ..context.model_chain import ChainedModel
from .provider import Provider


def _openai() -> Provider:
    from .openai.provider import OpenAIProvider  # noqa: PLC0415  # loads OpenAI's library, which takes 0.4 s

    return OpenAIProvider()


PROVIDERS: dict[str, Callable[[], Provider]] = {"openai": _openai, "azure": _openai, "gemini": _openai}
"""For each type of a Model, the function that makes its provider. Only this function imports the provider's library."""

ENVIRONMENT = "openai"
"""The type of the models on the environment's server, which have no manifest."""


class Providers:
    """The providers of a worker. Making it loads the providers' libraries; importing this file does not."""

    def __init__(self) -> None:
        self._made = {make: make() for make in PROVIDERS.values()}  # types with the same provider share its connections
        self._by_type = {type_: self._made[make] for type_, make in PROVIDERS.items()}

    def of(self, model: ChainedModel) -> Provider:
        """The provider that asks a model. Raises InvalidManifest where the model's type has none."""
        if model.manifest is None:
            return self._by_type[ENVIRONMENT]
        type_ = model.manifest.spec.server
        if type_ not in self._by_type:
            raise InvalidManifest(f"{model.manifest.id}: models of type '{type_}' can't be asked yet")
        return self._by_type[type_]

    async def close(self) -> None:
        """Closes the connections of all providers."""
        for provider in self._made.values():
            await provider.close()
