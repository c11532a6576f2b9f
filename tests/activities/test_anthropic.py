"""Tests of what the provider for Anthropic alone does: how conversations, schemas and headers are sent."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.anthropic import AnthropicProvider, anthropic_endpoint
from baton.activities.model.provider import ModelRequest
from baton.activities.runtime.secrets import SecretStore
from baton.activities.tool.tool import ToolDefinition
from baton.contracts import errors
from baton.contracts.message import Message, ToolCall
from baton.resources.model import Model
from baton.resources.secret import Secrets
from tests.harness.anthropic_server import AnthropicServer
from tests.harness.environment import KEY, Json, manifest
from tests.harness.manifests import own_catalog

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

ASKED = [Message(role="user", content="Why?")]
NOOP = ToolDefinition("noop", "does nothing", {"type": "object", "properties": {}})
SCORE: Json = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1}},
    "required": ["score"],
    "additionalProperties": False,
}


@pytest.fixture
def claude() -> Iterator[AnthropicServer]:
    server = AnthropicServer()
    with server.serving():
        yield server


def model(server: AnthropicServer, name: str = "claude", **spec: Any) -> Json:
    """A Model of the server."""
    connection = {"baseUrl": server.url, "apiKey": KEY, **spec.pop("connection", {})}
    given = {"type": "completions", "provider": "anthropic", "model": "claude-x", "config": {"anthropic": connection}}
    return manifest("Model", name, {**given, **spec})


async def ask(
    server: AnthropicServer,
    request: ModelRequest | None = None,
    on_text: Callable[[str], None] = lambda _: None,
    **spec: Any,
) -> Message:
    provider, given = AnthropicProvider(), Model.model_validate(model(server, **spec))
    values = ValueResolver(own_catalog(given), SecretStore(Secrets(), {}))
    try:
        return await provider.ask(ChainedModel(given, "m"), values, request or ModelRequest(ASKED), on_text)
    finally:
        await provider.close()


async def test_the_conversation_is_sent_in_turns_of_user_and_assistant(claude: AnthropicServer) -> None:
    first, second = (ToolCall(id="same", name="noop", arguments=given) for given in ('{"x": 1}', "no JSON"))
    messages = (
        Message(role="system", content="You are two."),
        Message(role="assistant", content="I begin.", name="one"),
        Message(role="assistant", content="", name="one", tool_calls=(first,)),
        Message(role="tool", content="done", name="noop", tool_call_id="same"),
        Message(role="user", content="Why?"),
        Message(role="assistant", content="Let me see.", name="two", tool_calls=(first, second)),
        Message(role="tool", content="1", name="noop", tool_call_id="same"),
        Message(role="user", content="Be quick."),
        Message(role="tool", content="", name="noop", tool_call_id="same"),
    )
    await ask(claude, ModelRequest(messages, [NOOP], speaker="two"))
    (body,) = claude.requests
    assert body["system"] == "You are two."
    text: Callable[[str], Json] = lambda words: {"type": "text", "text": words}  # noqa: E731  # shortest here
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                text("# one:\nI begin."),
                text('# one calls noop: {"x": 1}'),
                text("# Result of noop:\ndone"),
                text("Why?"),
            ],
        },
        {
            "role": "assistant",
            "content": [
                text("Let me see."),
                {"type": "tool_use", "id": "call_1", "name": "noop", "input": {"x": 1}},
                {"type": "tool_use", "id": "call_2", "name": "noop", "input": {"arguments": "no JSON"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "1"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "(no result)"},
                text("Be quick."),
            ],
        },
    ]
    assert body["tools"] == [{"name": "noop", "description": "does nothing", "input_schema": NOOP.parameters}]


async def test_version_headers_and_properties_are_sent(claude: AnthropicServer) -> None:
    connection = {
        "version": "2024-01-01",
        "headers": {"X-Team": "blue"},
        "properties": {"max_tokens": "512", "temperature": "0.2", "output_config": '{"effort": "low"}'},
    }
    await ask(claude, ModelRequest(ASKED, schema=SCORE), connection=connection)
    (body,), (headers,) = claude.requests, claude.headers
    assert (headers["anthropic-version"], headers["x-team"]) == ("2024-01-01", "blue")
    assert headers["authorization"] == f"Bearer {KEY}"
    assert (body["max_tokens"], body["temperature"], body["output_config"]["effort"]) == (512, 0.2, "low")


async def test_a_schema_is_enforced_where_the_api_can(claude: AnthropicServer) -> None:
    await ask(claude, ModelRequest(ASKED, schema=SCORE))
    await ask(claude, ModelRequest(ASKED, schema={"type": "object", "additionalProperties": {"type": "string"}}))
    await ask(claude, ModelRequest(ASKED, schema={"properties": {"a": {}}}))
    first, *others = claude.requests
    score = {"type": "integer", "description": "{minimum: 1}"}
    schema = {"type": "object", "properties": {"score": score}, "required": ["score"], "additionalProperties": False}
    assert first["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    assert not any("output_config" in each for each in others)


def test_the_api_itself_needs_a_key_and_arks_address_is_understood() -> None:
    def endpoint(**connection: str) -> Any:
        config = {"anthropic": connection}
        spec = {"provider": "anthropic", "model": {"value": "claude"}, "config": config}
        given = Model.model_validate(manifest("Model", "m", spec))
        values = ValueResolver(own_catalog(given), SecretStore(Secrets(), {"ANTHROPIC_API_KEY": KEY}))
        return anthropic_endpoint(ChainedModel(given, "m"), values)

    assert endpoint(baseUrl="https://api.anthropic.com/v1", apiKey="k").base_url == "https://api.anthropic.com"
    assert "secret" not in repr(endpoint(apiKey="secret-key"))
    with pytest.raises(errors.KeyMissing, match=r"Model/default/m has no config\.anthropic\.apiKey"):
        endpoint(baseUrl="https://api.anthropic.com/v1/")
    assert endpoint(baseUrl="http://gateway.local/anthropic").base_url == "http://gateway.local/anthropic"
