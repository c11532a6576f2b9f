"""What every provider of models does alike: it streams, counts tokens, makes a model use tools, and names failures."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from baton.activities.model.provider import ModelRequest
from baton.activities.tool.tool import ToolDefinition
from baton.contracts import errors
from baton.contracts.errors import BatonError
from baton.contracts.message import Message, ToolCall
from baton.resources.model_settings import ModelSettings
from baton.testing import Reply, ScriptedToolCall
from tests.harness.environment import KEY, Json
from tests.harness.model_providers import ASKED, PROVIDERS, ProviderServer, serving
from tests.harness.stand_in import StandInReply

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

NOOP = ToolDefinition("noop", "does nothing", {"type": "object", "properties": {}})
OTHER = ToolDefinition("other", "does nothing either", {"type": "object", "properties": {}})


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> Iterator[ProviderServer]:
    with serving(request.param, KEY) as provider:
        yield provider


async def test_an_answer_is_streamed_with_its_tool_calls_and_its_tokens(provider: ProviderServer) -> None:
    calls = [ScriptedToolCall(name="noop", arguments={"x": 1}), ScriptedToolCall(name="terminate", arguments="")]
    provider.server.answers(StandInReply(text="Because. " * 50, calls=calls, cached=90))
    pieces: list[str] = []
    message = await provider.ask(on_text=pieces.append)
    assert len(pieces) > 5
    assert "".join(pieces) == message.content == "Because. " * 50
    assert [(each.name, each.arguments) for each in message.tool_calls] == [("noop", '{"x": 1}'), ("terminate", "")]
    assert message.model == provider.answers_as
    usage = message.usage
    assert usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.total_tokens) == (100, 90, 7, 107)


async def test_a_model_that_does_not_stream_is_asked_for_the_whole_answer(provider: ProviderServer) -> None:
    calls = [ScriptedToolCall(name="noop", arguments={"x": 1}, id="a"), ScriptedToolCall(name="terminate", id="b")]
    provider.server.answers(StandInReply(text="Because. " * 50, calls=calls, cached=90))
    pieces: list[str] = []
    message = await provider.ask(on_text=pieces.append, stream=False)
    assert pieces == [message.content] == ["Because. " * 50]
    given = [(each.id, each.name, json.loads(each.arguments or "{}")) for each in message.tool_calls]
    assert given == [("a", "noop", {"x": 1}), ("b", "terminate", {})]
    assert (message.model, message.usage) == (provider.answers_as, (await provider.ask()).usage)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_cut_at_its_limit_is_kept_if_it_has_a_text(
    provider: ProviderServer, stream: bool
) -> None:
    provider.server.answers(StandInReply(text="Half of", stop=provider.cut_off))
    assert (await provider.ask(stream=stream)).content == "Half of"
    provider.server.answers(StandInReply(stop=provider.cut_off))
    with pytest.raises(errors.AnswerTooLong) as raised:
        await provider.ask(stream=stream)
    assert raised.value.non_retryable


BARE_CALL = ScriptedToolCall(name="terminate", arguments="")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_call_that_is_cut_before_its_arguments_is_no_call_without_arguments(
    provider: ProviderServer, stream: bool
) -> None:
    provider.server.answers(StandInReply(text="I end", calls=[BARE_CALL], stop=provider.cut_off))
    with pytest.raises(errors.AnswerTooLong):
        await provider.ask(stream=stream)


NAMED: dict[str, str] = {
    "openai": '{"role": "user", "content": "Be brief.", "name": "ann"}',
    "openai-responses": "# ann:\\nBe brief.",
    "azure": '{"role": "user", "content": "Be brief.", "name": "ann"}',
    "anthropic": "# ann:\\nBe brief.",
    "bedrock": "# ann:\\nBe brief.",
}


async def test_what_people_say_is_read_under_their_names(provider: ProviderServer) -> None:
    said = [Message(role="user", content=text, name=name) for text, name in (("Be brief.", "ann"), ("No.", "ben"))]
    await provider.ask(ModelRequest([*ASKED, *said]))
    (body,) = provider.server.requests
    assert NAMED[provider.provider] in json.dumps(body)


FUNCTION = {"type": "function", "function": {"name": "noop"}}
TOOL_CHOICES: dict[str, tuple[object, object]] = {
    "openai": (FUNCTION, "required"),
    "openai-responses": ({"type": "function", "name": "noop"}, "required"),
    "azure": (FUNCTION, "required"),
    "anthropic": ({"type": "tool", "name": "noop"}, {"type": "any"}),
    "bedrock": ({"tool": {"name": "noop"}}, {"any": {}}),
}


async def test_a_tool_that_must_be_used_is_named_and_of_several_one_must_be_used(provider: ProviderServer) -> None:
    await provider.ask(ModelRequest(ASKED, [NOOP], must_use=True))
    await provider.ask(ModelRequest(ASKED, [NOOP, OTHER], must_use=True))
    assert tuple(map(tool_choice, provider.server.requests)) == TOOL_CHOICES[provider.provider]


def tool_choice(body: Json) -> object:
    """Which tool a request makes the model use."""
    return body["toolConfig"]["toolChoice"] if "toolConfig" in body else body["tool_choice"]


SETTINGS: Json = {"temperature": 0.5, "topP": 0.9, "maxTokens": 100}
SENT: dict[str, Json] = {
    "openai": {"temperature": 0.2, "top_p": 0.9, "max_tokens": 100, "stop": ["END"]},
    "openai-responses": {"temperature": 0.2, "top_p": 0.9, "max_output_tokens": 100},
    "azure": {"temperature": 0.2, "top_p": 0.9, "max_completion_tokens": 100, "stop": ["END"]},
    "anthropic": {"temperature": 0.2, "top_p": 0.9, "max_tokens": 100, "stop_sequences": ["END"]},
    "bedrock": {"temperature": 0.2, "topP": 0.9, "maxTokens": 100, "stopSequences": ["END"]},
}


async def test_settings_are_sent_as_numbers_and_those_of_the_agent_come_first(provider: ProviderServer) -> None:
    stop: Json = {} if provider.provider == "openai-responses" else {"stop": ["END"]}
    await provider.ask(agent=ModelSettings(temperature=0.2), **SETTINGS, **stop)
    (body,) = provider.server.requests
    assert {**body, **body.get("inferenceConfig", {})}.items() >= SENT[provider.provider].items()


async def test_a_setting_of_the_agent_replaces_a_property_of_the_model(provider: ProviderServer) -> None:
    properties = {"temperature": 0.5, "max_tokens": "7", "top_p": 0.3}
    await provider.ask(agent=ModelSettings(max_tokens=100), connection={"properties": properties})
    (body,) = provider.server.requests
    sent = {**body, **body.get("inferenceConfig", {})}
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxTokens")
    assert [sent.get(name) for name in names].count(100) == 1
    assert 7 not in sent.values()
    assert 0.5 in sent.values()


EFFORTS: dict[str, Json] = {
    "openai": {"reasoning_effort": "low"},
    "openai-responses": {"reasoning": {"effort": "low", "summary": "auto"}},
    "azure": {"reasoning_effort": "low"},
    "anthropic": {"output_config": {"effort": "low", "verbosity": 1}},
}


@pytest.mark.parametrize("provider", EFFORTS, indirect=True)
async def test_the_reasoning_effort_is_sent_beside_what_properties_say(provider: ProviderServer) -> None:
    beside = {
        "anthropic": {"output_config": '{"verbosity": 1}'},
        "openai-responses": {"reasoning": '{"summary": "auto"}'},
    }
    properties = beside.get(provider.provider, {})
    await provider.ask(agent=ModelSettings(reasoning_effort="low"), connection={"properties": properties})
    assert provider.server.requests[0].items() >= EFFORTS[provider.provider].items()


ODD: list[tuple[Message, ...]] = [
    (Message(role="assistant", content="Mine.", name="two"),),
    (Message(role="assistant", content="Mine.", name="two"), *ASKED, Message(role="assistant", content="So.")),
    (Message(role="user", content="  "),),
    (*ASKED, Message(role="assistant", name="two", tool_calls=(ToolCall(id="a", name="noop"),))),
    (*ASKED, Message(role="assistant", name="two", tool_calls=(ToolCall(id="a", name="noop"),)), *ASKED),
    (*ASKED, Message(role="tool", content="late", name="noop", tool_call_id="gone")),
    (*ASKED, *[Message(role="assistant", name="two", tool_calls=(ToolCall(id="a", name="noop"),))] * 2),
]


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"], indirect=True)
@pytest.mark.parametrize("tools", [[NOOP], []], ids=["tools", "no tools"])
@pytest.mark.parametrize("messages", ODD)
async def test_every_conversation_is_one_that_an_api_of_alternating_turns_takes(
    provider: ProviderServer, messages: tuple[Message, ...], tools: list[ToolDefinition]
) -> None:
    assert (await provider.ask(ModelRequest(messages, tools, speaker="two"))).content == "Because."


@pytest.mark.full
async def test_a_server_that_never_answers_times_out_and_is_retried(provider: ProviderServer) -> None:
    provider.server.answers(Reply(hang=True))
    with pytest.raises(errors.CallTimeout, match=f"{provider.where} did not respond in time") as raised:
        await provider.ask(timeout="300ms")
    assert not raised.value.non_retryable


@pytest.mark.full
async def test_an_answer_that_takes_longer_than_its_models_timeout_is_given_up(provider: ProviderServer) -> None:
    provider.server.answers(Reply(text="word " * 200, pause=0.4))
    with pytest.raises(errors.CallTimeout, match=f"{provider.where} did not respond in time"):
        await provider.ask(timeout="2s")


async def test_a_server_that_refuses_connections_is_retried(provider: ProviderServer) -> None:
    where = f"claude-x at {provider.host or '127.0.0.1:1'}"
    with pytest.raises(errors.ModelUnavailable, match=f"{where} can't be reached") as raised:
        await provider.ask(connection={"baseUrl": "http://127.0.0.1:1"})
    assert not raised.value.non_retryable


def refusal(status: int, code: str | None = None, text: str = "no", **more: dict[str, str]) -> Reply:
    """A refusal with an HTTP status, and the error's code or type."""
    return StandInReply(status=status, code=code, text=text, **more)


