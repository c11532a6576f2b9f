"""Tests of reasoning: it goes back to the model that has thought, with its tool calls, and is shown to nobody."""

import base64
import json
from collections.abc import Iterator

import pytest

from baton.activities.model.answer import LONGEST_REASONING
from baton.activities.model.provider import ModelRequest
from baton.activities.runtime.redaction import redacted
from baton.activities.tool.tool import ToolDefinition
from baton.contracts.message import Message, ServerContent, ToolCall
from baton.testing import Reply
from tests.harness.bedrock_server import event
from tests.harness.environment import KEY, Environment, Json, agent, manifest
from tests.harness.model_providers import ASKED, ProviderServer, serving

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

NOOP = ToolDefinition("noop", "does nothing", {"type": "object", "properties": {}})
THOUGHT = "Hm, six times seven."
SIGNATURE = "c2lnbmVk"


def chunks(field: str, *, stream: bool, calls: bool = True, thought: str = THOUGHT) -> Reply:
    """An answer of a chat completions server with reasoning in this field, in two pieces if it is streamed."""
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    last: Json = {"tool_calls": [call]} if calls else {"content": "42."}
    if not stream:
        choice = {"message": {field: thought, **last}, "finish_reason": "stop"}
        return Reply(raw=json.dumps({"choices": [choice]}))
    deltas: list[Json] = [{field: thought[:5], "content": None}, {field: thought[5:]}, last]
    choices = [{"delta": delta, "finish_reason": "stop" if delta is last else None} for delta in deltas]
    return Reply(raw="".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices))


@pytest.fixture
def openai() -> Iterator[ProviderServer]:
    with serving("openai", KEY) as provider:
        yield provider


@pytest.fixture
def claude() -> Iterator[ProviderServer]:
    with serving("anthropic", KEY) as provider:
        yield provider


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_the_reasoning_before_tool_calls_goes_back_under_its_own_name(
    env: Environment, field: str, stream: bool
) -> None:
    thinking = chunks(field, stream=stream)
    env.answer = lambda request: Reply(text="42.") if request["messages"][-1]["role"] == "tool" else thinking
    config = {"openai": {"baseUrl": env.model_url}}
    model = manifest("Model", "m", {"provider": "openai", "model": "deep", "stream": stream, "config": config})
    handle = await env.start_query([agent("one", "calculator", modelRef={"name": "m"}), model], "agent/one")
    status = await env.status(handle)
    assert status.phase == "Completed", status.error
    (asked,) = [each for each in env.model.requests[1].body["messages"] if each["role"] == "assistant"]
    assert asked[field] == THOUGHT
    assert THOUGHT in str(env.rows())
    assert THOUGHT not in status.model_dump_json()
    async for run in env.closed_runs():
        events = [each.SerializeToString() for each in (await run.fetch_history()).events]
        assert not any(THOUGHT.encode() in each for each in events)


async def test_reasoning_is_neither_text_nor_kept_without_tool_calls(openai: ProviderServer) -> None:
    openai.server.answers(chunks("reasoning_content", stream=True, calls=False))
    pieces: list[str] = []
    message = await openai.ask(on_text=pieces.append)
    assert (message.content, pieces, message.reasoning) == ("42.", ["42."], None)


async def test_reasoning_that_is_too_long_is_dropped(openai: ProviderServer) -> None:
    openai.server.answers(chunks("reasoning_content", stream=True, thought="x" * LONGEST_REASONING))
    message = await openai.ask()
    assert message.tool_calls
    assert message.reasoning is None


async def test_only_the_model_that_has_thought_gets_its_reasoning(openai: ProviderServer) -> None:
    content = json.dumps([{"reasoning_content": THOUGHT}])
    for source in (openai.where, "gpt at elsewhere", ""):
        reasoning = ServerContent(model=source, content=content)
        calls = (ToolCall(id="a", name="noop"),)
        said = Message(role="assistant", name="two", tool_calls=calls, reasoning=reasoning)
        result = Message(role="tool", name="noop", tool_call_id="a", content="done")
        await openai.ask(ModelRequest([*ASKED, said, result], [NOOP], speaker="two"))
    sent = [body["messages"][1].get("reasoning_content") for body in openai.server.requests]
    assert sent == [THOUGHT, None, None]


