"""The table of model providers: which provider asks the models of which type."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from ...contracts.errors import BatonError, ModelRejected, NotCarriedOut
from ...contracts.message import Message
from ...observability.spans import call_span, found_call, note_call, note_content
from ...resources.catalog import Catalog
from ...resources.model import Model, missing_package
from ..context.calls import Calls
from ..context.metering import ChainedModel, with_cost
from ..context.value_resolver import ValueResolver
from .call_attributes import answer_attributes, asked_content, model_name, request_attributes
from .provider import ModelRequest, Provider


def _openai() -> Provider:
    from .openai import OpenAIProvider  # noqa: PLC0415  # loads OpenAI's library, which takes 0.4 s

    return OpenAIProvider()


def _anthropic() -> Provider:
    from .anthropic import AnthropicProvider  # noqa: PLC0415  # of the extra `anthropic`

    return AnthropicProvider()


def _bedrock() -> Provider:
    from .bedrock import BedrockProvider  # noqa: PLC0415  # of the extra `bedrock`

    return BedrockProvider()


PROVIDERS: dict[str, Callable[[], Provider]] = {
    "openai": _openai,
    "azure": _openai,
    "gemini": _openai,
    "anthropic": _anthropic,
    "bedrock": _bedrock,
}
"""For each type of a Model, the function that makes its provider. Only this function imports the provider's library."""

ENVIRONMENT = "openai"
"""The type of the models on the environment's server, which have no manifest."""


def types_in(catalog: Catalog) -> set[str]:
    """The types of the Models in a catalog, and that of the environment's models."""
    return {ENVIRONMENT, *(each.spec.server for each in catalog.manifests if isinstance(each, Model))}


def _span(model: ChainedModel, values: ValueResolver, request: ModelRequest) -> AbstractContextManager[None]:
    """The span of a model call. Its content is added by the call itself."""
    try:
        name = model_name(model, values)
    except BatonError:  # the call will say what is wrong
        name = model.name
    attributes = partial(request_attributes, model, name)
    return call_span("chat", name, attributes, label=request.label)


async def _ask(
    provider: Provider,
    model: ChainedModel,
    values: ValueResolver,
    request: ModelRequest,
    on_text: Callable[[str], None],
) -> Message:
    note_content(partial(asked_content, request))
    try:
        return await provider.ask(model, values, request, on_text)
    except ModelRejected:
        if request.schema is None:
            raise
    return await provider.ask(model, values, replace(request, schema=None), on_text)


class Providers:
    """The providers of a worker.

    Making it loads the libraries of the providers of ``types``, so it is made before the event loop is busy. Another
    provider is made when the first of its models is asked, in a thread.
    """

    def __init__(self, types: Iterable[str] = (ENVIRONMENT,), calls: Calls | None = None) -> None:
        self._calls = calls or Calls()
        self._made: dict[Callable[[], Provider], Provider] = {}  # types with the same provider share its connections
        self._making = asyncio.Lock()
        for type_ in types:
            if type_ in PROVIDERS and not missing_package(type_):
                self._make(PROVIDERS[type_])

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer of a model, with what it has cost, if the model's price is known.

        A server that refuses the schema, which it may not know, is asked without it. Raises CircuitOpen while the
        model's circuit breaker is open.
        """
        provider = await self.of(model)
        async with self._calls.make("model", model.manifest, values, model.name) as call:
            with _span(model, values, request):
                answer = with_cost(await _ask(provider, model, values, request, on_text), model.manifest)
                note_call(partial(answer_attributes, answer))
            call.used(answer.usage)
            return answer

    @staticmethod
    def note_earlier(answer: Message, model: ChainedModel, values: ValueResolver, label: str = "call") -> None:
        """Tells the trace of a call whose answer an earlier attempt has written down."""
        name = model_name(model, values)
        attributes = {**request_attributes(model, name), **answer_attributes(answer)}
        found_call("chat", name, lambda: attributes, label=label)

    async def of(self, model: ChainedModel) -> Provider:
        """The provider that asks a model. Raises NotCarriedOut where this worker lacks its library."""
        type_ = model.manifest.spec.server if model.manifest else ENVIRONMENT
        if lacking := missing_package(type_):
            raise NotCarriedOut(f"{model.manifest.id if model.manifest else model.name}: {lacking}")
        make = PROVIDERS[type_]
        if make not in self._made:
            async with self._making:
                await asyncio.to_thread(self._make, make)
        return self._made[make]

    def _make(self, make: Callable[[], Provider]) -> None:
        if make not in self._made:
            self._made[make] = make()

    async def close(self) -> None:
        """Closes the connections of all providers."""
        for provider in self._made.values():
            await provider.close()