def broken_off(code: str | None = None) -> Reply:
    """A stream that breaks off, after an event that names an error."""
    return StandInReply(text="x" * 500, cut=200, code=code)


def reported(**error: str | int) -> Reply:
    """A stream of OpenAI's, answered with HTTP 200, in which the server reports an error."""
    event = {"error": {"message": "something is wrong", **error}}
    return Reply(raw=f"data: {json.dumps(event)}\n\n")


def whole(**completion: object) -> Reply:
    """A whole answer of OpenAI's, or something else in its place."""
    return Reply(raw=json.dumps(completion))


def unfinished(text: object) -> Reply:
    """A whole answer without a reason why it has ended."""
    return whole(choices=[{"message": {"content": text}}])


def event_of(kind: str, **data: object) -> Reply:
    """A stream of OpenAI's Responses API with one event."""
    return Reply(raw=f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n")


def failed_response(code: str) -> Reply:
    """A stream of that API that ends with a failure."""
    return event_of("response.failed", response={"status": "failed", "error": {"code": code, "message": "no"}})


MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "And"}]}

Failure = tuple[Reply, type[BatonError], bool]
"""A failure of a server, the error of the run, and whether the call is retried."""

REFUSED: dict[str, list[Failure]] = {
    "openai": [
        (refusal(400, text="bad"), errors.ModelRejected, False),
        (refusal(400, "context_length_exceeded"), errors.ContextTooLong, False),
        (refusal(400, "content_filter"), errors.ContentFiltered, False),
        (refusal(401, text=f"Incorrect API key provided: {KEY}"), errors.KeyRefused, False),
        (refusal(403), errors.KeyRefused, False),
        (refusal(404), errors.ModelRejected, False),
        (refusal(408), errors.ModelUnavailable, True),
        (refusal(409), errors.ModelUnavailable, True),
        (refusal(425), errors.ModelUnavailable, True),
        (refusal(429), errors.ModelUnavailable, True),
        (refusal(429, "insufficient_quota"), errors.QuotaSpent, False),
        (refusal(500), errors.ModelUnavailable, True),
        (refusal(500, headers={"x-should-retry": "false"}), errors.ModelRejected, False),
        (refusal(503), errors.ModelUnavailable, True),
        (StandInReply(text="I", stop="content_filter"), errors.ContentFiltered, False),
        (StandInReply(calls=[BARE_CALL], stop="model_length"), errors.ContextTooLong, False),
    ],
    "openai-responses": [
        (refusal(400, text="bad"), errors.ModelRejected, False),
        (refusal(400, "context_length_exceeded"), errors.ContextTooLong, False),
        (refusal(401, text=f"Incorrect API key provided: {KEY}"), errors.KeyRefused, False),
        (refusal(404), errors.ModelRejected, False),
        (refusal(429), errors.ModelUnavailable, True),
        (refusal(429, "insufficient_quota"), errors.QuotaSpent, False),
        (refusal(500), errors.ModelUnavailable, True),
        (StandInReply(text="I", stop="content_filter"), errors.ContentFiltered, False),
    ],
    "azure": [
        (refusal(400, "content_filter"), errors.ContentFiltered, False),
        (refusal(401, text=f"Incorrect API key provided: {KEY}"), errors.KeyRefused, False),
        (refusal(429), errors.ModelUnavailable, True),
    ],
    "anthropic": [
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
        (StandInReply(text="No.", stop="refusal"), errors.ContentFiltered, False),
        (StandInReply(text="And", stop="model_context_window_exceeded"), errors.ContextTooLong, False),
    ],
    "bedrock": [
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
        (StandInReply(text="No.", stop="content_filtered"), errors.ContentFiltered, False),
        (StandInReply(text="No.", stop="guardrail_intervened"), errors.ContentFiltered, False),
        (StandInReply(text="And", stop="model_context_window_exceeded"), errors.ContextTooLong, False),
        (StandInReply(text="So {", stop="malformed_tool_use"), errors.BrokenReply, True),
    ],
}
"""Failures that a server reports with and without a stream."""