def thinking_events() -> Reply:
    """A stream of Claude's with thinking before a tool call."""
    events: list[Json] = [
        {"type": "message_start", "message": {"model": "claude-x", "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": THOUGHT[:5]}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": THOUGHT[5:]}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": SIGNATURE}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "x1y2"}},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "noop"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
    ]
    return Reply(raw="".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))


BLOCKS = [
    {"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE},
    {"type": "redacted_thinking", "data": "x1y2"},
]


def thinking_answer() -> Reply:
    """The same without a stream."""
    use = {"type": "tool_use", "id": "t", "name": "noop", "input": {}}
    return Reply(raw=json.dumps({"model": "claude-x", "content": [*BLOCKS, use], "stop_reason": "tool_use"}))


THINKING = {"properties": {"thinking": '{"type": "enabled", "budget_tokens": 1024}'}}


@pytest.mark.parametrize("stream", [True, False])
async def test_claudes_thinking_goes_back_with_its_signature_before_its_tool_calls(
    claude: ProviderServer, stream: bool
) -> None:
    claude.server.answers(thinking_events() if stream else thinking_answer(), Reply(text="Done."))
    request = ModelRequest(ASKED, [NOOP], speaker="two")
    message = await claude.ask(request, connection=THINKING, stream=stream)
    assert message.content == ""
    result = Message(role="tool", name="noop", tool_call_id=message.tool_calls[0].id, content="done")
    conversation = [*ASKED, message.named("two"), result]
    await claude.ask(ModelRequest(conversation, [NOOP], speaker="two"), connection=THINKING, stream=stream)
    body = claude.server.requests[1]
    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "redacted_thinking", "tool_use"]
    assert body["messages"][1]["content"][:2] == BLOCKS
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_goes_back_with_tool_calls_that_have_a_text_before_them(
    openai: ProviderServer, field: str, stream: bool
) -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "noop", "arguments": "{}"}}
    said = {"content": "I look.", field: THOUGHT, "tool_calls": [call]}
    choice = {"delta" if stream else "message": said, "finish_reason": "tool_calls"}
    body = json.dumps({"choices": [choice]})
    openai.server.answers(Reply(raw=f"data: {body}\n\n" if stream else body))
    message = await openai.ask(ModelRequest(ASKED, [NOOP], speaker="two"), stream=stream)
    assert message.reasoning
    assert json.loads(message.reasoning.content) == [{field: THOUGHT}]


REDACTED = base64.b64encode(b"x1y2").decode()
CONVERSE_BLOCKS = [
    {"reasoningContent": {"reasoningText": {"text": THOUGHT, "signature": SIGNATURE}}},
    {"reasoningContent": {"redactedContent": REDACTED}},
]


def converse_thinking_events() -> Reply:
    """A stream of a Claude at Bedrock with thinking before a tool call."""
    pieces = [
        (0, {"reasoningContent": {"text": THOUGHT[:5]}}),
        (0, {"reasoningContent": {"text": THOUGHT[5:]}}),
        (0, {"reasoningContent": {"signature": SIGNATURE}}),
        (1, {"reasoningContent": {"redactedContent": REDACTED}}),
    ]
    use = {"toolUse": {"toolUseId": "t", "name": "noop"}}
    events = [
        event("messageStart", role="assistant"),
        *(event("contentBlockDelta", contentBlockIndex=index, delta=delta) for index, delta in pieces),
        event("contentBlockStart", contentBlockIndex=2, start=use),
        event("messageStop", stopReason="tool_use"),
    ]
    return Reply(raw=b"".join(events).decode("latin-1"))


def converse_thinking_answer() -> Reply:
    """The same without a stream."""
    use = {"toolUse": {"toolUseId": "t", "name": "noop", "input": {}}}
    message = {"role": "assistant", "content": [*CONVERSE_BLOCKS, use]}
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    answer = {"output": {"message": message}, "stopReason": "tool_use", "usage": usage, "metrics": {"latencyMs": 1}}
    return Reply(raw=json.dumps(answer))


