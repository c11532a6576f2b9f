"""Tests of what OpenAI's Responses API alone needs: no state on the server, encrypted reasoning, and its items."""

import json
from collections.abc import Iterator

import pytest

from baton.activities.model.provider import ModelRequest
from baton.activities.tool.tool import ToolDefinition
from baton.contracts.message import Message, ToolCall
from baton.testing import Reply
from tests.harness.environment import KEY, Environment, Json, agent, call, line, manifest
from tests.harness.manifests import Writer
from tests.harness.model_providers import ASKED, ProviderServer, serving
from tests.harness.stand_in import StandInReply

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

NOOP = ToolDefinition("noop", "does nothing", {"type": "object", "properties": {}})
REASONING: Json = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAB"}
FUNCTION_CALL: Json = {"type": "function_call", "id": "fc", "call_id": "c", "name": "noop", "arguments": "{}"}


@pytest.fixture
def openai() -> Iterator[ProviderServer]:
    with serving("openai-responses", KEY) as provider:
        yield provider


def test_properties_that_would_make_the_server_keep_state_are_refused(write: Writer) -> None:
    for name in ("store", "previous_response_id", "conversation", "background"):
        config = {"openai-responses": {"properties": {name: "x"}}}
        given = manifest("Model", "m", {"provider": "openai-responses", "model": "gpt", "config": config})
        [problem] = write.refusal(given)
        assert f"spec.config.openai-responses.properties: '{name}' is set by Baton itself" in problem


@pytest.mark.parametrize("stream", [True, False])
async def test_an_agent_uses_its_tools_through_the_api(env: Environment, stream: bool) -> None:
    env.script(line("one", call("calculator", expression="6*7"), "It is 42."))
    config = {"openai-responses": {"baseUrl": env.model_url}}
    spec = {"provider": "openai-responses", "model": "gpt", "stream": stream, "config": config}
    given = [agent("one", "calculator", modelRef={"name": "m"}), manifest("Model", "m", spec)]
    status = await env.status(await env.start_query(given, "agent/one"))
    assert status.phase == "Completed", status.error
    assert status.responses[0].message == "It is 42."
    first, second = env.model.requests
    assert (first.path, first.body["store"], first.body["include"]) == (
        "/v1/responses",
        False,
        ["reasoning.encrypted_content"],
    )
    assert [item["type"] for item in second.body["input"]] == ["message", "function_call", "function_call_output"]
    assert second.body["input"][2]["output"] == "42"


@pytest.mark.parametrize("stream", [True, False])
async def test_encrypted_reasoning_goes_back_before_its_calls_and_without_an_id(
    openai: ProviderServer, stream: bool
) -> None:
    """An id would refer to an item that the server has not stored."""
    output = [{"id": "rs_1", "status": "completed", **REASONING}, FUNCTION_CALL]
    whole = {"id": "resp", "model": "gpt", "status": "completed", "output": output}
    done: list[Json] = [
        {"type": "response.output_item.done", "output_index": index, "item": item} for index, item in enumerate(output)
    ]
    events = [*done, {"type": "response.completed", "response": whole}]
    streamed = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    openai.server.answers(Reply(raw=streamed if stream else json.dumps(whole)), Reply(text="Done."))
    message = await openai.ask(ModelRequest(ASKED, [NOOP], speaker="two"), stream=stream)
    assert [(each.id, each.name, each.arguments) for each in message.tool_calls] == [("c", "noop", "{}")]
    result = Message(role="tool", name="noop", tool_call_id="c", content="done")
    conversation = [*ASKED, message.named("two"), result]
    await openai.ask(ModelRequest(conversation, [NOOP], speaker="two"), stream=stream)
    assert openai.server.requests[1]["input"][1] == REASONING
    assert [item["type"] for item in openai.server.requests[1]["input"][2:]] == [
        "function_call",
        "function_call_output",
    ]


async def test_others_are_the_user_under_their_names_and_the_prompt_is_the_instructions(openai: ProviderServer) -> None:
    messages = [
        Message(role="system", content="You are two."),
        *ASKED,
        Message(role="assistant", name="one", content="Because."),
        Message(role="assistant", name="two", content="No.", tool_calls=(ToolCall(id="x", name="noop"),)),
        Message(role="tool", name="noop", tool_call_id="x", content="done"),
    ]
    await openai.ask(ModelRequest(messages, [NOOP], speaker="two"))
    (body,) = openai.server.requests
    assert body["instructions"] == "You are two."
    assert [item.get("content") for item in body["input"][:3]] == ["Why?", "# one:\nBecause.", "No."]
    assert [item.get("role") for item in body["input"][:3]] == ["user", "user", "assistant"]


async def test_an_output_schema_is_a_text_format_beside_what_properties_say(openai: ProviderServer) -> None:
    schema: Json = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    properties = {"text": '{"verbosity": "low"}'}
    await openai.ask(ModelRequest(ASKED, schema=schema), connection={"properties": properties})
    format_ = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    assert openai.server.requests[0]["text"] == {"verbosity": "low", "format": format_}


async def test_a_model_that_does_not_reason_is_asked_without_its_encrypted_reasoning(openai: ProviderServer) -> None:
    rejection = StandInReply(status=400, text="Encrypted content is not supported with this model.")
    openai.server.answers(rejection, Reply(text="Because."))
    assert (await openai.ask()).content == "Because."
    assert ["include" in body for body in openai.server.requests] == [True, False]