CUT_CALL = ScriptedToolCall(name="noop", arguments='{"x": ')

STREAMED: dict[str, list[Failure]] = {
    "openai": [
        (broken_off(), errors.BrokenReply, True),
        (Reply(raw='data: {"choices": [{"ind\n\n'), errors.BrokenReply, True),
        (Reply(raw="data: <html>oops</html>\n\n"), errors.BrokenReply, True),
        (Reply(raw=""), errors.EmptyReply, True),
        (reported(code="invalid_api_key", type="invalid_request_error"), errors.KeyRefused, False),
        (reported(type="authentication_error"), errors.KeyRefused, False),
        (reported(code=401, message=f"Incorrect API key provided: {KEY}"), errors.KeyRefused, False),
        (reported(code="insufficient_quota"), errors.QuotaSpent, False),
        (reported(code=400), errors.ModelRejected, False),
        (reported(code=429), errors.ModelUnavailable, True),
        (reported(code=502), errors.ModelUnavailable, True),
        (reported(code=1302), errors.BrokenReply, True),
        (reported(type="server_error"), errors.ModelUnavailable, True),
        (reported(type="requests", code="rate_limit_exceeded"), errors.ModelUnavailable, True),
        (reported(type="engine_overloaded_error"), errors.ModelUnavailable, True),
        (reported(type="odd_error"), errors.BrokenReply, True),
    ],
    "openai-responses": [
        (broken_off(), errors.BrokenReply, True),
        (Reply(raw='data: {"type": "response.outp\n\n'), errors.BrokenReply, True),
        (Reply(raw=""), errors.EmptyReply, True),
        (event_of("error", code="server_error", message="no"), errors.ModelUnavailable, True),
        (event_of("error", code="invalid_api_key", message=f"Incorrect key: {KEY}"), errors.KeyRefused, False),
        (failed_response("server_error"), errors.ModelUnavailable, True),
        (failed_response("insufficient_quota"), errors.QuotaSpent, False),
        (failed_response("invalid_prompt"), errors.ModelRejected, False),
        (reported(code="context_length_exceeded"), errors.ContextTooLong, False),
    ],
    "anthropic": [
        (broken_off(), errors.BrokenReply, True),
        (broken_off("overloaded_error"), errors.ModelUnavailable, True),
        (broken_off("invalid_request_error"), errors.ModelRejected, False),
        (Reply(raw=""), errors.EmptyReply, True),
        (Reply(raw="event: message_start\ndata: {oops\n\n"), errors.BrokenReply, True),
        (StandInReply(calls=[CUT_CALL], stop="max_tokens"), errors.AnswerTooLong, False),
    ],
    "bedrock": [
        (broken_off(), errors.BrokenReply, True),
        (broken_off("throttlingException"), errors.ModelUnavailable, True),
        (broken_off("modelStreamErrorException"), errors.ModelUnavailable, True),
        (broken_off("validationException"), errors.ModelRejected, False),
        (Reply(raw=""), errors.EmptyReply, True),
        (Reply(raw="this is no event stream at all"), errors.BrokenReply, True),
    ],
}
"""Failures of a stream."""