@pytest.mark.parametrize("stream", [True, False])
async def test_the_thinking_of_a_claude_at_bedrock_goes_back_before_its_tool_calls(stream: bool) -> None:
    with serving("bedrock", "key") as bedrock:
        bedrock.server.answers(
            converse_thinking_events() if stream else converse_thinking_answer(), Reply(text="Done.")
        )
        message = await bedrock.ask(ModelRequest(ASKED, [NOOP], speaker="two"), connection=THINKING, stream=stream)
        result = Message(role="tool", name="noop", tool_call_id=message.tool_calls[0].id, content="done")
        conversation = [*ASKED, message.named("two"), result]
        later = await bedrock.ask(ModelRequest(conversation, [NOOP], speaker="two"), connection=THINKING, stream=stream)
        assert later.content == "Done."
        body = bedrock.server.requests[1]
        assert body["messages"][1]["content"][:2] == CONVERSE_BLOCKS
        assert "thinking" in body["additionalModelRequestFields"]
        bedrock.server.answers(Reply(text="Done."))
        other = message.model_copy(update={"reasoning": None}).named("two")  # as of another model
        await bedrock.ask(ModelRequest([*ASKED, other, result], [NOOP], speaker="two"), connection=THINKING)
        assert "additionalModelRequestFields" not in bedrock.server.requests[-1]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([{"text": THOUGHT}], []),
        ([{"signature": SIGNATURE}], [{"reasoningText": {"text": "", "signature": SIGNATURE}}]),
    ],
    ids=["unsigned, as DeepSeek's", "a signature alone, as of Claudes that don't show their thoughts"],
)
async def test_only_the_reasoning_that_bedrock_has_signed_goes_back(pieces: list[Json], expected: list[Json]) -> None:
    events = [
        event("messageStart", role="assistant"),
        *(event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": piece}) for piece in pieces),
        event("contentBlockStart", contentBlockIndex=1, start={"toolUse": {"toolUseId": "t", "name": "noop"}}),
        event("messageStop", stopReason="tool_use"),
    ]
    with serving("bedrock", "key") as bedrock:
        bedrock.server.answers(Reply(raw=b"".join(events).decode("latin-1")), Reply(text="Done."))
        message = await bedrock.ask(ModelRequest(ASKED, [NOOP], speaker="two"))
        result = Message(role="tool", name="noop", tool_call_id=message.tool_calls[0].id, content="done")
        await bedrock.ask(ModelRequest([*ASKED, message.named("two"), result], [NOOP], speaker="two"))
        sent = bedrock.server.requests[1]["messages"][1]["content"]
        assert [block["reasoningContent"] for block in sent if "reasoningContent" in block] == expected


async def test_claude_that_has_thought_again_after_a_text_does_not_think_at_its_next_call(
    claude: ProviderServer,
) -> None:
    again = {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}
    use = {"type": "tool_use", "id": "t", "name": "noop", "input": {}}
    content = [*BLOCKS, {"type": "text", "text": "I look."}, again, use]
    claude.server.answers(Reply(raw=json.dumps({"model": "claude-x", "content": content, "stop_reason": "tool_use"})))
    message = await claude.ask(ModelRequest(ASKED, [NOOP], speaker="two"), connection=THINKING, stream=False)
    result = Message(role="tool", name="noop", tool_call_id=message.tool_calls[0].id, content="done")
    claude.server.answers(Reply(text="Done."))
    await claude.ask(ModelRequest([*ASKED, message.named("two"), result], [NOOP], speaker="two"), connection=THINKING)
    body = claude.server.requests[-1]
    assert "thinking" not in body
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use"]


async def sent_after_tool_call(bedrock: ProviderServer, deltas: list[tuple[int, Json]]) -> Json:
    """What Bedrock gets with the result of a tool call that its model has streamed after these pieces."""
    use = {"toolUse": {"toolUseId": "t", "name": "noop"}}
    events = [
        event("messageStart", role="assistant"),
        *(event("contentBlockDelta", contentBlockIndex=index, delta=delta) for index, delta in deltas),
        event("contentBlockStart", contentBlockIndex=len(deltas), start=use),
        event("messageStop", stopReason="tool_use"),
    ]
    bedrock.server.answers(Reply(raw=b"".join(events).decode("latin-1")), Reply(text="Done."))
    message = await bedrock.ask(ModelRequest(ASKED, [NOOP], speaker="two"), connection=THINKING)
    result = Message(role="tool", name="noop", tool_call_id=message.tool_calls[0].id, content="done")
    conversation = [*ASKED, message.named("two"), result]
    await bedrock.ask(ModelRequest(conversation, [NOOP], speaker="two"), connection=THINKING)
    return bedrock.server.requests[-1]


async def test_encrypted_thinking_that_bedrock_streams_in_pieces_goes_back_whole() -> None:
    pieces = [b"x1y2", b"abc", b"zz"]
    redacted_pieces = [{"redactedContent": base64.b64encode(piece).decode()} for piece in pieces]
    with serving("bedrock", "key") as bedrock:
        body = await sent_after_tool_call(bedrock, [(0, {"reasoningContent": piece}) for piece in redacted_pieces])
    whole = base64.b64encode(b"".join(pieces)).decode()
    assert body["messages"][1]["content"][0] == {"reasoningContent": {"redactedContent": whole}}
    assert "thinking" in body["additionalModelRequestFields"]


async def test_a_claude_at_bedrock_that_has_thought_again_after_a_text_does_not_think_at_its_next_call() -> None:
    thoughts: list[Json] = [{"reasoningContent": {"text": THOUGHT}}, {"reasoningContent": {"signature": SIGNATURE}}]
    first, again = ([(index, piece) for piece in thoughts] for index in (0, 2))
    with serving("bedrock", "key") as bedrock:
        body = await sent_after_tool_call(bedrock, [*first, (1, {"text": "I look."}), *again])
    assert "additionalModelRequestFields" not in body
    assert [[*block] for block in body["messages"][1]["content"]] == [["text"], ["toolUse"]]


async def test_claude_does_not_think_where_its_api_would_reject_that(claude: ProviderServer) -> None:
    """As after the tool call of another model, whose fallback it is, and where it must use a tool."""
    said = Message(role="assistant", name="two", tool_calls=(ToolCall(id="a", name="noop"),))
    result = Message(role="tool", name="noop", tool_call_id="a", content="done")
    await claude.ask(ModelRequest([*ASKED, said, result], [NOOP], speaker="two"), connection=THINKING)
    await claude.ask(ModelRequest(ASKED, [NOOP], must_use=True), connection=THINKING)
    await claude.ask(ModelRequest([*ASKED, said, result, *ASKED], [NOOP], speaker="two"), connection=THINKING)
    adaptive = {"properties": {"thinking": '{"type": "adaptive"}'}}
    await claude.ask(ModelRequest(ASKED, [NOOP], must_use=True), connection=adaptive)
    assert ["thinking" in body for body in claude.server.requests] == [False, False, False, False]
    await claude.ask(ModelRequest([*ASKED, said, result], [NOOP], speaker="two"), connection=adaptive)
    assert "thinking" in claude.server.requests[-1], "it may decide itself whether to think"
    await claude.ask(ModelRequest(ASKED, [NOOP], speaker="two"), connection=THINKING)
    assert "thinking" in claude.server.requests[-1]


def test_reasoning_with_a_secret_is_dropped_since_its_signature_would_not_fit() -> None:
    kept = ServerContent(model="m", content=json.dumps([{"thinking": "Hm."}]))
    lost = ServerContent(model="m", content=json.dumps([{"thinking": f"The key is {KEY}."}]))
    messages = [Message(role="assistant", reasoning=reasoning) for reasoning in (kept, lost)]
    redacted_messages = [redacted(message, lambda text: text.replace(KEY, "[secret]")) for message in messages]
    assert [message.reasoning for message in redacted_messages] == [kept, None]
