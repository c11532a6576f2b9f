"""Tests of Gemini's thought signatures: a call goes back with its own, and without one only where none is needed."""

import json

import pytest

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.answer import LONGEST_EXTRA
from baton.activities.model.openai import OpenAIProvider
from baton.activities.model.provider import ModelRequest
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.message import Message, ServerContent, ToolCall
from baton.resources.model import Model
from baton.resources.secret import Secrets
from baton.testing import Reply
from tests.harness.environment import Environment, Json, agent, manifest
from tests.harness.manifests import own_catalog

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

SIGNED: Json = {"google": {"thought_signature": "c2lnbmVkIGJ5IEdlbWluaQ=="}}
SKIPPED: Json = {"google": {"thought_signature": "skip_thought_signature_validator"}}
GIVEN = json.dumps(SIGNED)


def gemini(url: str, name: str = "gemini-3-pro", *, provider: str = "gemini", stream: bool = True) -> Json:
    """A Model of Gemini's, at the scripted model's address."""
    config = {provider: {"baseUrl": url}}
    return manifest("Model", "m", {"provider": provider, "model": name, "stream": stream, "config": config})


def calculation(call_id: str, **more: object) -> Json:
    """A call as the server writes it."""
    function = {"name": "calculator", "arguments": '{"expression": "6*7"}'}
    return {"id": call_id, "type": "function", "function": function, **more}


def answered(*calls: Json, stream: bool) -> Reply:
    """An answer with these calls, each in an event of its own if it is streamed."""
    said = [{"tool_calls": [call]} for call in calls] if stream else [{"tool_calls": [*calls]}]
    choices = [{"delta" if stream else "message": each, "finish_reason": "tool_calls"} for each in said]
    events = [json.dumps({"choices": [each]}) for each in choices]
    return Reply(raw="".join(f"data: {each}\n\n" for each in events) if stream else events[0])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_goes_back_to_gemini_with_its_signature_which_no_history_holds(
    env: Environment, stream: bool
) -> None:
    calls = answered(calculation("a", extra_content=SIGNED), calculation("b"), stream=stream)
    env.answer = lambda request: Reply(text="42.") if request["messages"][-1]["role"] == "tool" else calls
    brought = [agent("one", "calculator", modelRef={"name": "m"}), gemini(env.model_url, stream=stream)]
    handle = await env.start_query(brought, "agent/one")
    status = await env.status(handle)
    assert status.phase == "Completed", status.error
    (asked,) = [each for each in env.model.requests[1].body["messages"] if each["role"] == "assistant"]
    assert asked["tool_calls"] == [calculation("a", extra_content=SIGNED), calculation("b")]
    assert "c2lnbmVk" in str(env.rows())
    async for run in env.closed_runs():
        events = [each.SerializeToString() for each in (await run.fetch_history()).events]
        assert any(b"6*7" in each for each in events)
        assert not any(b"c2lnbmVk" in each for each in events)


HERE = "gemini-3-pro at HOST"
EXTRAS: list[tuple[Json, ServerContent | None, list[Json | None]]] = [
    ({}, None, [SKIPPED, None]),
    ({}, ServerContent(model="gemini-3-flash at HOST", content=GIVEN), [SKIPPED, None]),
    ({}, ServerContent(model=HERE, content=GIVEN), [SIGNED, None]),
    ({}, ServerContent(model=HERE, content="[]"), [SKIPPED, None]),
    ({}, ServerContent(model=HERE, content="[secret]"), [SKIPPED, None]),
    ({"name": "gemini-2.5-flash"}, None, [None, None]),
    ({"name": "gpt-5", "provider": "openai"}, None, [None, None]),
    ({"name": "gpt-5", "provider": "openai"}, ServerContent(model=HERE, content=GIVEN), [None, None]),
    ({"provider": "openai"}, ServerContent(model=HERE, content=GIVEN), [SIGNED, None]),
]


@pytest.mark.parametrize(("asked", "extra", "sent"), EXTRAS)
async def test_only_the_model_that_signed_a_call_gets_its_signature(
    env: Environment, asked: Json, extra: ServerContent | None, sent: list[Json | None]
) -> None:
    """Gemini refuses the first call of an answer without one, and takes a text in place of one that is not its own."""
    if extra:
        extra = extra.model_copy(update={"model": extra.model.replace("HOST", env.model_host)})
    calls = (ToolCall(id="a", name="calculator", extra=extra), ToolCall(id="b", name="calculator"))
    results = [Message(role="tool", tool_call_id=each.id, content="42") for each in calls]
    await ask(env, asked, Message(role="assistant", name="other", tool_calls=calls), *results)
    said = env.model.requests[0].body["messages"][0]
    assert [each.get("extra_content") for each in said["tool_calls"]] == sent


async def test_a_signature_that_is_too_long_or_no_object_is_dropped(env: Environment) -> None:
    wrong: list[Json] = [calculation("a", extra_content={"x": "y" * LONGEST_EXTRA})]
    wrong += [calculation("b", extra_content="text"), calculation("c", extra_content=SIGNED)]
    env.answer = lambda _: answered(*wrong, stream=True)
    message = await ask(env, {}, Message(role="user", content="Why?"))
    assert [each.extra and each.extra.content for each in message.tool_calls] == [None, None, GIVEN]


async def ask(env: Environment, asked: Json, *messages: Message) -> Message:
    given = Model.model_validate(gemini(env.model_url, **asked))
    provider, values = OpenAIProvider(), ValueResolver(own_catalog(given), SecretStore(Secrets(), {}))
    model = ChainedModel(given, "m")
    try:
        return await provider.ask(model, values, ModelRequest([*messages]), lambda _: None)
    finally:
        await provider.close()
