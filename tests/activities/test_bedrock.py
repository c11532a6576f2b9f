"""Tests of what the provider for Amazon Bedrock alone does: how conversations, limits and credentials are sent."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.bedrock import BedrockEndpoint, BedrockProvider, bedrock_endpoint, converse_fields
from baton.activities.model.provider import ModelRequest
from baton.activities.runtime.secrets import SecretStore
from baton.activities.tool.tool import ToolDefinition
from baton.contracts import errors
from baton.contracts.attachment import Attachment
from baton.contracts.message import Message, ToolCall
from baton.resources.model import Model
from baton.resources.model_settings import ModelSettings
from baton.resources.secret import Secrets
from tests.harness.bedrock_server import BedrockServer, event
from tests.harness.environment import KEY, Json, manifest
from tests.harness.manifests import own_catalog
from tests.harness.stand_in import StandInReply
from tests.harness.tool_server import Answer, ToolServer

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

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
    return ValueResolver(own_catalog(given), SecretStore(Secrets(), environment))


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


@pytest.mark.full
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
    fields = converse_fields(endpoint, ModelRequest(ASKED, schema=CLOSED), ModelSettings(), {"outputConfig"})
    format_ = fields["outputConfig"]["textFormat"]
    assert (format_["type"], json.loads(format_["structure"]["jsonSchema"]["schema"])) == ("json_schema", CLOSED)
    assert fields["outputConfig"]["effort"] == "low"
    assert "outputConfig" not in converse_fields(
        BedrockEndpoint("m"), ModelRequest(ASKED, schema=CLOSED), ModelSettings(), ()
    )
    opened = ModelRequest(ASKED, schema={"type": "object"})
    assert "outputConfig" not in converse_fields(BedrockEndpoint("m"), opened, ModelSettings(), {"outputConfig"})


@pytest.mark.full
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
    with pytest.raises(errors.KeyMissing, match="the worker has no AWS credentials"):
        await ask(aws, connection={})
    half = Model.model_validate(model(aws, connection={"accessKeyId": "only"}))
    with pytest.raises(errors.KeyMissing, match=r"Model/default/m has no config\.bedrock\.secretAccessKey"):
        bedrock_endpoint(ChainedModel(half, "m"), resolver(half))
    homeless = {"provider": "bedrock", "model": "c", "config": {"bedrock": {}}}
    provider, given = BedrockProvider(), Model.model_validate(manifest("Model", "m", homeless))
    with pytest.raises(errors.InvalidManifest, match=r"no config\.bedrock\.region"):
        await provider.ask(ChainedModel(given, "m"), resolver(given), ModelRequest(ASKED), lambda _: None)


async def test_properties_that_are_objects_add_to_the_other_fields(aws: BedrockServer) -> None:
    more = {"additionalModelRequestFields": '{"top_k": 3}', "inferenceConfig": '{"topP": 0.3}'}
    properties = {"thinking": '{"type": "adaptive"}', "temperature": "0.5", **more}
    await ask(aws, connection={**PAIR, "properties": properties})
    (body,) = aws.requests
    assert body["additionalModelRequestFields"] == {"thinking": {"type": "adaptive"}, "top_k": 3}
    assert body["inferenceConfig"] == {"temperature": 0.5, "topP": 0.3}
    with pytest.raises(errors.InvalidManifest, match=r"properties: inferenceConfig must be a JSON object"):
        await ask(aws, connection={**PAIR, "properties": {"inferenceConfig": "fast"}})


PDF = "application/pdf"


async def test_the_documents_of_a_conversation_have_different_names_and_a_text_beside_them(aws: BedrockServer) -> None:
    names = [None, None, "报告.pdf", "Q1_report.pdf", f"{'long ' * 100}.pdf"]
    files = [Attachment(kind="file", name=name, media_type=PDF, stored=f"s/{at}") for at, name in enumerate(names)]
    contents = {file.stored or "": b"%PDF" for file in files}
    earlier = Message(role="user", content="", attachments=tuple(files[:3]))
    question = Message(role="user", content="Compare.", attachments=tuple(files[3:]))
    said = Message(role="assistant", content="Seen.")
    await ask(aws, ModelRequest([earlier, said, question], contents=contents))
    first, _, last = ([*message["content"]] for message in aws.requests[0]["messages"])
    assert [block["document"]["name"] for block in first if "document" in block] == ["document", "document 2", "pdf"]
    assert first[-1] == {"text": "(see the document)"}
    short, long = (block["document"]["name"] for block in last if "document" in block)
    assert short == "Q1 report pdf"
    assert len(long) <= 200


async def test_a_document_keeps_its_name_when_one_of_a_tools_result_stands_before_it(aws: BedrockServer) -> None:
    files = [Attachment(kind="file", name="a.pdf", media_type=PDF, stored=stored) for stored in ("s/0", "s/1")]
    contents = {"s/0": b"%PDF of the tool", "s/1": b"%PDF of a person"}
    call = Message(role="assistant", tool_calls=(ToolCall(id="c", name="noop"),))
    result = Message(role="tool", name="noop", tool_call_id="c", content="", attachments=(files[0],))
    said = Message(role="user", content="And this?", attachments=(files[1],))
    await ask(aws, ModelRequest([*ASKED, call, result, said], [NOOP], contents=contents))
    own, *_ = aws.requests[0]["messages"][-1]["content"]
    (document,) = (block["document"] for block in own["toolResult"]["content"] if "document" in block)
    later = [block["document"] for block in aws.requests[0]["messages"][-1]["content"] if "document" in block]
    assert (document["name"], [each["name"] for each in later]) == ("a pdf", ["a pdf 2"])


@pytest.fixture
def own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the worker's own AWS keys, the only place where it has some."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "credentials"


def write_keys(file: Path, key: str) -> None:
    pair = f"aws_access_key_id = {key}\naws_secret_access_key = secret\naws_session_token = token-{key}\n"
    file.write_text(f"[default]\n{pair}")


async def test_renewed_keys_of_the_worker_are_read_once_the_old_ones_are_refused(
    aws: BedrockServer, own_keys: Path
) -> None:
    write_keys(own_keys, "old")
    aws.answers(StandInReply(text="First."), StandInReply(status=403, code="ExpiredTokenException"))
    provider = BedrockProvider()

    async def answer(region: str) -> str:
        given = Model.model_validate(model(aws, connection={"region": region}))
        said = await provider.ask(ChainedModel(given, "m"), resolver(given), ModelRequest(ASKED), lambda _: None)
        return said.content

    assert await answer("eu-west-1") == "First."
    with pytest.raises(errors.KeyRefused):
        await answer("eu-central-1")
    write_keys(own_keys, "new")
    aws.answers(StandInReply(text="Because."), StandInReply(text="Because."))
    assert [await answer("eu-central-1"), await answer("eu-west-1")] == ["Because.", "Because."]
    await provider.close()
    tokens = [headers["x-amz-security-token"] for headers in aws.headers]
    assert tokens == ["token-old", "token-old", "token-new", "token-new"], "the same keys are used in all regions"


async def test_keys_of_the_worker_are_read_that_were_missing_at_an_earlier_call(
    aws: BedrockServer, own_keys: Path
) -> None:
    provider, given = BedrockProvider(), Model.model_validate(model(aws, connection={}))
    values = resolver(given)
    with pytest.raises(errors.KeyMissing):
        await provider.ask(ChainedModel(given, "m"), values, ModelRequest(ASKED), lambda _: None)
    write_keys(own_keys, "new")
    await provider.ask(ChainedModel(given, "m"), values, ModelRequest(ASKED), lambda _: None)
    await provider.close()
    assert [headers["x-amz-security-token"] for headers in aws.headers] == ["token-new"]


SSO = "sso_start_url = https://sso.example\nsso_region = eu-west-1\nsso_account_id = 1\nsso_role_name = r\n"


@pytest.mark.parametrize(
    ("profile", "reason"),
    [(SSO, "Error loading SSO Token"), ("role_arn = arn:aws:iam::1:role/r\nsource_profile = none\n", "source_profile")],
    ids=["a login that has ended", "a profile that names an unknown one"],
)
async def test_a_profile_of_the_worker_without_usable_keys_is_told(
    aws: BedrockServer, own_keys: Path, profile: str, reason: str
) -> None:
    own_keys.with_name("config").write_text(f"[default]\n{profile}")
    with pytest.raises(errors.KeyMissing, match=f"the worker's AWS credentials can't be read: .*{reason}"):
        await ask(aws, connection={})


async def test_a_server_of_the_workers_keys_that_fails_is_an_outage(
    aws: BedrockServer, own_keys: Path, monkeypatch: pytest.MonkeyPatch, tool_server: ToolServer
) -> None:
    tool_server.answers(Answer(status=503))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", tool_server.url)
    with pytest.raises(errors.ModelUnavailable, match="the worker's AWS credentials can't be read") as raised:
        await ask(aws, connection={})
    assert raised.value.outage
    assert raised.value.unsent


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
