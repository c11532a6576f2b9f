"""Tests of what the OpenAI provider alone does: how messages are sent, and what answers of various servers lack."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from temporalio.common import RetryPolicy
from temporalio.testing import ActivityEnvironment

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.connection import endpoint_of
from baton.activities.model.openai import OpenAIProvider
from baton.activities.model.provider import ModelRequest
from baton.activities.runtime.http import outlasts_attempts, retry_after, retry_delay
from baton.activities.runtime.secrets import SecretStore
from baton.contracts import errors
from baton.contracts.message import Message, TokenUsage, ToolCall
from baton.contracts.requests import LiveText
from baton.resources.model import Model
from baton.resources.secret import Secrets
from baton.temporal.activity import (
    BUFFERED_CHARACTERS,
    LONG,
    SHOWN_CHARACTERS,
    Heartbeat,
    heartbeats,
    is_last_attempt,
)
from baton.testing import Reply, ScriptedModel, ScriptedToolCall
from tests.harness.environment import KEY, Environment, Json, agent, manifest
from tests.harness.manifests import own_catalog

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

ASKED = [Message(role="user", content="Why?")]
MODEL = ChainedModel(None, "gpt")


def resolver(*own: Model, **environment: str) -> ValueResolver:
    """The values of a run with manifests of the worker, and with this environment."""
    return ValueResolver(own_catalog(*own), SecretStore(Secrets(), environment))


class Server:
    """A model server that answers as it is told, and the provider that asks it."""

    def __init__(self) -> None:
        self.reply = Reply(text="Because.")
        self.model = ScriptedModel(lambda _: self.reply)
        self.url = ""

    def values(self) -> ValueResolver:
        """What a worker knows whose environment names the server."""
        return resolver(OPENAI_BASE_URL=self.url, OPENAI_API_KEY=KEY)

    async def ask(
        self, on_text: Callable[[str], None] = lambda _: None, *messages: Message, model: ChainedModel = MODEL
    ) -> Message:
        provider = OpenAIProvider()
        values = self.values() if model.manifest is None else resolver(model.manifest)
        try:
            return await provider.ask(model, values, ModelRequest([*messages] or ASKED), on_text)
        finally:
            await provider.close()

    def model_of(self, **spec: object) -> ChainedModel:
        """A Model of the server."""
        given = {"type": "openai", "model": "gpt", "config": {"openai": {"baseUrl": self.url}}, **spec}
        return ChainedModel(Model.model_validate(manifest("Model", "m", given)), "m")


@pytest.fixture
def model_server() -> Iterator[Server]:
    model_server = Server()
    with model_server.model.serve() as url:
        model_server.url = url
        yield model_server


async def test_calls_without_a_place_are_kept_apart(model_server: Server) -> None:
    """As some servers send them, several in one event."""
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("noop", "terminate")]
    event = {"choices": [{"delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    model_server.reply = Reply(raw=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")
    assert [call.name for call in (await model_server.ask()).tool_calls] == ["noop", "terminate"]


@pytest.mark.parametrize("index", [{}, {"index": 0}])
async def test_calls_that_come_one_after_the_other_at_one_place_are_told_apart_by_their_ids(
    model_server: Server, index: Json
) -> None:
    """As Gemini streams them: each call whole, in an event of its own."""
    pieces = [("a", "noop", '{"x": 1}'), ("b", "terminate", '{"response":'), (None, None, ' "Do'), ("c", None, 'ne."}')]
    calls = [
        {**index, "id": call_id, "function": {"name": name, "arguments": given}} for call_id, name, given in pieces
    ]
    events: list[Json] = [{"choices": [{"delta": {"tool_calls": [call]}}]} for call in calls]
    events.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    model_server.reply = Reply(raw="".join(f"data: {json.dumps(each)}\n\n" for each in events))
    assert (await model_server.ask()).tool_calls == (
        ToolCall(id="a", name="noop", arguments='{"x": 1}'),
        ToolCall(id="b", name="terminate", arguments='{"response": "Done."}'),
    )


COUNTS: list[tuple[Json, tuple[int, int, int]]] = [
    ({"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}, (100, 5, 105)),
    ({"prompt_tokens": 100, "total_tokens": 105}, (100, 5, 105)),
    ({"prompt_tokens": None, "completion_tokens": 5, "total_tokens": 105}, (100, 5, 105)),
    ({"prompt_tokens": 100, "completion_tokens": 5}, (100, 5, 105)),
    ({"completion_tokens": 5}, (0, 5, 5)),
    ({"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 165}, (100, 65, 165)),
    ({"total_tokens": 105}, (105, 0, 105)),
    ({}, (0, 0, 0)),
    ({"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": None}, (100, 5, 105)),
]


@pytest.mark.parametrize(("counts", "expected"), COUNTS)
async def test_an_answer_is_kept_also_if_its_server_leaves_out_counts_of_tokens(
    model_server: Server, counts: Json, expected: tuple[int, int, int]
) -> None:
    """Thoughts that only the total counts are tokens of the answer."""
    choice = {"delta": None, "message": {"content": "Because."}, "finish_reason": "stop"}
    model_server.reply = Reply(raw=json.dumps({"choices": [choice], "usage": counts}))
    message = await model_server.ask(model=model_server.model_of(stream=False))
    usage = message.usage or TokenUsage()
    assert message.content == "Because."
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == expected


async def test_a_last_event_without_a_piece_of_the_answer_ends_it(model_server: Server) -> None:
    choices = [{"delta": {"content": "Because."}}, {"delta": None, "finish_reason": "stop"}]
    events = [json.dumps({"choices": [each]}) for each in choices]
    model_server.reply = Reply(raw="".join(f"data: {each}\n\n" for each in events))
    assert (await model_server.ask()).content == "Because."


async def test_a_call_without_an_id_gets_one(model_server: Server) -> None:
    model_server.reply = Reply(calls=[ScriptedToolCall(name="noop", id=""), ScriptedToolCall(name="noop", id="")])
    message = await model_server.ask()
    assert [call.id for call in message.tool_calls] == ["call_0", "call_1"]


async def test_every_kind_of_message_is_sent_in_the_form_of_the_protocol(model_server: Server) -> None:
    call = ToolCall(id="c1", name="noop", arguments="{}")
    await model_server.ask(
        lambda _: None,
        Message(role="system", content="You are."),
        Message(role="assistant", content="", name="an.agent", tool_calls=(call,), model="m"),
        Message(role="tool", content="done", name="noop", tool_call_id="c1"),
        *ASKED,
    )
    function = {"name": "noop", "arguments": "{}"}
    assert model_server.model.requests[0].body["messages"] == [
        {"role": "system", "content": "You are."},
        {
            "role": "assistant",
            "content": "",
            "name": "an_agent",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
        {"role": "user", "content": "Why?"},
    ]


async def test_a_persons_name_is_sent_with_the_characters_that_openai_accepts(model_server: Server) -> None:
    names = ["Ann Smith", "auth0|5f7c", "ann@example.com", "Zoë", "x" * 100]
    await model_server.ask(lambda _: None, *(Message(role="user", content="Hi.", name=name) for name in names), *ASKED)
    sent = [message.get("name") for message in model_server.model.requests[0].body["messages"]]
    assert sent == ["Ann_Smith", "auth0_5f7c", "ann_example_com", "Zo_", "x" * 64, None]


def test_an_invalid_address_is_not_retried() -> None:
    with pytest.raises(errors.InvalidManifest, match="is not an address"):
        endpoint_of(MODEL, resolver(OPENAI_BASE_URL="localhost:11434/v1"))


@pytest.mark.full
async def test_a_server_that_does_not_react_is_unreachable_within_seconds(model_server: Server) -> None:
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # then its queue is full, and the kernel ignores further connections
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        model_server.url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        started = time.monotonic()
        with pytest.raises(errors.ModelUnavailable, match="can't be reached: no connection within 5 s"):
            await model_server.ask()
        assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "99999"}, 300),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_the_retry_delay_is_read_from_the_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == (None if seconds is None else timedelta(seconds=seconds))


def test_a_retry_delay_may_be_a_date() -> None:
    soon = retry_after({"retry-after": format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)})
    assert soon
    assert 25 < soon.total_seconds() <= 30
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == timedelta(0)


async def test_half_of_a_surrogate_pair_breaks_neither_an_answer_nor_its_heartbeat(env: Environment) -> None:
    env.answer = lambda _: Reply(text="\ud83d" * 60, pause=0.8)
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "?", "resources": [agent("one")]}))
    assert turn.message == "\ufffd" * 60
    assert len(env.model.requests) == 1


async def test_a_heartbeat_holds_the_last_part_of_a_long_text_and_where_it_begins() -> None:
    heartbeat = Heartbeat(str)
    for length in range(10_000, 100_000, 10_000):
        for _ in range(1_000):
            heartbeat.on_text("0123456789")
        live = await heartbeat.live_text()
        assert (live.offset, len(live.text)) == (length - SHOWN_CHARACTERS, SHOWN_CHARACTERS)
        streamed = await heartbeat.streamed()
        assert streamed.offset + len(streamed.text) == length
    assert len(streamed.text) <= 3 * BUFFERED_CHARACTERS


async def test_a_long_text_is_redacted_outside_of_the_event_loop() -> None:
    threads = set[threading.Thread]()

    def redact(text: str) -> str:
        threads.add(threading.current_thread())
        return text

    heartbeat = Heartbeat(redact)
    for _ in range(100):
        heartbeat.on_text("\\u0041" * 1_000)
    await heartbeat.live_text()
    await heartbeat.streamed()
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.slow
async def test_a_redaction_that_takes_longer_than_a_heartbeat_is_not_begun_again() -> None:
    released = threading.Event()
    begun: list[int] = []
    sent: list[LiveText] = []

    def redact(text: str) -> str:
        begun.append(len(text))
        released.wait()
        return text

    async def work() -> None:
        heartbeat = Heartbeat(redact)
        heartbeat.on_text("x" * LONG)
        try:
            async with heartbeats(heartbeat):
                while len(sent) < 3:
                    await asyncio.sleep(0.01)
                heartbeat.on_text("y" * LONG)
                released.set()
                while not sent[-1].text.endswith("y"):
                    await asyncio.sleep(0.01)
        finally:
            released.set()

    environment = ActivityEnvironment()
    environment.on_heartbeat = sent.append
    await environment.run(work)
    assert begun == [LONG, 2 * LONG]
    assert [live.text for live in sent[:3]] == ["", "", ""], "heartbeats don't wait for it"


@pytest.mark.parametrize(("attempt", "most", "last"), [(9, 30, False), (10, 30, True), (4, 4, False), (99, 0, False)])
def test_a_failure_is_final_from_the_tenth_attempt_on_although_the_policy_allows_more(
    attempt: int, most: int, last: bool
) -> None:
    assert is_last_attempt(attempt, RetryPolicy(maximum_attempts=most)) is last


@pytest.mark.parametrize(
    ("asked", "attempt", "most", "last"),
    [
        (15, 1, 25, False),
        (16, 1, 25, True),
        (60, 1, 30, False),
        (60, 9, 30, True),
        (300, 1, 30, True),
        (300, 1, 0, False),
    ],
)
def test_a_failure_is_final_if_the_server_asks_to_wait_longer_than_the_attempts_would_take(
    asked: int, attempt: int, most: int, last: bool
) -> None:
    policy = RetryPolicy(
        initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30), maximum_attempts=most
    )
    assert outlasts_attempts(timedelta(seconds=asked), attempt, policy) is last


@pytest.mark.parametrize(("asked", "attempt", "waits"), [(5, 5, 5), (5, 6, None), (60, 6, 60), (None, 9, None)])
def test_late_attempts_ignore_a_short_delay_of_the_server(asked: int | None, attempt: int, waits: int | None) -> None:
    def seconds(given: int | None) -> timedelta | None:
        return None if given is None else timedelta(seconds=given)

    assert retry_delay(seconds(asked), attempt) == seconds(waits)
