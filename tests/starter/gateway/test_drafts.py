"""Texts whose final form differs from what was streamed: all readers get the same items, messages and numbers."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from a2a.types import Part

from baton.contracts.text import MAX_MESSAGE, truncate
from tests.harness.agent_server import AgentServer, Turn, until
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.gateway import GatewayServer, read_sse
from tests.harness.mcp_process import McpServerProcess
from tests.harness.panels import prompt_line
from tests.harness.remote_agents import a2a_agent, a2a_server

SCORE: Json = {"type": "object", "properties": {"score": {"type": "number"}, "why": {"type": "string"}}}
WHY = "It is as good as it can be, and nobody has found anything wrong with it. " * 2
LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " * 2

MANIFESTS = [
    agent("one"),
    agent("two"),
    agent("rated", outputSchema=SCORE),
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
    team("chosen", "one", "two", strategy="selector", maxTurns=1, onMaxTurns="complete"),
]


async def streamed(
    gateway: GatewayServer, path: str, body: Json | None = None, then: Callable[[Json], None] = lambda _: None
) -> list[Json]:
    """The events of a stream; ``then`` is called with each."""
    events = []
    method = "GET" if body is None else "POST"
    async with gateway.http.stream(method, path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for event in read_sse(response):
            events.append(event["data"])
            then(event["data"])
    return events


def release_at_first_text(release: Callable[[], None]) -> Callable[[Json], None]:
    """Calls ``release`` once a part of a text was streamed."""

    def read(event: Any) -> None:
        if isinstance(event, dict) and (
            event.get("type") in ("response.output_text.delta", "TEXT_MESSAGE_CONTENT")
            or any(choice["delta"].get("content") for choice in event.get("choices", ()))
        ):
            release()

    return read


async def check_response(gateway: GatewayServer, seen: list[Json]) -> None:
    """Checks that a response that was streamed is the same for readers that join later, or go on after any event."""
    final = seen[-1]["response"]
    whole = {item["id"]: item["content"][0]["text"] for item in final["output"]}
    numbers = [event["sequence_number"] for event in seen]
    assert numbers == sorted({*numbers})
    assert final == await gateway.get(f"/v1/responses/{final['id']}")
    for number in (-1, *numbers[:-1]):
        path = f"/v1/responses/{final['id']}?stream=true&starting_after={number}"
        rest = await streamed(gateway, path)
        events = [event for event in seen if event["sequence_number"] <= number] + rest
        assert marks_of(events) == marks_of(seen)
        assert texts_of(events) == whole


def marks_of(events: list[Json]) -> list[tuple[Any, ...]]:
    """What all readers get alike: all but the boundaries of pieces, and the text of what is taken back."""
    return [
        (event["sequence_number"], event["type"], event.get("output_index"), event.get("item", {}).get("id"))
        for event in events
        if not event["type"].endswith(".delta")
    ]


def texts_of(events: list[Json]) -> dict[str, str]:
    """The text of each output item that was not taken back, as its pieces add up."""
    texts: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.output_text.delta":
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif event["type"] == "response.output_item.done" and event["item"].get("retracted"):
            texts.pop(event["item"]["id"], None)
    return texts


def asked_in_ag_ui() -> Json:
    messages = [{"id": "m", "role": "user", "content": "Why?"}]
    return {"threadId": uuid.uuid4().hex, "runId": "r", "messages": messages, "tools": [], "context": [], "state": {}}


def messages_of(events: list[Json]) -> dict[str, str]:
    """The texts of all messages of AG-UI that were not taken back, by their ids."""
    texts: dict[str, str] = {}
    retracted: set[str] = set()
    for event in events:
        if event["type"] == "TEXT_MESSAGE_CONTENT":
            assert event["messageId"] not in retracted
            texts[event["messageId"]] = texts.get(event["messageId"], "") + event["delta"]
        elif event["type"] == "CUSTOM":
            retracted.add(event["value"]["messageId"])
            texts.pop(event["value"]["messageId"], None)
    return texts


def content_of(chunks: list[Any]) -> str:
    """The content of a chat, or of ARK's chunks; an error is none."""
    assert chunks[-1] == "[DONE]", chunks[-1]
    deltas = [choice["delta"] for chunk in chunks[:-1] for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize(
    "text", [f'```json\n{{"score": 7, "why": "{WHY}"}}\n```', f'{{"score": 7, "why": "{WHY}"}}\n'], ids=["fence", "end"]
)
async def test_json_that_is_stored_without_what_surrounds_it_has_the_same_numbers_and_ids_for_all_readers(
    served_env: Environment, gateway: GatewayServer, text: str
) -> None:
    stored = f'{{"score": 7, "why": "{WHY}"}}'
    served_env.script(line("rated", {"text": text, "held": True, "pause": 0.03}))
    release = release_at_first_text(served_env.model.release)
    seen = await streamed(gateway, "/v1/responses", {"model": "rated", "input": "Why?", "stream": True}, release)
    assert [item["content"][0]["text"] for item in seen[-1]["response"]["output"]] == [stored]
    await check_response(gateway, seen)
    asked = asked_in_ag_ui()
    live = await streamed(gateway, "/ag-ui/rated", asked)
    later = await streamed(gateway, "/ag-ui/rated", asked)
    assert [*messages_of(live).values()] == [stored]
    assert messages_of(later) == messages_of(live)


async def test_numbers_increase_also_if_the_beginning_of_a_long_text_and_its_mark_are_longer_than_the_text(
    served_env: Environment, gateway: GatewayServer
) -> None:
    long = "x" * (MAX_MESSAGE + 10)
    assert len(truncate(long)) > len(long)
    served_env.script(line("one", long))
    body = {"model": "one", "input": "Why?", "background": True, "stream": True}
    seen = await streamed(gateway, "/v1/responses", body)
    later = await streamed(gateway, f"/v1/responses/{seen[-1]['response']['id']}?stream=true")
    for events in (seen, later):
        numbers = [event["sequence_number"] for event in events]
        assert numbers == sorted({*numbers})
    assert marks_of(later) == marks_of(seen)


@pytest.fixture
def agents() -> AgentServer:
    return AgentServer()


@pytest.fixture
def go_on(agents: AgentServer) -> threading.Event:
    """Lets the agent that ``answers`` go on."""
    return threading.Event()


async def serving(env: Environment, agents: AgentServer) -> AsyncIterator[GatewayServer]:
    """A gateway for the agent ``oracle`` on a server."""
    async with (
        env.with_manifests([a2a_agent("oracle"), a2a_server(agents)]) as served,
        GatewayServer.running(served) as gateway,
    ):
        while (await gateway.http.get("/v1/models/oracle")).status_code != 200:
            await asyncio.sleep(0.05)
        yield gateway


CHAT = {"model": "oracle", "messages": [{"role": "user", "content": "Why?"}], "stream": True}
RESPONSE = {"model": "oracle", "input": "Why?", "stream": True}


async def test_what_a_remote_agent_says_of_the_state_of_its_task_is_no_part_of_its_answer(
    env: Environment, agents: AgentServer, go_on: threading.Event
) -> None:
    async def works(turn: Turn) -> None:
        task = await turn.task()
        await task.start_work(task.new_agent_message([Part(text="Searching…")]))
        await asyncio.sleep(1)  # long enough for it to be streamed
        await task.add_artifact([Part(text="The ")], artifact_id="a")
        await until(go_on)
        await task.add_artifact([Part(text="result.")], artifact_id="a", append=True)
        await task.add_artifact([Part(text="And more.")], artifact_id="b")
        await task.complete()

    agents.behaviour = works
    release = release_at_first_text(go_on.set)
    answer = "The result.\n\nAnd more."
    with agents.serving():
        async for gateway in serving(env, agents):
            assert content_of(await streamed(gateway, "/v1/chat/completions", CHAT, release)) == answer
            go_on.clear()
            seen = await streamed(gateway, "/v1/responses", RESPONSE, release)
            assert [event["item"]["content"][0]["text"] for event in seen if "item.done" in event["type"]] == [answer]
            assert sum(event["type"] == "response.output_text.delta" for event in seen) > 1
            await check_response(gateway, seen)


async def test_a_text_that_a_remote_agent_replaces_is_another_item_for_all_readers(
    env: Environment, agents: AgentServer, go_on: threading.Event
) -> None:
    async def replaces(turn: Turn) -> None:
        task = await turn.task()
        await task.add_artifact([Part(text="This will be replaced by something.")], artifact_id="a")
        await until(go_on)
        await task.add_artifact([Part(text="The result.")], artifact_id="a")
        await task.complete()

    agents.behaviour = replaces
    with agents.serving():
        async for gateway in serving(env, agents):
            seen = await streamed(gateway, "/v1/responses", RESPONSE, release_at_first_text(go_on.set))
            await check_response(gateway, seen)
            retracted = [event["item"].get("retracted") for event in seen if "output_item.done" in event["type"]]
            assert retracted == [True, None]
            go_on.clear()
            asked = asked_in_ag_ui()
            live = await streamed(gateway, "/ag-ui/oracle", asked, release_at_first_text(go_on.set))
            later = await streamed(gateway, "/ag-ui/oracle", asked)
            assert [*messages_of(live).values()] == ["The result."]
            assert messages_of(later) == messages_of(live)


async def test_what_a_selector_says_is_not_streamed(served_env: Environment, gateway: GatewayServer) -> None:
    choice = {"text": f"I think that it has to be two, as {WHY}", "pause": 0.1}
    served_env.script(prompt_line("You moderate a discussion", choice), line("two", {"text": LONG, "pause": 0.1}))
    seen = await streamed(gateway, "/v1/responses", {"model": "chosen", "input": "Why?", "stream": True})
    assert {event["item"]["speaker"] for event in seen if "item" in event} == {"two"}
    await check_response(gateway, seen)


async def test_a_message_that_is_taken_back_before_and_after_a_wait_keeps_its_id_for_all_readers(
    served_env: Environment, gateway: GatewayServer
) -> None:
    broken = {"text": f"Nothing of this remains. {WHY}", "cut": 150, "pause": 0.1}
    failing = {"status": 503, "headers": {"retry-after-ms": "1"}}
    served_env.script(line("fragile", {"text": LONG, "before": [broken, failing, broken]}))
    asked = asked_in_ag_ui()
    live = await streamed(gateway, "/ag-ui/fragile", asked)
    later = await streamed(gateway, "/ag-ui/fragile", asked)
    retracted = [event["value"]["messageId"] for event in live if event["type"] == "CUSTOM"]
    assert len(retracted) == len({*retracted})
    assert [*messages_of(live).values()] == [LONG]
    assert messages_of(later) == messages_of(live)


async def test_a_chat_goes_on_with_an_answer_while_its_run_is_paused_and_resumed(
    served_env: Environment, gateway: GatewayServer
) -> None:
    served_env.script(line("one", {"text": LONG, "held": True}))
    run = ""
    requests: list[asyncio.Future[None]] = []

    async def pause_and_resume() -> None:
        await gateway.post(f"/runs/{run}/pause")
        await gateway.post(f"/runs/{run}/resume")

    def read(chunk: Any) -> None:
        nonlocal run
        if not isinstance(chunk, dict):
            return
        run = chunk["id"].removeprefix("chatcmpl-")
        delta = chunk["choices"][0]["delta"]
        if delta.get("content") and not requests:
            requests.append(asyncio.ensure_future(pause_and_resume()))
        if "over" in delta.get("reasoning_content", ""):
            served_env.model.release()

    chunks = await streamed(gateway, "/v1/chat/completions", {**CHAT, "model": "agent/one"}, read)
    assert content_of(chunks) == LONG
    assert requests
    await requests[0]


@pytest.mark.slow
async def test_what_a_tool_reports_of_its_progress_is_said_by_nobody(env: Environment, tmp_path: Path) -> None:
    working = agent("working", tools=[{"name": "test-work", "type": "mcp"}])
    with McpServerProcess("2026", tmp_path).running() as server:
        async with (
            env.with_manifests([working, server.manifest()]) as served,
            GatewayServer.running(served) as gateway,
        ):
            while (await gateway.http.get("/v1/models/working")).status_code != 200:
                await asyncio.sleep(0.05)
            served.script(line("working", call("test-work", steps=15), "Done.", call("test-work", steps=15), "Done."))
            events = await streamed(gateway, "/ag-ui/working", asked_in_ag_ui())
            assert [*messages_of(events).values()] == ["Done."]
            assert [event for event in events if event["type"] == "CUSTOM"] == []
            query = {"name": "working", "input": "Why?", "target": {"type": "agent", "name": "working"}}
            await gateway.post("/v1/queries", query)
            chunks = await streamed(gateway, "/stream/working?from-beginning=true&wait-for-query=30s")
            assert content_of(chunks) == "Done."
