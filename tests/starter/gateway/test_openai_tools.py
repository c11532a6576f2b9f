"""Tools and settings that OpenAI's own client brings, in chats and responses."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from pydantic import BaseModel

from baton.starter.gateway import openai_calls
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.gateway import GatewayServer, key_file
from tests.starter.gateway.test_openai import check_event, check_response

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Json = {"name": "weather", "description": "The weather in a city.", "parameters": CITY}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
TOOLS: Any = [{"type": "function", **FUNCTION}]
ASKED: Any = {"role": "user", "content": "Weather?"}
BOTH: Json = {"calls": [*call("weather", city="Bern")["calls"], *call("weather", city="Rome")["calls"]]}
CLAUDE: Json = {"anthropic": {"apiKey": {"value": "k"}, "baseUrl": "http://127.0.0.1:9"}}
MANIFESTS = [
    agent("open", clients={"tools": True, "settings": ["instructions", "temperature", "maxTokens", "presencePenalty"]}),
    agent("closed"),
    agent("strict", clients={"onOtherSettings": "refuse"}),
    agent("shaped", clients={"settings": ["outputSchema"]}),
    agent("fixed", outputSchema=CITY),
    agent("claude", clients={"settings": ["*"]}, modelRef={"name": "claude"}),
    manifest("Model", "claude", {"provider": "anthropic", "model": {"value": "claude"}, "config": CLAUDE}),
    team("duo", "open", "closed", maxTurns=2, onMaxTurns="complete"),
]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of one message are shown together, however busy the machine is."""
    monkeypatch.setattr(openai_calls, "QUIET_SECONDS", 60)


