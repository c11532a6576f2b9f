"""OpenAI's protocols, with OpenAI's own client."""

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.responses import Response as OpenAiResponse
from openai.types.responses import ResponseStreamEvent

from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.gateway import GatewayServer, key_file, read_sse
from tests.harness.open_responses import OpenResponse

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " * 2
PNG = base64.b64encode(b"\x89PNG not really").decode()

MANIFESTS = [
    agent("one"),
    agent("two"),
    agent("fragile", modelRef={"name": "fragile"}),
    manifest(
        "Model",
        "fragile",
        {
            "provider": "openai",
            "model": {"value": "m"},
            "config": {"openai": {}},
            "circuitBreaker": {"failures": 1, "openFor": "1s"},
        },
    ),
    team("broken", "one", "fragile", "two", strategy="sequential"),
    agent("asking", tools=[{"name": "terminate", "approval": {"required": True}}]),
    agent("thrifty", tools=[{"name": "noop"}], budget={"modelCalls": 1, "onExceeded": "fail"}),
    team("endless", "one", maxTurns=1),
    team("duo", "one", "two", maxTurns=1, onMaxTurns="complete"),
    team("relay", "one", "two", strategy="sequential"),
    team("both", "one", "two", strategy="parallel"),
    team("nested", "both", "two", strategy="sequential"),
]


CLIENTS: list[AsyncOpenAI] = []
"""The clients of a test, which are closed after it."""


def client_of(gateway: GatewayServer, key: str = "none", max_retries: int = 0) -> AsyncOpenAI:
    """OpenAI's client of a gateway."""
    api = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=max_retries)
    CLIENTS.append(api)
    return api


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def close_clients() -> AsyncIterator[None]:
    """Closes the clients of a test."""
    yield
    while CLIENTS:
        await CLIENTS.pop().close()


@pytest_asyncio.fixture(loop_scope="session")
async def api(gateway: GatewayServer) -> AsyncOpenAI:
    """OpenAI's client of the gateway."""
    return client_of(gateway)


async def response_events(api: AsyncOpenAI, model: str, **more: Any) -> list[Json]:
    """The events of a streamed response."""
    stream = await api.responses.create(model=model, input="Why?", stream=True, **more)
    return [event.to_dict() async for event in stream]


async def events_after(gateway: GatewayServer, response: str, after: int | None = None) -> list[Json]:
    """The events of a response as the gateway sends them."""
    query = "?stream=true" if after is None else f"?stream=true&starting_after={after}"
    return [event["data"] async for event in gateway.events(f"/v1/responses/{response}{query}")]


def texts_of(events: list[Json]) -> dict[str, str]:
    """The text of each output item that was not taken back, as its pieces add up."""
    texts: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.output_text.delta":
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif event["type"] == "response.output_item.done" and event["item"]["status"] == "incomplete":
            texts.pop(event["item"]["id"], None)
    return texts


def outputs_of(response: Any) -> dict[str, str]:
    return {item["id"]: item["content"][0]["text"] for item in response["output"]}


async def test_the_served_teams_and_agents_are_models(api: AsyncOpenAI) -> None:
    listed = [model.id async for model in api.models.list()]
    agents = ["agent/asking", "agent/fragile", "agent/one", "agent/thrifty", "agent/two"]
    assert listed == [*agents, *(f"team/{name}" for name in ("both", "broken", "duo", "endless", "nested", "relay"))]
    assert (await api.models.retrieve("team/duo")).id == "team/duo"
    assert (await api.models.retrieve("duo")).id == "team/duo"


async def test_a_model_that_does_not_exist_is_not_found(api: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await api.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "Why?"}])
    assert (raised.value.code, raised.value.param, raised.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )


