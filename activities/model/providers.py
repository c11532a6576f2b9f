"""The providers of a worker, by the type of a Model."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from ...contracts.errors import BatonError, ModelRejected, NotCarriedOut
from ...contracts.message import Message
from ...contracts.settings import SCRIPTED_MODEL_URL
from ...journal.leases import Lease
from ...observability.spans import call_span, note_call, note_content, recorded_call
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.model import Model, missing_library
from ...temporal.threads import COMPUTING
from ..context.calls import Calls
from ..context.metering import ChainedModel, with_cost
from ..context.outside import Outside, check_not_blocked, raise_recorded
from ..context.value_resolver import ValueResolver
from .call_attributes import answer_attributes, model_name, request_attributes, request_content
from .connection import ENVIRONMENT
from .provider import ModelRequest, Provider
from .rendered import answer_json, model_call

API = {
    "openai": "openai",
    "azure": "openai",
    "gemini": "openai",
    "openai-responses": "openai-responses",
    "anthropic": "anthropic",
    "bedrock": "bedrock",
}
"""The API by the type of a Model. Types with the same API share a provider and its connections."""


def new_provider(api: str) -> Provider:
    """The provider for an API. Only this function imports the provider's library, which takes up to 0.4 s."""
    match api:
        case "anthropic":
            from .anthropic import AnthropicProvider  # noqa: PLC0415  # of the extra `anthropic`

            return AnthropicProvider()
        case "bedrock":
            from .bedrock import BedrockProvider  # noqa: PLC0415  # of the extra `bedrock`

            return BedrockProvider()
        case "openai-responses":
            from .openai import OpenAIProvider  # noqa: PLC0415
            from .responses import Responses  # noqa: PLC0415

            return OpenAIProvider(Responses())
        case _:
            from .openai import OpenAIProvider  # noqa: PLC0415

            return OpenAIProvider()


def types_in(catalog: Catalog, environment: Mapping[str, str]) -> set[str]:
    """The types of the Models in a catalog, and that of models without a manifest if the environment has a server.

    The library of OpenAI takes some 20 MB, and a second to load.
    """
    types = {manifest.spec.server for manifest in catalog.manifests if isinstance(manifest, Model)}
    return types | ({ENVIRONMENT} if any(environment.get(name) for name in ENVIRONMENT_VARIABLES) else set())


ENVIRONMENT_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", SCRIPTED_MODEL_URL)
"""The variables that say that models without a manifest have a server."""


class Providers:
    """The providers of a worker.

    The constructor loads the libraries for the Models of ``types``, so it is called before the event loop is busy. A
    worker without the role ``models`` has no types, and loads none.
    Other providers are created in a thread at the first call of one of their models. ``scripted``: all models are
    replaced by a scripted model, which speaks OpenAI's API. ``outside`` answers in place of models.
    """

    def __init__(
        self,
        types: Iterable[str] = (ENVIRONMENT,),
        calls: Calls | None = None,
        *,
        scripted: bool = False,
        outside: Outside | None = None,
    ) -> None:
        self._calls = calls or Calls()
        self._scripted = scripted
        self._outside = outside
        self._by_api: dict[str, Provider] = {}
        self._loading = asyncio.Lock()
        for type_ in types:
            if type_ in API and not missing_library(type_):
                self._load(API[type_])

    async def ask(
        self,
        lease: Lease,
        caller: str,
        model: ChainedModel,
        values: ValueResolver,
        request: ModelRequest,
        on_text: Callable[[str], None],
    ) -> Message:
        """One answer of a model, with its cost if the Model has a price. ``caller`` is the id of the asking manifest.

        The caller holds the call's ``lease``. If the server rejects a request with a schema, it may not support
        schemas: the request is sent again without it. Raises CircuitOpen while the model's circuit breaker is open.
        """
        if self._outside is None:
            return await self._ask(lease, model, values, request, on_text)

        async def live() -> JsonObject:
            return answer_json(await self._ask(lease, model, values, request, on_text))

        answer = await self._outside.answer(model_call(caller, model, values, request), live)
        raise_recorded(answer)
        return Message.model_validate(answer)

    async def _ask(
        self,
        lease: Lease,
        model: ChainedModel,
        values: ValueResolver,
        request: ModelRequest,
        on_text: Callable[[str], None],
    ) -> Message:
        if not self._scripted:
            check_not_blocked(model.manifest.id if model.manifest else f"the model {model.name}")
        provider = await self.of(model)
        try:
            name = model_name(model, values)
        except BatonError:  # the call will raise it
            name = model.name
        span = call_span("chat", name, partial(request_attributes, model, name), label=request.label)
        async with self._calls.make(lease, "model", model.manifest, values, model.name, span=span) as call:
            note_content(partial(request_content, request))
            try:
                try:
                    answer = await provider.ask(model, values, request, on_text)
                except ModelRejected:
                    if request.schema is None:
                        raise
                    answer = await provider.ask(model, values, replace(request, schema=None), on_text)
            except BatonError as error:
                error.usage = with_cost(error.usage, model.manifest)
                call.used(error.usage)
                raise
            if answer.usage:
                answer = answer.with_usage(with_cost(answer.usage, model.manifest))
            note_call(partial(answer_attributes, answer))
            call.used(answer.usage)
            return answer

    async def note_earlier(
        self,
        answer: Message,
        caller: str,
        model: ChainedModel,
        values: ValueResolver,
        request: Callable[[], Awaitable[ModelRequest]],
        label: str = "call",
    ) -> None:
        """Adds a call to the trace whose answer is already in the journal. ``request`` renders it again if needed."""
        name = model_name(model, values)
        attributes = {**request_attributes(model, name), **answer_attributes(answer)}
        recorded_call("chat", name, lambda: attributes, label=label)
        if self._outside:
            await self._outside.note(model_call(caller, model, values, await request()), answer_json(answer))

    async def of(self, model: ChainedModel) -> Provider:
        """The provider of a model. Raises NotCarriedOut if its library is not installed."""
        type_ = model.manifest.spec.server if model.manifest and not self._scripted else ENVIRONMENT
        if missing := missing_library(type_):
            raise NotCarriedOut(f"{model.manifest.id if model.manifest else model.name}: {missing}")
        api = API[type_]
        if api not in self._by_api:
            async with self._loading:
                await COMPUTING.run(self._load, api)
        return self._by_api[api]

    def _load(self, api: str) -> None:
        if api not in self._by_api:
            self._by_api[api] = new_provider(api)

    async def close(self) -> None:
        """Closes the connections of all providers."""
        for provider in self._by_api.values():
            await provider.close()