WHOLE: dict[str, list[Failure]] = {
    "openai": [
        (whole(), errors.EmptyReply, True),
        (Reply(raw=""), errors.BrokenReply, True),
        (Reply(raw="<html>oops</html>"), errors.BrokenReply, True),
        (Reply(raw="[1]"), errors.BrokenReply, True),
        (unfinished(7), errors.BrokenReply, True),
        (unfinished("And"), errors.BrokenReply, True),
        (whole(error={"code": "insufficient_quota", "message": "no"}), errors.QuotaSpent, False),
        (whole(error={"code": 401, "message": f"Incorrect API key provided: {KEY}"}), errors.KeyRefused, False),
        (whole(error="out of order"), errors.BrokenReply, True),
    ],
    "openai-responses": [
        (whole(), errors.EmptyReply, True),
        (Reply(raw="<html>oops</html>"), errors.BrokenReply, True),
        (Reply(raw="[1]"), errors.BrokenReply, True),
        (whole(status="in_progress", output=[MESSAGE]), errors.BrokenReply, True),
        (whole(output=[MESSAGE]), errors.BrokenReply, True),
        (whole(status="failed", error={"code": "insufficient_quota", "message": "no"}), errors.QuotaSpent, False),
        (whole(status="cancelled"), errors.BrokenReply, True),
        (whole(error={"code": 401, "message": f"Incorrect API key provided: {KEY}"}), errors.KeyRefused, False),
    ],
    "anthropic": [
        (Reply(raw=""), errors.BrokenReply, True),
        (Reply(raw="{}"), errors.BrokenReply, True),
        (Reply(raw="<html>oops</html>"), errors.BrokenReply, True),
    ],
    "bedrock": [
        (Reply(raw=""), errors.BrokenReply, True),
        (Reply(raw="{}"), errors.BrokenReply, True),
        (Reply(raw="<html>oops</html>"), errors.BrokenReply, True),
    ],
}
"""Failures of a whole answer."""