async def test_a_wrong_key_is_refused_in_the_form_of_openai(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"ann": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        with pytest.raises(openai.AuthenticationError) as raised:
            await client_of(gateway, "wrong").models.list()
        assert raised.value.code == "invalid_api_key"
        assert (await client_of(gateway, keys["ann"]).models.list()).data


async def test_a_request_above_the_limit_is_told_when_to_come_again(served_env: Environment) -> None:
    async with GatewayServer.running(served_env, BATON_GATEWAY_RATE="1") as gateway:
        await client_of(gateway).models.list()
        with pytest.raises(openai.RateLimitError) as raised:
            await client_of(gateway).models.list()
        assert raised.value.code == "rate_limit_exceeded"
        assert int(raised.value.response.headers["retry-after"]) >= 1


async def test_an_agent_answers_a_chat(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", "Because."))
    answer = await api.chat.completions.create(
        model="agent/one",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
        ],
    )
    assert answer.choices[0].message.content == "Because."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage and answer.usage.total_tokens > 0
    sent = served_env.model.requests[0].body["messages"]
    assert [message["role"] for message in sent if message["role"] != "system"] == ["user", "assistant", "user"]
    assert "Be brief." in str(sent)


async def test_the_text_of_a_chat_is_streamed_as_it_arrives(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", {"text": WORDS, "held": True}))
    stream = await api.chat.completions.create(
        model="agent/one",
        messages=[{"role": "user", "content": "Why?"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = []
    async for chunk in stream:
        chunks.append(chunk)
        if chunk.choices and chunk.choices[0].delta.content:
            served_env.model.release()
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == WORDS
    assert sum(map(bool, deltas)) > 1
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage and chunks[-1].usage.total_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


async def steer_the_last_call(gateway: GatewayServer, calls: int) -> None:
    """A person sends a message into the open run while the model writes the last answer."""
    await gateway.env.wait_for_calls(calls)
    while not (runs := [run for run in (await gateway.get("/runs"))["runs"] if run["state"] == "Running"]):
        await asyncio.sleep(0.02)
    await gateway.post(f"/runs/{runs[0]['id']}/steer", {"text": "Be brief."})
    gateway.env.model.release()


STEERED = [("one", ["a"]), ("relay", ["a", "b"]), ("duo", ["a", "b"])]
"""Models, and what their agents say."""


@pytest.mark.parametrize(("model", "said"), STEERED)
async def test_what_a_person_sends_into_a_chat_is_no_part_of_its_answer(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI, model: str, said: list[str]
) -> None:
    served_env.script(line("one", {"text": "a", "held": len(said) == 1}), line("two", {"text": "b", "held": True}))
    asked: Any = {
        "model": model,
        "messages": [{"role": "user", "content": "Why?"}],
        "extra_headers": {"Idempotency-Key": uuid.uuid4().hex},
    }
    async with asyncio.TaskGroup() as group:
        group.create_task(steer_the_last_call(gateway, len(said)))
        chunks = [chunk async for chunk in await api.chat.completions.create(stream=True, **asked)]
    plain = await api.chat.completions.create(**asked)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said[-1]
    assert plain.choices[0].message.content == said[-1]
    assert str(plain.choices[0].message.to_dict()["reasoning_content"]).count("local: Be brief.") == 1


@pytest.mark.parametrize(("model", "said"), STEERED)
async def test_what_a_person_sends_into_a_response_is_no_item_of_its_output(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI, model: str, said: list[str]
) -> None:
    served_env.script(line("one", {"text": "a", "held": len(said) == 1}), line("two", {"text": "b", "held": True}))
    async with asyncio.TaskGroup() as group:
        group.create_task(steer_the_last_call(gateway, len(said)))
        events = await response_events(api, model)
    streamed = events[-1]["response"]
    assert [item["content"][0]["text"] for item in streamed["output"]] == said
    assert [item["phase"] for item in streamed["output"]] == ["commentary"] * (len(said) - 1) + ["final_answer"]
    assert [*texts_of(events).values()] == said
    assert (await api.responses.retrieve(streamed["id"])).to_dict()["output"] == streamed["output"]


@pytest.mark.parametrize(("model", "answer"), [("duo", "b"), ("relay", "b"), ("both", "one:\na\n\ntwo:\nb")])
@pytest.mark.parametrize("turns", ["reasoning", "none"])
async def test_a_chat_shows_what_members_say_before_the_answer_as_reasoning(
    served_env: Environment, api: AsyncOpenAI, model: str, answer: str, turns: str
) -> None:
    served_env.script(line("one", "a", "a"), line("two", "b", "b"))
    asked: Any = {
        "model": model,
        "messages": [{"role": "user", "content": "Why?"}],
        "extra_query": {"turns": turns},
    }
    plain = await api.chat.completions.create(**asked)
    chunks = [chunk async for chunk in await api.chat.completions.create(stream=True, **asked)]
    deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks]
    assert plain.choices[0].message.content == answer
    assert "".join(str(delta.get("content", "")) for delta in deltas) == answer
    reasoning = "".join(str(delta.get("reasoning_content", "")) for delta in deltas)
    whole = str(plain.choices[0].message.to_dict().get("reasoning_content", ""))
    assert sorted(reasoning.split("\n\n")) == sorted(whole.split("\n\n")), "parallel members speak in any order"
    assert ("one: a" in reasoning) == (turns == "reasoning")


async def test_a_chat_says_that_its_run_waits_for_approval_and_goes_on_after_it(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    served_env.script(line("asking", call("terminate", response="Approved.")))
    made = api.chat.completions.with_raw_response.create(
        model="asking", messages=[{"role": "user", "content": "Why?"}], stream=True
    )
    raw = await made
    run = raw.headers["x-baton-run"]
    reasoning = content = ""
    waiting: Json = {}
    async for chunk in raw.parse():
        delta = chunk.choices[0].delta.to_dict()
        reasoning += str(delta.get("reasoning_content", ""))
        content += str(delta.get("content", ""))
        if "waiting for approval" in reasoning and not waiting:
            while not (listed := (await gateway.get("/inbox"))["waiting"]):
                await asyncio.sleep(0.05)
            (waiting,) = listed
            assert waiting["decision"]["id"] in reasoning
            await gateway.post(f"/runs/{run}/approve", {"call": waiting["decision"]["id"]})
    assert content == "Approved."
    assert "has ended: approved" in reasoning


async def test_a_failed_run_is_an_error_that_clients_do_not_repeat(
    served_env: Environment, gateway: GatewayServer
) -> None:
    served_env.script(line("one", {"status": 400, "text": "no"}))
    patient = client_of(gateway, max_retries=2)
    with pytest.raises(openai.InternalServerError) as raised:
        await patient.chat.completions.create(model="one", messages=[{"role": "user", "content": "Why?"}])
    assert raised.value.code == "run_failed"
    assert len(served_env.model.requests) == 1
    with pytest.raises(openai.InternalServerError):
        await patient.responses.create(model="one", input="Why?")
    events = await response_events(patient, "one")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    with pytest.raises(openai.APIError):
        stream = await patient.chat.completions.create(
            model="one", messages=[{"role": "user", "content": "Why?"}], stream=True
        )
        [_ async for _ in stream]


async def test_an_agent_answers_a_response(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", "Because."))
    response = await api.responses.create(
        model="agent/one", input="Why?", instructions="Be brief.", metadata={"case": "7"}
    )
    assert (response.status, response.output_text) == ("completed", "Because.")
    assert response.usage and response.usage.total_tokens > 0
    assert response.metadata == {"case": "7"}
    assert "Be brief." in str(served_env.model.requests[0].body["messages"])
    again = await api.responses.retrieve(response.id)
    assert again == response


@pytest.mark.parametrize("model", ["one", "duo", "relay", "both", "nested"])
async def test_the_pieces_of_a_streamed_response_add_up_to_its_output(
    served_env: Environment, api: AsyncOpenAI, model: str
) -> None:
    served_env.script(line("one", {"text": WORDS, "pause": 0.05}), line("two", "b", "bb"))
    events = await response_events(api, model)
    final = events[-1]["response"]
    assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.completed"]
    assert texts_of(events) == outputs_of(final)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    phases = [item["phase"] for item in final["output"]]
    assert phases == ["commentary"] * (len(phases) - 1) + ["final_answer"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    retrieved = await api.responses.retrieve(final["id"])
    assert retrieved.to_dict() == final


async def test_openais_own_helper_accumulates_a_streamed_response(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", {"text": WORDS, "pause": 0.05}), line("two", "b"))
    async with api.responses.stream(model="duo", input="Why?") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [item.content[0].text for item in final.output if item.type == "message"] == [WORDS, "b"]  # type: ignore[union-attr]
    assert events


@pytest.mark.slow
@pytest.mark.parametrize("model", ["one", "duo", "both", "nested"])
async def test_a_stream_goes_on_after_each_number_on_another_gateway(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI, model: str
) -> None:
    served_env.script(line("one", {"text": "one two three four five six", "pause": 0.1}), line("two", "b", "bb"))
    seen = await response_events(api, model)
    response = seen[-1]["response"]["id"]
    async with GatewayServer.running(served_env) as other:
        whole = await events_after(other, response)
        assert texts_of(whole) == texts_of(seen)
        for number in range(-1, seen[-1]["sequence_number"] + 1):
            rest = await events_after(other, response, number)
            check_rest(seen, rest, number)
            check_rest(whole, rest, number)


def check_rest(seen: list[Json], rest: list[Json], number: int) -> None:
    """What was seen up to a number, and the rest after it, are the whole: each event and each character once."""
    before = [event for event in seen if event["sequence_number"] <= number]
    assert all(event["sequence_number"] > number for event in rest)
    others = [event for event in before + rest if event["type"] != "response.output_text.delta"]
    assert others == [event for event in seen if event["type"] != "response.output_text.delta"]
    expected = {}
    for event in seen:
        if event["type"] == "response.content_part.added":  # the number of a character is its place after this event
            text = texts_of(seen)[event["item_id"]]
            if remaining := text[max(0, number - event["sequence_number"]) :]:
                expected[event["item_id"]] = remaining
    assert texts_of(rest) == expected


async def test_a_response_in_the_background_is_followed_from_where_its_stream_broke_off(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    served_env.script(line("one", {"text": WORDS * 2, "held": True}), line("two", "b"))
    stream = await api.responses.create(model="duo", input="Why?", background=True, stream=True)
    before: list[Json] = []
    async for event in stream:
        before.append(event.to_dict())
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    response = before[0]["response"]["id"]
    assert (await api.responses.retrieve(response)).status == "in_progress"
    async with GatewayServer.running(served_env) as other:
        last = before[-1]["sequence_number"]
        following = await client_of(other).responses.retrieve(response, stream=True, starting_after=last)
        served_env.model.release()
        rest = [event.to_dict() async for event in following]
    assert sum(event["type"] == "response.output_text.delta" for event in rest) >= 2
    assert texts_of(before + rest) == outputs_of(rest[-1]["response"])
    assert len(served_env.model.requests) == 2


async def test_what_a_failed_attempt_has_said_is_taken_back_for_those_who_have_seen_it(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    wrong = {"text": "Nothing of this remains. " * 8, "pause": 0.15, "cut": 150}
    served_env.script(line("one", {"text": WORDS, "pause": 0.05, "before": [wrong]}))
    seen = await response_events(api, "one")
    final = seen[-1]["response"]
    incomplete = next(event for event in seen if event["type"] == "response.output_item.done")
    assert (incomplete["item"]["status"], incomplete["item"]["retracted"]) == ("incomplete", True)
    assert texts_of(seen) == outputs_of(final)
    numbers = [event["sequence_number"] for event in seen]
    assert numbers == sorted(set(numbers))
    later = await events_after(gateway, final["id"])
    assert texts_of(later) == outputs_of(final)
    for number in numbers:
        rest = await events_after(gateway, final["id"], number)
        before = [event for event in seen if event["sequence_number"] <= number]
        assert texts_of(before + rest) == outputs_of(final)
        assert marks_of(before + rest) == marks_of(seen)


def marks_of(events: list[Json]) -> list[tuple[int, str, int | None]]:
    """The number, the type and the output index of each event but the pieces of texts."""
    return [
        (event["sequence_number"], event["type"], event.get("output_index"))
        for event in events
        if not event["type"].endswith(".delta")
    ]


@pytest.mark.parametrize("model", ["one", "relay"])
async def test_each_output_index_is_the_place_of_its_item_among_those_that_were_added(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI, model: str
) -> None:
    """OpenAI's client for JavaScript appends each added item to a list, in which it looks for the index."""
    wrong = {"text": "Nothing of this remains. " * 8, "cut": 150}
    failures = [{"status": 503}, wrong]
    served_env.script(line("one", {"text": WORDS, "before": failures}), line("two", {"text": "b", "before": failures}))
    seen = await response_events(api, model)
    final = seen[-1]["response"]
    later = await events_after(gateway, final["id"])
    assert marks_of(later) == marks_of(seen)
    for events in (seen, later):
        added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
        done = [event for event in events if event["type"] == "response.output_item.done"]
        assert added == [event["output_index"] for event in done] == [*range(len(added))]
        assert [event["item"] for event in done if not event["item"].get("retracted")] == final["output"]
        assert texts_of(events) == outputs_of(final)
    assert [item["phase"] for item in final["output"]][-1] == "final_answer"


async def test_a_client_that_asks_again_joins_its_run_while_it_goes_on(
    served_env: Environment, api: AsyncOpenAI
) -> None:
    served_env.script(line("one", {"text": WORDS, "pause": 0.1}))
    key = {"Idempotency-Key": uuid.uuid4().hex}
    answers = await asyncio.gather(
        *(api.responses.create(model="one", input="Why?", extra_headers=key) for _ in range(3))
    )
    streamed = await response_events(api, "one", extra_headers=key)
    assert {answer.id for answer in answers} == {streamed[-1]["response"]["id"]}
    assert len(served_env.model.requests) == 1
    with pytest.raises(openai.ConflictError):
        await api.responses.create(model="one", input="Something else?", extra_headers=key)
    message: Any = [{"role": "user", "content": "Why?"}]
    key = {"Idempotency-Key": uuid.uuid4().hex}
    chats = [await api.chat.completions.create(model="one", messages=message, extra_headers=key) for _ in range(2)]
    assert chats[0] == chats[1]
    assert len(served_env.model.requests) == 2


async def test_a_previous_response_is_continued_twice(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", "Red.", "Because."))
    first = await api.responses.create(model="one", input="Which color?")
    second = await api.responses.create(model="one", input="Why?", previous_response_id=first.id)
    other = await api.responses.create(model="one", input="Another?", previous_response_id=first.id)
    assert (second.output_text, other.output_text) == ("Because.", "Because.")
    for request, question in zip(served_env.model.requests[1:], ["Why?", "Another?"], strict=True):
        said = [message["content"] for message in request.body["messages"] if message["role"] != "system"]
        assert said == ["Which color?", "Red.", question]
    assert second.previous_response_id == first.id


async def test_a_conversation_is_continued(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", "Red.", "Because."))
    for question in ("Which color?", "Why?"):
        answer = await api.responses.create(model="one", input=question, conversation="conv_7")
        assert answer.conversation and answer.conversation.id == "conv_7"
    said = [
        message["content"] for message in served_env.model.requests[1].body["messages"] if message["role"] != "system"
    ]
    assert said == ["Which color?", "Red.", "Why?"]


@pytest.mark.slow
async def test_a_response_is_canceled_and_deleted(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    served_env.script(line("one", {"hang": True}))
    response = await api.responses.create(model="one", input="Why?", background=True)
    assert response.status == "in_progress"
    canceled = await api.responses.cancel(response.id)
    assert canceled.status == "cancelled"
    await api.responses.delete(response.id)
    await gone(api, response.id)


async def test_deleting_a_response_ends_it(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", {"hang": True}))
    response = await api.responses.create(model="one", input="Why?", background=True)
    await api.responses.delete(response.id)
    await gone(api, response.id)


async def gone(api: AsyncOpenAI, response: str) -> None:
    """Temporal deletes an execution a moment after it was told to."""
    while True:
        try:
            await api.responses.retrieve(response)
        except openai.NotFoundError:
            return
        await asyncio.sleep(0.05)


async def test_a_response_that_is_not_stored_is_not_found_again(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", "Because."))
    response = await api.responses.create(model="one", input="Why?", store=False)
    with pytest.raises(openai.NotFoundError):
        await api.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        await api.responses.create(model="one", input="And?", previous_response_id=response.id)
    with pytest.raises(openai.BadRequestError):
        await api.responses.create(model="one", input="Why?", store=False, background=True)


async def test_images_and_files_reach_the_model(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("one", "A cat.", "A cat."))
    image = f"data:image/png;base64,{PNG}"
    response = await api.responses.create(
        model="one",
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": image, "detail": "low"},
                    {"type": "input_image", "image_url": "https://example.com/cat.png", "detail": "auto"},
                    {"type": "input_file", "file_data": f"data:application/pdf;base64,{PNG}", "filename": "a.pdf"},
                ],
            }
        ],
    )
    assert response.output_text == "A cat."
    await api.chat.completions.create(
        model="one",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": image, "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
                    {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}", "filename": "a.pdf"}},
                ],
            }
        ],
    )
    for request in served_env.model.requests:
        parts = [part for message in request.body["messages"] for part in message["content"] if isinstance(part, dict)]
        kinds = [part["type"] for part in parts if part["type"] != "text"]
        assert kinds == ["image_url", "image_url", "file"]
    listed = [item async for item in api.responses.input_items.list(response.id)]
    assert [part.type for part in listed[0].content] == ["input_text", "input_image", "input_image", "input_file"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "one", "input": [{"type": "computer_call"}]}, "input.0.type"),
        ({"model": "one", "input": [{"role": "poet", "content": "x"}]}, "input.0.role"),
        ({"model": "one", "input": [{"role": "assistant", "content": "x"}]}, "input.0.role"),
        ({"model": "one", "input": "x", "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"model": "one", "input": "x", "tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"model": "one"}, "input"),
        ({"model": "one", "input": "x", "previous_response_id": "resp_none"}, None),
    ],
)
async def test_an_invalid_request_is_refused_and_named(gateway: GatewayServer, body: Json, param: str | None) -> None:
    response = await gateway.http.post("/v1/responses", json=body)
    assert response.status_code in (400, 404)
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_a_caller_does_not_see_the_responses_of_another(served_env: Environment, tmp_path: Path) -> None:
    served_env.script(line("one", "Because."))
    path, keys = key_file(tmp_path, {"ann": {}, "ben": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        response = await client_of(gateway, keys["ann"]).responses.create(model="one", input="Why?")
        stranger = client_of(gateway, keys["ben"])
        for attempt in (stranger.responses.retrieve, stranger.responses.delete, stranger.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await attempt(response.id)
        with pytest.raises(openai.NotFoundError):
            await stranger.responses.create(model="one", input="And?", previous_response_id=response.id)


async def said_in_chat(gateway: GatewayServer, api: AsyncOpenAI, first: str, then: str) -> AsyncIterator[str]:
    """The pieces of an answer whose first attempt breaks off, and whose next one says ``then``."""
    broken = {"text": first, "cut": 150, "held": True}
    gateway.env.script(line("one", {"text": then, "before": [broken]}))
    chunks = await api.chat.completions.create(
        model="agent/one", messages=[{"role": "user", "content": "Why?"}], stream=True
    )
    async for chunk in chunks:
        if chunk.choices:
            piece = chunk.choices[0].delta.content or ""
            if piece:
                gateway.env.model.release()
            yield piece


async def test_a_chat_goes_on_if_the_next_attempt_says_what_was_streamed_already(
    gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    pieces = [piece async for piece in said_in_chat(gateway, api, WORDS, WORDS)]
    assert "".join(pieces) == WORDS
    assert len(gateway.env.model.requests) == 2


async def test_a_chat_ends_with_an_error_if_the_next_attempt_says_something_else(
    gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    pieces: list[str] = []
    with pytest.raises(openai.APIError) as raised:
        async for piece in said_in_chat(gateway, api, WORDS, f"No: {WORDS}"):
            pieces.append(piece)
    assert raised.value.code == "answer_restarted"
    assert WORDS.startswith("".join(pieces))


@pytest.mark.slow
async def test_a_response_goes_on_after_a_circuit_breaker_was_open(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    failing = {"status": 503, "headers": {"retry-after-ms": "1"}}
    served_env.script(
        line("one", "a"),
        line("fragile", {"text": "b", "before": [failing] * 2}),
        line("two", {"text": WORDS, "pause": 0.2}),
    )
    seen = await response_events(api, "broken")
    final = seen[-1]["response"]
    assert [*outputs_of(final).values()] == ["a", "b", WORDS]
    later = await events_after(gateway, final["id"])
    assert marks_of(later) == marks_of(seen)
    assert texts_of(seen) == texts_of(later) == outputs_of(final)


EVENT_TYPES: Json = {
    get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(get_args(ResponseStreamEvent)[0])
}
"""The types of OpenAI's package for the events of a stream, by their names."""


def check_response(response: Json) -> str:
    """The status of a response, once it was compared with OpenAI's package and with Open Responses."""
    OpenAiResponse.model_validate(response, strict=True)
    OpenResponse.model_validate(response)
    return str(response["status"])


def check_event(event: Json) -> None:
    """Compares an event, and the response that it may have, with OpenAI's package and with Open Responses."""
    EVENT_TYPES[event["type"]].model_validate(event, strict=True)
    if "response" in event:
        check_response(event["response"])


async def unread_events(gateway: GatewayServer, model: str, query: str = "") -> list[Json]:
    """The events of a streamed response as the gateway sends them: OpenAI's client converts numbers."""
    body = {"model": model, "input": "Why?", "stream": True, "metadata": {"a": "b"}}
    async with gateway.http.stream("POST", f"/v1/responses{query}", json=body) as response:
        return [event["data"] async for event in read_sse(response)]


@pytest.mark.slow
async def test_responses_and_their_events_have_the_types_of_openais_package_and_of_open_responses(
    served_env: Environment, gateway: GatewayServer
) -> None:
    served_env.script(
        line("one", {"text": WORDS, "before": [{"text": WORDS, "cut": 50}]}),
        line("two", {"text": "b", "stop": "content_filter"}),
        line("fragile", {"status": 400}),
        line("asking", call("terminate", response="Approved.")),
    )
    statuses = set()
    for model in ("one", "relay", "fragile"):
        for turns in ("items", "none"):
            events = await unread_events(gateway, model, f"?turns={turns}")
            for event in events:
                check_event(event)
            statuses.add(check_response(await gateway.get(f"/v1/responses/{events[-1]['response']['id']}")))
    begun = await gateway.post("/v1/responses", {"model": "asking", "input": "Why?", "background": True})
    statuses.add(check_response(begun))
    statuses.add(check_response(await gateway.post(f"/v1/responses/{begun['id']}/cancel")))
    assert statuses == {"completed", "incomplete", "failed", "in_progress", "cancelled"}


async def ended(gateway: GatewayServer, api: AsyncOpenAI, model: str) -> tuple[Json, Any]:
    """How a run ends that a model's answer does not end: the response, and the finish reason or the error of a chat."""
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "Why?"}]}
    response = (await unread_events(gateway, model))[-1]["response"]
    check_response(response)
    assert await gateway.get(f"/v1/responses/{response['id']}") == response
    streamed: Any = None
    try:
        chunks = [chunk async for chunk in await api.chat.completions.create(stream=True, **asked)]
        streamed = chunks[-1].choices[0].finish_reason
    except openai.APIError as error:
        streamed = error.message
    try:
        answer = await api.chat.completions.create(**asked)
    except openai.InternalServerError as error:
        assert error.code == "run_failed"
        assert streamed == error.body["message"]  # type: ignore[index]  # a mapping, as the form has it
    else:
        assert streamed == answer.choices[0].finish_reason
    return response, streamed


async def test_a_run_that_reaches_a_limit_has_failed_and_says_which(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    served_env.script(
        line("one", "Because."),
        line("thrifty", *[call("noop")] * 4),
        line("asking", call("terminate", response="Approved.")),
    )
    limits = {"endless": "MaxTurns", "thrifty": "budget"}
    for model, limit in limits.items():
        response, chat = await ended(gateway, api, model)
        assert (response["status"], response["incomplete_details"]) == ("failed", None)
        assert limit in response["error"]["message"]
        assert chat == response["error"]["message"]
    run = (await gateway.post("/runs", {"target": "asking", "input": "Why?", "timeout": "1s"}, 201))["id"]
    await gateway.finished(run)
    timed_out = await gateway.get(f"/v1/responses/resp_{run}")
    assert check_response(timed_out) == "failed"
    assert "timeout" in timed_out["error"]["message"]


@pytest.mark.parametrize(
    ("reply", "reason", "finish"),
    [
        ({"text": "", "stop": "length"}, "max_output_tokens", "length"),
        ({"text": "Beca", "stop": "length"}, "max_output_tokens", "length"),
        ({"text": "Beca", "stop": "content_filter"}, "content_filter", "content_filter"),
    ],
)
async def test_an_answer_that_the_model_cuts_off_is_incomplete(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI, reply: Json, reason: str, finish: str
) -> None:
    served_env.script(line("one", reply))
    response, chat = await ended(gateway, api, "one")
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert {item["status"] for item in response["output"]} <= {"incomplete"}
    assert chat == finish


@pytest.mark.slow
async def test_a_streamed_answer_is_whole_however_long_it_is(gateway: GatewayServer, api: AsyncOpenAI) -> None:
    """A history has only the beginning of one of more than 64,000 bytes."""
    text = "".join(f"word{number} " for number in range(9_000))
    gateway.env.script(line("one", *[{"text": text, "pause": 0.001}] * 2))
    asked: Any = {"model": "one", "messages": [{"role": "user", "content": "Why?"}]}
    chunks = [chunk async for chunk in await api.chat.completions.create(stream=True, **asked)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    events = await response_events(api, "one")
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == text
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted({*numbers})


@pytest.mark.parametrize("number", ["2", "40", "148,890"])
async def test_an_answer_may_end_with_the_mark_of_a_truncated_text(
    gateway: GatewayServer, api: AsyncOpenAI, number: str
) -> None:
    text = f"abc… [truncated: {number} characters in total]"
    gateway.env.script(line("one", {"text": text, "pause": 0.3}))
    events = await response_events(api, "one")
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == text
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted({*numbers})
    got = await api.responses.retrieve(events[-1]["response"]["id"])
    assert got.output_text == text
