"""The providers of a worker: which one asks the models of which type."""

import asyncio
from collections.abc import Callable, Iterable
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

API = {"openai": "openai", "azure": "openai", "gemini": "openai", "anthropic": "anthropic", "bedrock": "bedrock"}
"""For each type of a Model, the API by which it is asked. Types with the same API share a provider's connections."""


def new_provider(api: str) -> Provider:
    """The provider for an API. Only this function imports the provider's library, which takes up to 0.4 s."""
    match api:
        case "anthropic":
            from .anthropic import AnthropicProvider  # noqa: PLC0415  # of the extra `anthropic`

            return AnthropicProvider()
        case "bedrock":
            from .bedrock import BedrockProvider  # noqa: PLC0415  # of the extra `bedrock`

            return BedrockProvider()
        case _:
            from .openai import OpenAIProvider  # noqa: PLC0415

            return OpenAIProvider()


ENVIRONMENT = "openai"
"""The type of the models on the environment's server, which have no manifest."""


def types_in(catalog: Catalog) -> set[str]:
    """The types of the Models in a catalog, and that of the environment's models."""
    return {ENVIRONMENT, *(each.spec.server for each in catalog.manifests if isinstance(each, Model))}


class Providers:
    """The providers of a worker.

    Making it loads the libraries of the providers of ``types``, so it is made before the event loop is busy. Another
    provider is made when the first of its models is asked, in a thread.
    """

    def __init__(self, types: Iterable[str] = (ENVIRONMENT,), calls: Calls | None = None) -> None:
        self._calls = calls or Calls()
        self._by_api: dict[str, Provider] = {}
        self._loading = asyncio.Lock()
        for type_ in types:
            if type_ in API and not missing_package(type_):
                self._load(API[type_])

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer of a model, with what it has cost, if the model's price is known.

        A server that refuses the schema, which it may not know, is asked without it. Raises CircuitOpen while the
        model's circuit breaker is open.
        """
        provider = await self.of(model)
        try:
            name = model_name(model, values)
        except BatonError:  # the call will say what is wrong
            name = model.name
        span = call_span("chat", name, partial(request_attributes, model, name), label=request.label)
        async with self._calls.make("model", model.manifest, values, model.name, span=span) as call:
            note_content(partial(asked_content, request))
            try:
                answer = await provider.ask(model, values, request, on_text)
            except ModelRejected:
                if request.schema is None:
                    raise
                answer = await provider.ask(model, values, replace(request, schema=None), on_text)
            answer = with_cost(answer, model.manifest)
            note_call(partial(answer_attributes, answer))
            call.used(answer.usage)
            return answer

    @staticmethod
    def note_earlier(answer: Message, model: ChainedModel, values: ValueResolver, label: str = "call") -> None:
        """Adds a call to the trace whose answer an earlier attempt has written to the journal."""
        name = model_name(model, values)
        attributes = {**request_attributes(model, name), **answer_attributes(answer)}
        found_call("chat", name, lambda: attributes, label=label)

    async def of(self, model: ChainedModel) -> Provider:
        """The provider that asks a model. Raises NotCarriedOut where this worker lacks its library."""
        type_ = model.manifest.spec.server if model.manifest else ENVIRONMENT
        if lacking := missing_package(type_):
            raise NotCarriedOut(f"{model.manifest.id if model.manifest else model.name}: {lacking}")
        api = API[type_]
        if api not in self._by_api:
            async with self._loading:
                await asyncio.to_thread(self._load, api)
        return self._by_api[api]

    def _load(self, api: str) -> None:
        if api not in self._by_api:
            self._by_api[api] = new_provider(api)

    async def close(self) -> None:
        """Closes the connections of all providers."""
        for provider in self._by_api.values():
            await provider.close()