FAILURES = [
    (name, *failure, stream)
    for table, streams in ((REFUSED, (True, False)), (STREAMED, (True,)), (WHOLE, (False,)))
    for name, failures in table.items()
    for failure in failures
    for stream in streams
]


@pytest.mark.parametrize(
    ("provider", "reply", "error", "again", "stream"),
    FAILURES,
    indirect=["provider"],
    ids=lambda value: str(value)[:40],
)
async def test_a_failure_is_retried_where_that_can_help_and_repeats_no_key(
    provider: ProviderServer, reply: Reply, error: type[BatonError], again: bool, stream: bool
) -> None:
    provider.server.answers(reply)
    with pytest.raises(BatonError) as raised:
        await provider.ask(stream=stream)
    assert type(raised.value) is error
    assert raised.value.non_retryable is not again
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("provider", "reply", "outage"),
    [
        ("openai", reported(code=503), True),
        ("openai", reported(code="rate_limit_exceeded"), False),
        ("openai-responses", failed_response("server_error"), True),
        ("anthropic", broken_off("overloaded_error"), True),
        ("bedrock", broken_off("throttlingException"), False),
    ],
    indirect=["provider"],
    ids=lambda value: str(value)[:40],
)
async def test_a_failure_within_a_stream_is_an_outage_if_the_server_has_failed(
    provider: ProviderServer, reply: Reply, outage: bool
) -> None:
    provider.server.answers(reply)
    with pytest.raises(BatonError) as raised:
        await provider.ask(stream=True)
    assert raised.value.outage is outage


CUT = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 1000\r\n\r\n"
"""The head of a response, whose body does not follow."""


async def test_a_connection_that_breaks_within_an_answer_is_an_outage(provider: ProviderServer) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CUT)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(BatonError) as raised:
            await provider.ask(connection={"baseUrl": url})
    assert isinstance(raised.value, errors.BrokenReply | errors.ModelUnavailable)
    assert raised.value.outage
    assert not raised.value.unsent
    assert not raised.value.non_retryable
