"""The providers of models under one interface: a server that speaks the API, its Models, and calls of the provider."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.provider import ModelRequest
from baton.activities.model.providers import API, new_provider
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.message import Message
from baton.resources.catalog import Catalog
from baton.resources.model import Model
from baton.resources.model_settings import ModelSettings
from baton.resources.run_catalog import RunCatalog
from baton.resources.secret import Secrets
from tests.harness.anthropic_server import AnthropicServer
from tests.harness.bedrock_server import BedrockServer
from tests.harness.environment import Json, manifest
from tests.harness.openai_server import OpenAIServer
from tests.harness.stand_in import StandIn

ASKED = [Message(role="user", content="Why?")]


@dataclass
class ProviderServer:
    """A server that speaks the API of ``provider``. ``connection`` is how its Models are connected, besides the URL.

    ``path`` follows the server's URL in ``baseUrl``. ``answers_as`` is the model's name in an answer, ``host`` the
    server's name in errors, by default its host and port, ``cut_off`` the API's stop reason for an answer that has
    reached its limit.
    """

    provider: str
    server: StandIn
    connection: Json
    answers_as: str
    host: str = ""
    cut_off: str = "max_tokens"
    path: str = ""

    @property
    def where(self) -> str:
        """The model and its server, as errors name them."""
        return f"claude-x at {self.host or urlsplit(self.server.url).netloc}"

    def model(self, name: str = "m", connection: Json | None = None, **spec: Any) -> Json:
        """A Model of the server; ``connection`` is added to its own."""
        connected = {"baseUrl": f"{self.server.url}{self.path}", **self.connection, **(connection or {})}
        given = {"type": "completions", "provider": self.provider, "model": "claude-x"}
        return manifest("Model", name, {**given, "config": {self.provider: connected}, **spec})

    async def ask(
        self,
        request: ModelRequest | None = None,
        on_text: Callable[[str], None] = lambda _: None,
        connection: Json | None = None,
        agent: ModelSettings | None = None,
        **spec: Any,
    ) -> Message:
        """Asks a Model of the server by its provider, with an agent's settings, without a workflow."""
        model = Model.model_validate(self.model(connection=connection, **spec))
        values = ValueResolver(RunCatalog.of_files(Catalog(manifests=(model,))), SecretStore(Secrets(), {}))
        provider = new_provider(API[self.provider])
        try:
            chained = ChainedModel(model, "m", agent or ModelSettings())
            return await provider.ask(chained, values, request or ModelRequest(ASKED), on_text)
        finally:
            await provider.close()


def _openai(key: object) -> ProviderServer:
    return ProviderServer(
        provider="openai",
        server=OpenAIServer(),
        connection={"apiKey": key},
        answers_as="scripted:claude-x",
        cut_off="length",
        path="/v1",
    )


def _responses(key: object) -> ProviderServer:
    return ProviderServer(
        provider="openai-responses",
        server=OpenAIServer(),
        connection={"apiKey": key},
        answers_as="scripted:claude-x",
        cut_off="max_output_tokens",
        path="/v1",
    )


def _azure(key: object) -> ProviderServer:
    return ProviderServer(
        provider="azure",
        server=OpenAIServer(),
        connection={"apiKey": key, "apiVersion": "2025-01-01"},
        answers_as="scripted:claude-x",
        cut_off="length",
    )


def _anthropic(key: object) -> ProviderServer:
    return ProviderServer(
        provider="anthropic",
        server=AnthropicServer(),
        connection={"apiKey": key},
        answers_as="stand-in:claude-x",
    )


def _bedrock(key: object) -> ProviderServer:
    return ProviderServer(
        provider="bedrock",
        server=BedrockServer(),
        connection={"region": "us-east-1", "accessKeyId": key, "secretAccessKey": key},
        answers_as="claude-x",
        host="Bedrock in us-east-1",
    )


PROVIDERS: dict[str, Callable[[object], ProviderServer]] = {
    "openai": _openai,
    "openai-responses": _responses,
    "azure": _azure,
    "anthropic": _anthropic,
    "bedrock": _bedrock,
}
"""For each provider a server, given the key of its Models: a text, or where a text is read from."""


@contextlib.contextmanager
def serving(provider: str, key: object) -> Iterator[ProviderServer]:
    """The server of a provider, while the block runs."""
    made = PROVIDERS[provider](key)
    with made.server.serving():
        yield made
