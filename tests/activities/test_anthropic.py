"""Tests of the provider for Anthropic: what is sent, what is streamed, and the error for each failure."""

import json
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
from baton.contracts.errors import BatonError
from baton.contracts.message import Message, ToolCall
from baton.resources.catalog import Catalog
from baton.resources.model import Model
from baton.resources.secret import Secrets
from baton.starter.scripted_model import Reply, ScriptedToolCall
from tests.harness.anthropic_server import AnthropicServer
from tests.harness.environment import KEY, Json, manifest
from tests.harness.stand_in import StandInReply

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
    values = ValueResolver(Catalog(manifests=(given,)), SecretStore(Secrets(), {}))
    try:
        return await provider.ask(ChainedModel(given, "m"), values, request or ModelRequest(ASKED), on_text)
    finally:
        await provider.close()


async def test_an_answer_is_streamed_with_its_tool_calls_and_its_tokens(claude: AnthropicServer) -> None:
    calls = [ScriptedToolCall(name="noop", arguments={"x": 1}), ScriptedToolCall(name="terminate", arguments="")]
    claude.answers(StandInReply(text="Because. " * 50, calls=calls, cached=90))
    pieces: list[str] = []
    message = await ask(claude, on_text=pieces.append)
    assert len(pieces) > 5
    assert "".join(pieces) == message.content == "Because. " * 50
    assert [(each.name, each.arguments) for each in message.tool_calls] == [("noop", '{"x": 1}'), ("terminate", "")]
    assert message.model == "stand-in:claude-x"
    usage = message.usage
    assert usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.total_tokens) == (100, 90, 7, 107)


async def test_a_model_that_does_not_stream_is_asked_for_the_whole_answer(claude: AnthropicServer) -> None:
    calls = [ScriptedToolCall(name="noop", arguments={"x": 1}), ScriptedToolCall(name="terminate")]
    claude.answers(StandInReply(text="Because. " * 50, calls=calls, cached=90))
    pieces: list[str] = []
    message = await ask(claude, on_text=pieces.append, stream=False)
    assert pieces == [message.content] == ["Because. " * 50]
    given = [(each.id, each.name, json.loads(each.arguments or "{}")) for each in message.tool_calls]
    assert given == [("toolu_1", "noop", {"x": 1}), ("toolu_2", "terminate", {})]
    assert (message.model, message.usage) == ("stand-in:claude-x", (await ask(claude)).usage)


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


ODD: list[tuple[Message, ...]] = [
    (Message(role="assistant", content="Mine.", name="two"),),
    (Message(role="assistant", content="Mine.", name="two"), *ASKED, Message(role="assistant", content="So.")),
    (Message(role="user", content="  "),),
    (*ASKED, Message(role="assistant", name="two", tool_calls=(ToolCall(id="a", name="noop"),))),
    (*ASKED, Message(role="assistant", name="two", tool_calls=(ToolCall(id="a", name="noop"),)), *ASKED),
    (*ASKED, Message(role="tool", content="late", name="noop", tool_call_id="gone")),
    (*ASKED, *[Message(role="assistant", name="two", tool_calls=(ToolCall(id="a", name="noop"),))] * 2),
]


@pytest.mark.parametrize("tools", [[NOOP], []], ids=["tools", "no tools"])
@pytest.mark.parametrize("messages", ODD)
async def test_every_conversation_is_one_that_the_api_takes(
    claude: AnthropicServer, messages: tuple[Message, ...], tools: list[ToolDefinition]
) -> None:
    assert (await ask(claude, ModelRequest(messages, tools, speaker="two"))).content == "Because."


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


async def test_a_tool_that_must_be_used_is_named(claude: AnthropicServer) -> None:
    await ask(claude, ModelRequest(ASKED, [NOOP], must_use=True))
    await ask(claude, ModelRequest(ASKED, [NOOP, ToolDefinition("other", "", {"type": "object"})], must_use=True))
    assert [each["tool_choice"] for each in claude.requests] == [{"type": "tool", "name": "noop"}, {"type": "any"}]


def refusal(status: int, kind: str, text: str = "no", **more: Any) -> Reply:
    return StandInReply(status=status, code=kind, text=text, **more)


