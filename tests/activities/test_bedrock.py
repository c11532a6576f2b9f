"""Tests of the provider for Amazon Bedrock: what is sent, what is streamed, and the error for each failure."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.bedrock import BedrockEndpoint, BedrockProvider, bedrock_endpoint, converse_fields
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
from tests.harness.bedrock_server import BedrockServer, event
from tests.harness.environment import KEY, Json, manifest
from tests.harness.stand_in import StandInReply

ASKED = [Message(role="user", content="Why?")]
NOOP = ToolDefinition("noop", "", {"type": "object", "properties": {}})
PAIR = {"accessKeyId": "AKIA0123456789", "secretAccessKey": KEY, "sessionToken": f"{KEY}-session"}
CLOSED: Json = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


@pytest.fixture
def aws() -> Iterator[BedrockServer]:
    server = BedrockServer()
    with server.serving():
        yield server


def model(server: BedrockServer, **spec: Any) -> Json:
    """A Model of the server."""
    connection = {"baseUrl": server.url, "region": "eu-central-1", **spec.pop("connection", PAIR)}
    given = {"type": "completions", "provider": "bedrock", "model": "claude:0", "config": {"bedrock": connection}}
    return manifest("Model", "m", {**given, **spec})


def resolver(given: Model, **environment: str) -> ValueResolver:
    return ValueResolver(Catalog(manifests=(given,)), SecretStore(Secrets(), environment))


async def ask(
    server: BedrockServer,
    request: ModelRequest | None = None,
    on_text: Callable[[str], None] = lambda _: None,
    **spec: Any,
) -> Message:
    provider, given = BedrockProvider(), Model.model_validate(model(server, **spec))
    try:
        return await provider.ask(ChainedModel(given, "m"), resolver(given), request or ModelRequest(ASKED), on_text)
    finally:
        await provider.close()


async def test_an_answer_is_streamed_with_its_tool_calls_and_its_tokens(aws: BedrockServer) -> None:
    calls = [ScriptedToolCall(name="noop", arguments={"x": 1}), ScriptedToolCall(name="terminate", arguments="")]
    aws.answers(StandInReply(text="Because. " * 50, calls=calls, cached=90))
    pieces: list[str] = []
    message = await ask(aws, on_text=pieces.append)
    assert len(pieces) > 5
    assert "".join(pieces) == message.content == "Because. " * 50
    assert [(each.name, each.arguments) for each in message.tool_calls] == [("noop", '{"x": 1}'), ("terminate", "")]
    assert (message.model, aws.models) == ("claude:0", ["claude:0"])
    usage = message.usage
    assert usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.total_tokens) == (100, 90, 7, 107)


async def test_a_model_that_does_not_stream_is_asked_for_the_whole_answer(aws: BedrockServer) -> None:
    calls = [ScriptedToolCall(name="noop", arguments={"x": 1}), ScriptedToolCall(name="terminate")]
    aws.answers(StandInReply(text="Because. " * 50, calls=calls, cached=90))
    pieces: list[str] = []
    message = await ask(aws, on_text=pieces.append, stream=False)
    assert pieces == [message.content] == ["Because. " * 50]
    given = [(each.id, each.name, json.loads(each.arguments or "{}")) for each in message.tool_calls]
    assert given == [("tooluse_1", "noop", {"x": 1}), ("tooluse_2", "terminate", {})]
    assert (message.model, message.usage) == ("claude:0", (await ask(aws)).usage)


async def test_the_conversation_is_sent_in_turns_of_user_and_assistant(aws: BedrockServer) -> None:
    call = ToolCall(id="a", name="noop", arguments='{"x": 1}')
    messages = (
        Message(role="system", content="You are two."),
        Message(role="assistant", content="I begin.", name="one"),
        *ASKED,
        Message(role="assistant", name="two", tool_calls=(call, call)),
        Message(role="tool", content="1", name="noop", tool_call_id="a"),
        Message(role="tool", content="", name="noop", tool_call_id="a"),
    )
    await ask(aws, ModelRequest(messages, [NOOP], speaker="two", must_use=True))
    (body,) = aws.requests
    assert body["system"] == [{"text": "You are two."}]
    uses = [{"toolUse": {"toolUseId": f"call_{each}", "name": "noop", "input": {"x": 1}}} for each in (1, 2)]
    results = [
        {"toolResult": {"toolUseId": f"call_{number}", "content": [{"text": text}]}}
        for number, text in ((1, "1"), (2, "(no result)"))
    ]
    assert body["messages"] == [
        {"role": "user", "content": [{"text": "# one:\nI begin."}, {"text": "Why?"}]},
        {"role": "assistant", "content": uses},
        {"role": "user", "content": results},
    ]
    spec = {"name": "noop", "description": "noop", "inputSchema": {"json": NOOP.parameters}}
    assert body["toolConfig"] == {"tools": [{"toolSpec": spec}], "toolChoice": {"tool": {"name": "noop"}}}


async def test_limits_and_properties_are_sent_where_converse_has_them(aws: BedrockServer) -> None:
    properties = {"top_p": "0.9", "top_k": "5", "requestMetadata": '{"team": "blue"}'}
    connection = {**PAIR, "modelArn": "arn:aws:bedrock:x", "maxTokens": 512, "temperature": "0.2"}
    await ask(aws, connection={**connection, "properties": properties})
    (body,) = aws.requests
    assert body["inferenceConfig"] == {"topP": 0.9, "maxTokens": 512, "temperature": 0.2}
    assert (body["additionalModelRequestFields"], body["requestMetadata"]) == ({"top_k": 5}, {"team": "blue"})
    assert aws.models == ["arn:aws:bedrock:x"]


async def test_requests_are_signed_or_have_the_api_key(aws: BedrockServer) -> None:
    await ask(aws)
    await ask(aws, connection={"apiKey": KEY})
    signed, bearer = aws.headers
    assert signed["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIA0123456789/")
    assert "/eu-central-1/bedrock/" in signed["authorization"]
    assert signed["x-amz-security-token"] == f"{KEY}-session"
    assert bearer["authorization"] == f"Bearer {KEY}"


async def test_keys_and_region_of_the_environment_are_used_and_redacted(
    aws: BedrockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"AWS_ACCESS_KEY_ID": "AKIAENVIRONMENT", "AWS_SECRET_ACCESS_KEY": KEY, "AWS_REGION": "eu-west-1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = Model.model_validate(model(aws, connection={"region": "eu-west-2"}))
    spec = manifest("Model", "m", {"provider": "bedrock", "model": "c", "config": {"bedrock": {"baseUrl": aws.url}}})
    for each in (given, Model.model_validate(spec)):
        provider, values = BedrockProvider(), resolver(each, **environment)
        await provider.ask(ChainedModel(each, "m"), values, ModelRequest(ASKED), lambda _: None)
        await provider.close()
        assert values.secrets.redact(f"key {KEY}") == "key [secret]"
    assert [each["authorization"].split("/")[2] for each in aws.headers] == ["eu-west-2", "eu-west-1"]
    assert all("AKIAENVIRONMENT" in each["authorization"] for each in aws.headers)


def test_a_schema_is_enforced_if_the_library_knows_how_and_the_schema_is_closed() -> None:
    endpoint = BedrockEndpoint("m", properties=(("outputConfig", {"effort": "low"}),))
    fields = converse_fields(endpoint, ModelRequest(ASKED, schema=CLOSED), {"outputConfig"})
    format_ = fields["outputConfig"]["textFormat"]
    assert (format_["type"], json.loads(format_["structure"]["jsonSchema"]["schema"])) == ("json_schema", CLOSED)
    assert fields["outputConfig"]["effort"] == "low"
    assert "outputConfig" not in converse_fields(BedrockEndpoint("m"), ModelRequest(ASKED, schema=CLOSED), ())
    opened = ModelRequest(ASKED, schema={"type": "object"})
    assert "outputConfig" not in converse_fields(BedrockEndpoint("m"), opened, {"outputConfig"})


def refusal(status: int, code: str, text: str = "no", **more: Any) -> Reply:
    return StandInReply(status=status, code=code, text=text, **more)


BROKEN_OFF = StandInReply(text="x" * 500, cut=200)
FAILURES: list[tuple[Reply, type[BatonError], bool]] = [
    (refusal(400, "ValidationException"), errors.ModelRejected, False),
    (refusal(400, "ValidationException", "Input is too long for requested model."), errors.ContextTooLong, False),
    (refusal(400, "ServiceQuotaExceededException"), errors.QuotaSpent, False),
    (refusal(403, "AccessDeniedException", "You don't have access to the model"), errors.KeyRefused, False),
    (refusal(403, "UnrecognizedClientException", f"token {KEY} is invalid"), errors.KeyRefused, False),
    (refusal(403, "InvalidSignatureException", f"the canonical string has {KEY}"), errors.KeyRefused, False),
    (refusal(403, "ExpiredTokenException"), errors.KeyRefused, False),
    (refusal(404, "ResourceNotFoundException"), errors.ModelRejected, False),
    (refusal(408, "ModelTimeoutException"), errors.ModelUnavailable, True),
    (refusal(424, "ModelErrorException"), errors.ModelUnavailable, True),
    (refusal(429, "ThrottlingException"), errors.ModelUnavailable, True),
    (refusal(429, "ModelNotReadyException"), errors.ModelUnavailable, True),
    (refusal(500, "InternalServerException"), errors.ModelUnavailable, True),
    (refusal(503, "ServiceUnavailableException"), errors.ModelUnavailable, True),
    (BROKEN_OFF, errors.BrokenReply, True),
    (BROKEN_OFF.model_copy(update={"code": "throttlingException"}), errors.ModelUnavailable, True),
    (BROKEN_OFF.model_copy(update={"code": "modelStreamErrorException"}), errors.ModelUnavailable, True),
    (BROKEN_OFF.model_copy(update={"code": "validationException"}), errors.ModelRejected, False),
    (StandInReply(raw=""), errors.EmptyReply, True),
    (StandInReply(raw="this is no event stream at all"), errors.BrokenReply, True),
    (StandInReply(text="No.", stop="content_filtered"), errors.ContentFiltered, False),
    (StandInReply(text="No.", stop="guardrail_intervened"), errors.ContentFiltered, False),
    (StandInReply(text="And", stop="model_context_window_exceeded"), errors.ContextTooLong, False),
    (StandInReply(text="So {", stop="malformed_tool_use"), errors.BrokenReply, True),
    (StandInReply(stop="max_tokens"), errors.AnswerTooLong, False),
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
    aws: BedrockServer, reply: Reply, error: type[BatonError], again: bool, stream: bool
) -> None:
    aws.answers(reply)
    with pytest.raises(BatonError) as raised:
        await ask(aws, stream=stream)
    assert type(raised.value) is error
    assert raised.value.non_retryable is not again
    assert KEY not in str(raised.value)


async def test_an_answer_that_takes_longer_than_its_models_timeout_is_given_up(aws: BedrockServer) -> None:
    aws.answers(Reply(text="word " * 200, pause=0.2))
    with pytest.raises(errors.CallTimeout, match="claude:0 at Bedrock in eu-central-1 gave no answer in time"):
        await ask(aws, timeout="1s")


async def test_a_server_that_is_not_there_is_tried_again(aws: BedrockServer) -> None:
    with pytest.raises(errors.ModelUnavailable, match="can't be reached"):
        await ask(aws, connection={**PAIR, "baseUrl": "http://127.0.0.1:1"})


async def test_a_check_costs_nothing_and_finds_wrong_keys_and_models(aws: BedrockServer) -> None:
    async def check(**spec: Any) -> str:
        provider, given = BedrockProvider(), Model.model_validate(model(aws, **spec))
        try:
            return await provider.check(ChainedModel(given, "m"), resolver(given))
        finally:
            await provider.close()

    assert await check() == "claude:0 at Bedrock in eu-central-1"
    with pytest.raises(errors.KeyRefused):
        await check(connection={**PAIR, "accessKeyId": "wrong"})
    with pytest.raises(errors.ModelRejected, match="identifier is invalid"):
        await check(model="unknown")
    assert not aws.requests


async def test_missing_keys_and_regions_are_told(aws: BedrockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(errors.KeyMissing, match="has none of AWS"):
        await ask(aws, connection={})
    half = Model.model_validate(model(aws, connection={"accessKeyId": "only"}))
    with pytest.raises(errors.KeyMissing, match=r"Model/default/m has no config\.bedrock\.secretAccessKey"):
        bedrock_endpoint(ChainedModel(half, "m"), resolver(half))
    homeless = {"provider": "bedrock", "model": "c", "config": {"bedrock": {}}}
    provider, given = BedrockProvider(), Model.model_validate(manifest("Model", "m", homeless))
    with pytest.raises(errors.InvalidManifest, match=r"no config\.bedrock\.region"):
        await provider.ask(ChainedModel(given, "m"), resolver(given), ModelRequest(ASKED), lambda _: None)


def test_credentials_are_not_shown() -> None:
    given = Model.model_validate(
        manifest("Model", "m", {"provider": "bedrock", "model": "c", "config": {"bedrock": PAIR}})
    )
    assert KEY not in repr(bedrock_endpoint(ChainedModel(given, "m"), resolver(given)))


def test_the_stand_ins_events_are_those_of_aws() -> None:
    from botocore.eventstream import EventStreamBuffer  # noqa: PLC0415  # only here

    buffer = EventStreamBuffer()
    buffer.add_data(event("messageStop", stopReason="end_turn"))
    message: Any = next(iter(buffer))
    assert (message.headers[":event-type"], json.loads(message.payload)) == ("messageStop", {"stopReason": "end_turn"})