@pytest_asyncio.fixture(loop_scope="session")
async def api(gateway: GatewayServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as api:
        yield api


async def chat(api: AsyncOpenAI, messages: Any, model: str = "open", **more: Any) -> Any:
    """The only choice of a completion with the tool, and its id."""
    answer = await api.chat.completions.create(model=model, messages=messages, tools=CHAT_TOOLS, **more)
    return answer.choices[0], answer.id


def results(choice: Any, texts: Json) -> list[Any]:
    """The message of a choice, and the results of its calls by city."""
    calls = [(each.id, json.loads(each.function.arguments)["city"]) for each in choice.message.tool_calls]
    given = [
        {"role": "tool", "tool_call_id": call_id, "content": texts[city]} for call_id, city in calls if city in texts
    ]
    return [choice.message.model_dump(exclude_none=True), *given]


def outputs(response: Any, texts: Json) -> Any:
    """The results of the calls of a response by city."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {
            "type": "function_call_output",
            "call_id": each.call_id,
            "output": texts[json.loads(each.arguments)["city"]],
        }
        for each in calls
    ]


async def test_a_chat_ends_with_calls_and_the_next_one_goes_on_in_the_same_run(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    served_env.script(line("open", call("weather", city="Bern"), call("weather", city="Rome"), "Rain and sun."))
    first, first_id = await chat(api, [ASKED])
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    [made] = first.message.tool_calls
    assert (made.function.name, json.loads(made.function.arguments)) == ("weather", {"city": "Bern"})
    messages = [ASKED, *results(first, {"Bern": "rain"})]
    second, second_id = await chat(api, messages)
    assert second.finish_reason == "tool_calls"
    assert second_id != first_id
    third, _ = await chat(api, [*messages, *results(second, {"Rome": "sun"})])
    assert (third.finish_reason, third.message.content, third.message.tool_calls) == ("stop", "Rain and sun.", None)
    assert len(served_env.model.requests) == 3
    assert len((await gateway.get("/runs"))["runs"]) == 1


async def test_calls_of_one_message_come_together_and_may_be_answered_one_by_one(
    served_env: Environment, api: AsyncOpenAI
) -> None:
    served_env.script(line("open", BOTH, "Done."))
    first, _ = await chat(api, [ASKED])
    ids = {json.loads(each.function.arguments)["city"]: each.id for each in first.message.tool_calls}
    assert {*ids} == {"Bern", "Rome"}
    rest, _ = await chat(api, [ASKED, *results(first, {"Rome": "sun"})])
    assert rest.finish_reason == "tool_calls"
    assert [each.id for each in rest.message.tool_calls] == [ids["Bern"]]
    end, _ = await chat(api, [ASKED, *results(first, {"Bern": "rain", "Rome": "sun"})])
    assert end.message.content == "Done."
    assert len(served_env.model.requests) == 2


async def test_a_repeated_result_gets_the_same_answer_and_another_one_is_refused(
    served_env: Environment, api: AsyncOpenAI
) -> None:
    served_env.script(line("open", call("weather", city="Bern"), call("weather", city="Rome"), "Done."))
    first, _ = await chat(api, [ASKED])
    messages = [ASKED, *results(first, {"Bern": "rain"})]
    second = await chat(api, messages)
    assert await chat(api, messages) == second
    end = await chat(api, [*messages, *results(second[0], {"Rome": "sun"})])
    assert await chat(api, messages) == second
    assert await chat(api, [*messages, *results(second[0], {"Rome": "sun"})]) == end
    with pytest.raises(openai.ConflictError):
        await chat(api, [ASKED, *results(first, {"Bern": "snow"})])
    assert len(served_env.model.requests) == 3


async def test_calls_are_streamed_and_so_is_what_follows(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("open", {**BOTH, "text": "I look."}, "Done."))
    async with api.chat.completions.stream(model="open", messages=[ASKED], tools=CHAT_TOOLS) as stream:
        first: Any = (await stream.get_final_completion()).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", "I look.")
    assert len(first.message.tool_calls) == 2
    given: Any = [{"role": "tool", "tool_call_id": each.id, "content": "rain"} for each in first.message.tool_calls]
    called: Any = {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": each.id, "type": "function", "function": {"name": "weather", "arguments": each.function.arguments}}
            for each in first.message.tool_calls
        ],
    }
    following: Any = await api.chat.completions.create(
        model="open",
        messages=[ASKED, called, *given],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in following]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert (text, chunks[-2].choices[0].finish_reason) == ("Done.", "stop")
    assert chunks[-1].usage.total_tokens > 0


@pytest.mark.parametrize("linked", [True, False])
async def test_a_response_ends_with_calls_and_the_next_one_goes_on(
    served_env: Environment, api: AsyncOpenAI, *, linked: bool
) -> None:
    served_env.script(line("open", BOTH, "Done."))
    first = await api.responses.create(model="open", input="Weather?", tools=TOOLS)
    assert [(item.type, first.status) for item in first.output] == [("function_call", "completed")] * 2
    given = outputs(first, {"Bern": "rain", "Rome": "sun"})
    more: Any = {"input": given, "previous_response_id": first.id}
    if not linked:
        more = {"input": [ASKED, *[item.to_dict() for item in first.output], *given]}
    second = await api.responses.create(model="open", tools=TOOLS, **more)
    assert (second.output_text, second.status) == ("Done.", "completed")
    assert second.id != first.id
    assert (await api.responses.create(model="open", tools=TOOLS, **more)).to_dict() == second.to_dict()
    for response in (first, second):
        assert (await api.responses.retrieve(response.id)).output == response.output
    assert first.usage and second.usage
    asked: Any = [item.to_dict() async for item in api.responses.input_items.list(first.id, order="asc")]
    assert [item["content"][0]["text"] for item in asked] == ["Weather?"]
    listed: Any = [item.to_dict() async for item in api.responses.input_items.list(second.id, order="asc")]
    assert sorted((item["type"], item["call_id"], item["output"]) for item in listed) == sorted(
        (item["type"], item["call_id"], item["output"]) for item in given
    ), "those of the second request"
    newest = [item async for item in api.responses.input_items.list(second.id, limit=1)]
    assert [item.id for item in newest] == [item["id"] for item in reversed(listed)], "in pages"
    served_env.script(line("open", "Bye."))
    third = await api.responses.create(model="open", input="Thanks.", previous_response_id=second.id)
    assert third.output_text == "Bye."


async def test_a_response_that_ended_with_calls_is_followed_by_their_results_only(
    served_env: Environment, api: AsyncOpenAI
) -> None:
    served_env.script(line("open", BOTH, "Done."), line("closed", "No."))
    other = await api.responses.create(model="closed", input="Why?")
    first = await api.responses.create(model="open", input="Weather?", tools=TOOLS)
    given = outputs(first, {"Bern": "rain", "Rome": "sun"})
    calls = [each["call_id"] for each in given]

    async def refusal(previous: Any, items: Any) -> str:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.responses.create(model="open", input=items, tools=TOOLS, previous_response_id=previous.id)
        assert (refused.value.type, refused.value.param) == ("invalid_request_error", "input")
        return refused.value.message

    for _ in range(2):  # while its run waits, and once it has ended
        missing = await refusal(first, "Thanks.")
        assert "No tool output found" in missing
        assert all(each in missing for each in calls)
        missing = await refusal(first, [given[0], {"role": "user", "content": "Well?"}])
        assert calls[0] not in missing
        assert calls[1] in missing
        assert "last items" in await refusal(first, [*given, {"role": "user", "content": "Well?"}])
        assert calls[0] in await refusal(other, given)
        second = await api.responses.create(model="open", input=given, tools=TOOLS, previous_response_id=first.id)
        assert second.output_text == "Done."
    assert len(served_env.model.requests) == 3


async def test_calls_of_a_response_are_streamed_with_the_same_numbers_for_all_readers(
    served_env: Environment, gateway: GatewayServer, api: AsyncOpenAI
) -> None:
    served_env.script(line("open", {**BOTH, "text": "I look."}, "Done."))
    async with api.responses.stream(model="open", input="Weather?", tools=TOOLS) as stream:
        events: list[Any] = [event.to_dict(warnings=False) async for event in stream]
        first: Any = await stream.get_final_response()
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    more = await api.responses.create(
        model="open", input=outputs(first, {"Bern": "rain", "Rome": "sun"}), previous_response_id=first.id, stream=True
    )
    following: list[Any] = [event.to_dict() async for event in more]
    assert [event["sequence_number"] for event in following[:2]] == [0, 1]
    assert following[-1]["response"]["output"][-1]["content"][0]["text"] == "Done."
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    path = f"/v1/responses/{first.id}?stream=true&starting_after="
    for number in numbers[:-1]:
        read = [event["data"] async for event in gateway.events(f"{path}{number}")]
        assert read[-1]["sequence_number"] == numbers[-1]
        assert read[0]["sequence_number"] > number
        for event in read:
            check_event(event)


async def test_settings_that_the_agent_allows_reach_the_model(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("open", "One.", "Two."))
    await api.chat.completions.create(
        model="open",
        messages=[ASKED],
        temperature=0.5,
        max_completion_tokens=50,
        user="ann",
        metadata={"a": "b"},
    )
    response = await api.responses.create(model="open", input="Why?", instructions="Be brief.", max_output_tokens=60)
    one, two = (request.body for request in served_env.model.requests)
    assert one["temperature"] == 0.5
    assert two["messages"][0]["content"].endswith("Be brief.")
    assert (response.max_output_tokens, response.temperature) == (60, 1)


async def test_a_response_repeats_the_tools_and_the_settings_of_its_request(
    served_env: Environment, gateway: GatewayServer
) -> None:
    served_env.script(line("open", call("weather", city="Bern"), "Rain.", "Hello."), line("shaped", '{"city": "Bern"}'))
    asked: Json = {"input": "Weather?", "model": "open", "tools": TOOLS, "temperature": 0.5, "presence_penalty": 0.5}
    repeated: Json = {
        "tools": [{**TOOLS[0], "strict": None}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0,
    }
    first = await gateway.post("/v1/responses", {**asked, "parallel_tool_calls": False})
    results = [{"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"}]
    second = await gateway.post("/v1/responses", {"model": "open", "input": results})
    for response in (first, second, await gateway.get(f"/v1/responses/{first['id']}")):
        assert check_response(response) == "completed"
        assert {name: response[name] for name in repeated} == repeated
        assert response["completed_at"] >= response["created_at"]
    plain = await gateway.post("/v1/responses", {**asked, "tool_choice": "none"})
    assert check_response(plain) == "completed"
    assert (plain["tools"], plain["tool_choice"], plain["parallel_tool_calls"]) == ([], "none", True)
    shape = {"type": "json_schema", "schema": CITY, "name": 7, "strict": "yes", "more": 1}
    shaped = await gateway.post("/v1/responses", {"model": "shaped", "input": "Where?", "text": {"format": shape}})
    assert check_response(shaped) == "completed"
    assert shaped["text"]["format"]["schema"] == CITY


@pytest.mark.parametrize("model", ["closed", "duo"])
async def test_settings_that_the_target_does_not_allow_are_ignored_and_named(
    served_env: Environment, api: AsyncOpenAI, model: str
) -> None:
    served_env.script(line("open", "One.", "Three."), line("closed", "One.", "Two.", "Three.", "Four."))
    more: Any = {"temperature": 0.5, "max_completion_tokens": 50, "stop": "end", "logit_bias": {"1": 1}, "user": "ann"}
    chatted = await api.chat.completions.with_raw_response.create(model=model, messages=[ASKED], **more)
    assert chatted.headers["x-baton-ignored"] == "logit_bias, max_completion_tokens, stop, temperature"
    streamed = api.chat.completions.with_streaming_response.create(model=model, messages=[ASKED], stream=True, seed=1)
    async with streamed as response:
        assert response.headers["x-baton-ignored"] == "seed"
        await response.read()
    made = await api.responses.with_raw_response.create(
        model=model, input="Why?", reasoning={"effort": "low"}, text={"verbosity": "low"}
    )
    assert made.headers["x-baton-ignored"] == "reasoning.effort, text.verbosity"
    read = await api.responses.with_raw_response.retrieve(made.parse().id)
    assert read.headers["x-baton-ignored"] == "reasoning.effort, text.verbosity"
    assert not {"temperature", "stop", "seed", "reasoning_effort"} & {
        name for request in served_env.model.requests for name in request.body
    }


async def test_a_setting_that_the_model_can_not_take_is_ignored_and_named(api: AsyncOpenAI) -> None:
    made = await api.responses.with_raw_response.create(
        model="claude", input="Why?", temperature=1.5, top_p=0.5, background=True
    )
    assert made.headers["x-baton-ignored"] == "temperature"
    assert made.parse().top_p == 0.5
    await api.responses.cancel(made.parse().id)


async def test_an_agent_whose_manifest_says_so_refuses_other_settings(
    served_env: Environment, api: AsyncOpenAI
) -> None:
    served_env.script(line("strict", "One."))
    with pytest.raises(openai.BadRequestError) as refused:
        await api.responses.create(model="strict", input="Why?", reasoning={"effort": "low"})
    assert (refused.value.param, refused.value.type) == ("reasoning.effort", "invalid_request_error")
    answer = await api.chat.completions.with_raw_response.create(model="strict", messages=[ASKED], temperature=1)
    assert answer.headers["x-baton-ignored"] == "temperature"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat", {"model": "open", "max_completion_tokens": 0}, "max_completion_tokens"),
        ("chat", {"model": "open", "temperature": "hot"}, "temperature"),
        ("chat", {"model": "open", "messages": [{"role": "assistant", "content": "Why?"}]}, "messages.0.role"),
        (
            "chat",
            {
                "model": "open",
                "messages": [ASKED, {"role": "assistant", "content": ""}, {"role": "assistant", "content": "Why?"}],
            },
            "messages",
        ),
        ("responses", {"model": "open", "conversation": "x" * 1_000}, "conversation"),
        ("responses", {"model": "open", "conversation": "a\nb"}, "conversation"),
        ("responses", {"model": "open", "instructions": "Be brief.", "input": " "}, "input"),
        ("chat", {"model": "closed", "tools": CHAT_TOOLS}, "tools"),
        ("chat", {"model": "duo", "tools": CHAT_TOOLS}, "tools"),
        ("chat", {"model": "open", "tools": CHAT_TOOLS, "tool_choice": "required"}, "tool_choice"),
        ("chat", {"model": "open", "tool_choice": "required"}, "tool_choice"),
        ("chat", {"model": "open", "response_format": {"type": "json_object"}}, "response_format"),
        ("chat", {"model": "fixed", "response_format": {"type": "poem"}}, "response_format.type"),
        (
            "chat",
            {"model": "shaped", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 7}}}},
            "response_format.json_schema.schema",
        ),
        ("responses", {"model": "open", "max_output_tokens": 0}, "max_output_tokens"),
        ("responses", {"model": "open", "tools": [{"type": "web_search"}]}, "tools.0.type"),
        (
            "responses",
            {"model": "fixed", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "string"}}}},
            "text.format",
        ),
        ("responses", {"model": "shaped", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ],
)
async def test_what_a_client_could_not_do_without_is_refused_by_the_name_of_its_parameter(
    gateway: GatewayServer, path: str, body: Json, param: str
) -> None:
    asked = {"messages": [ASKED]} if path == "chat" else {"input": "Why?"}
    answer = await gateway.post("/v1/chat/completions" if path == "chat" else "/v1/responses", {**asked, **body}, 400)
    assert answer["error"]["param"] == param


async def test_tools_that_the_client_forbids_to_call_need_nobodys_permission(
    served_env: Environment, api: AsyncOpenAI
) -> None:
    served_env.script(line("closed", "One."))
    answer, _ = await chat(api, [ASKED], "closed", tool_choice="none")
    assert answer.message.content == "One."
    assert "tools" not in served_env.model.requests[0].body


class City(BaseModel):
    """An answer."""

    city: str


async def test_an_answer_has_the_schema_that_the_client_chooses_where_the_agent_allows_it(
    served_env: Environment, api: AsyncOpenAI
) -> None:
    valid = json.dumps({"city": "Bern"})
    served_env.script(line("shaped", "It is Bern.", valid, "Bern.", valid))
    async with api.chat.completions.stream(model="shaped", messages=[ASKED], response_format=City) as stream:
        chatted: Any = await stream.get_final_completion()
    assert chatted.choices[0].message.parsed == City(city="Bern")
    response = await api.responses.parse(model="shaped", input="Where?", text_format=City)
    assert response.output_parsed == City(city="Bern")
    assert response.text
    assert response.text.format
    assert response.text.format.type == "json_schema"
    assert len(served_env.model.requests) == 4


@pytest.mark.parametrize("said", [['```json\n{"city": "Bern"}\n```'], ["It is Bern.", '{"city": "Bern"}']])
async def test_openais_own_helper_parses_only_the_answer_of_a_streamed_response(
    served_env: Environment, api: AsyncOpenAI, said: list[str]
) -> None:
    served_env.script(line("shaped", *said))
    async with api.responses.stream(model="shaped", input="Where?", text_format=City) as stream:
        done = [event.item async for event in stream if event.type == "response.output_item.done"]
        response = await stream.get_final_response()
    assert response.output_parsed == City(city="Bern")
    phases = [item.phase for item in done if item.type == "message"]
    assert phases == [*["commentary"] * (len(phases) - 1), "final_answer"]


async def test_an_answer_of_the_agents_own_schema_may_be_asked_for(served_env: Environment, api: AsyncOpenAI) -> None:
    served_env.script(line("fixed", '{"city": "Bern"}'))
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    forms: Any = (form, {"type": "json_object"})
    for wanted in forms:
        answer = await api.chat.completions.create(model="fixed", messages=[ASKED], response_format=wanted)
        assert json.loads(answer.choices[0].message.content or "") == {"city": "Bern"}


async def test_a_result_for_the_call_of_another_caller_or_of_no_run_is_not_found(
    served_env: Environment, tmp_path: Path
) -> None:
    served_env.script(line("open", call("weather", city="Bern"), "Done."))
    path, keys = key_file(tmp_path, {"ann": {}, "ben": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        url = f"{gateway.url}/v1"
        ann = AsyncOpenAI(base_url=url, api_key=keys["ann"], max_retries=0)
        ben = AsyncOpenAI(base_url=url, api_key=keys["ben"], max_retries=0)
        async with ann, ben:
            first, _ = await chat(ann, [ASKED])
            messages = [ASKED, *results(first, {"Bern": "rain"})]
            with pytest.raises(openai.NotFoundError):
                await chat(ben, messages)
            gone: Any = {**messages[-1], "tool_call_id": "call_0123456789_open-none"}
            with pytest.raises(openai.NotFoundError) as missing:
                await chat(ann, [ASKED, gone])
            assert missing.value.param == "messages"
            with pytest.raises(openai.BadRequestError):
                await chat(ann, messages, "closed")
            end, _ = await chat(ann, messages)
    assert end.message.content == "Done."