FAILURES: list[tuple[Reply, type[BatonError], bool]] = [
    (refusal(400, "invalid_request_error", "messages: bad"), errors.ModelRejected, False),
    (refusal(400, "invalid_request_error", "prompt is too long: 2 > 1 maximum"), errors.ContextTooLong, False),
    (refusal(413, "request_too_large"), errors.ContextTooLong, False),
    (refusal(400, "invalid_request_error", "Your credit balance is too low"), errors.QuotaSpent, False),
    (refusal(402, "billing_error"), errors.QuotaSpent, False),
    (refusal(401, "authentication_error", f"invalid x-api-key {KEY}"), errors.KeyRefused, False),
    (refusal(403, "permission_error"), errors.KeyRefused, False),
    (refusal(404, "not_found_error"), errors.ModelRejected, False),
    (refusal(429, "rate_limit_error"), errors.ModelUnavailable, True),
    (refusal(500, "api_error"), errors.ModelUnavailable, True),
    (refusal(529, "overloaded_error"), errors.ModelUnavailable, True),
    (StandInReply(text="x" * 500, cut=200), errors.BrokenReply, True),
    (StandInReply(text="x" * 500, cut=200, code="overloaded_error"), errors.ModelUnavailable, True),
    (StandInReply(text="x" * 500, cut=200, code="invalid_request_error"), errors.ModelRejected, False),
    (StandInReply(raw=""), errors.EmptyReply, True),
    (StandInReply(raw="event: message_start\ndata: {oops\n\n"), errors.BrokenReply, True),
    (StandInReply(text="No.", stop="refusal"), errors.ContentFiltered, False),
    (StandInReply(text="And", stop="model_context_window_exceeded"), errors.ContextTooLong, False),
    (StandInReply(stop="max_tokens"), errors.AnswerTooLong, False),
    (
        StandInReply(calls=[ScriptedToolCall(name="noop", arguments='{"x": ')], stop="max_tokens"),
        errors.AnswerTooLong,
        False,
    ),
]


WHOLE: list[tuple[Reply, type[BatonError], bool]] = [
    *(
        (reply, error, again)
        for reply, error, again in FAILURES
        if not (reply.raw is not None or reply.cut or reply.calls)
    ),
    (StandInReply(raw=""), errors.BrokenReply, True),
    (StandInReply(raw="{}"), errors.BrokenReply, True),
    (StandInReply(raw="<html>oops</html>"), errors.BrokenReply, True),
]
BOTH = [(reply, error, again, True) for reply, error, again in FAILURES]
BOTH += [(reply, error, again, False) for reply, error, again in WHOLE]


@pytest.mark.parametrize(("reply", "error", "again", "stream"), BOTH, ids=lambda value: str(value)[:40])
async def test_a_failure_is_retried_where_that_can_help(
    claude: AnthropicServer, reply: Reply, error: type[BatonError], again: bool, stream: bool
) -> None:
    claude.answers(reply)
    with pytest.raises(BatonError) as raised:
        await ask(claude, stream=stream)
    assert type(raised.value) is error
    assert raised.value.non_retryable is not again
    assert KEY not in str(raised.value)


async def test_a_text_that_was_cut_at_its_limit_is_an_answer(claude: AnthropicServer) -> None:
    claude.answers(StandInReply(text="Half of", stop="max_tokens"))
    assert (await ask(claude)).content == "Half of"


async def test_an_answer_that_takes_longer_than_its_models_timeout_is_given_up(claude: AnthropicServer) -> None:
    claude.answers(Reply(text="word " * 200, pause=0.1))
    with pytest.raises(errors.CallTimeout, match=r"claude-x at 127\.0\.0\.1 gave no answer in time"):
        await ask(claude, timeout="300ms")


async def test_a_server_that_is_not_there_is_tried_again(claude: AnthropicServer) -> None:
    with pytest.raises(errors.ModelUnavailable, match=r"claude-x at 127\.0\.0\.1 can't be reached"):
        await ask(claude, connection={"baseUrl": "http://127.0.0.1:1"})


def test_the_api_itself_needs_a_key_and_arks_address_is_understood() -> None:
    def endpoint(**connection: str) -> Any:
        config = {"anthropic": connection}
        spec = {"provider": "anthropic", "model": {"value": "claude"}, "config": config}
        given = Model.model_validate(manifest("Model", "m", spec))
        values = ValueResolver(Catalog(manifests=(given,)), SecretStore(Secrets(), {"ANTHROPIC_API_KEY": KEY}))
        return anthropic_endpoint(ChainedModel(given, "m"), values)

    assert endpoint(baseUrl="https://api.anthropic.com/v1", apiKey="k").base_url == "https://api.anthropic.com"
    assert "secret" not in repr(endpoint(apiKey="secret-key"))
    with pytest.raises(errors.KeyMissing, match=r"Model/default/m has no config\.anthropic\.apiKey"):
        endpoint(baseUrl="https://api.anthropic.com/v1/")
    assert endpoint(baseUrl="http://gateway.local/anthropic").base_url == "http://gateway.local/anthropic"
