"""AG-UI: runs as streams of events for user interfaces."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from ag_ui.core import Event as AgUiEvent
from pydantic import TypeAdapter

from baton.starter.gateway.access import LOCAL
from baton.starter.gateway.app import Gateway
from baton.starter.gateway.question import TargetQuestion
from baton.starter.gateway.run import Run, RunWaits
from baton.starter.history.events import MessageEvent, WaitStartedEvent
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.gateway import GatewayServer, key_file, read_sse
from tests.harness.ports import own_port
from tests.harness.processes import BATON, process_env
from tests.harness.tool_server import Answer, ToolServer

EVENTS: TypeAdapter[Any] = TypeAdapter(AgUiEvent)
ANN: Json = {"name": "ann", "type": "human", "prompt": "Is it legal?"}
BOB: Json = {"name": "bob", "type": "human", "prompt": "Is it wise?"}
WAIT_PORT = own_port()
MANIFESTS = [
    agent("one"),
    agent("two"),
    team("duo", "one", "two", maxTurns=1, onMaxTurns="complete"),
    manifest(
        "Agent",
        "careful",
        {"prompt": "You are careful.", "tools": [{"name": "calculator", "approval": {"required": True}}]},
    ),
    agent("counter", "calculator"),
    agent("open", clients={"tools": True, "settings": ["instructions"]}),
    team("rounds", "one", "two", maxRounds=2),
    manifest("Team", "panel", {"strategy": "parallel", "members": [ANN, BOB]}),
    manifest("Tool", "wait", {"type": "http", "http": {"url": f"http://127.0.0.1:{WAIT_PORT}/"}}),
    agent("waiting", "wait"),
    manifest(
        "Agent",
        "patient",
        {
            "prompt": "You are patient.",
            "tools": [{"name": "wait"}, {"name": "calculator", "approval": {"required": True}}],
        },
    ),
    manifest(
        "Agent", "wary", {"prompt": "You are wary.", "tools": [{"name": "calculator", "approval": {"required": True}}]}
    ),
    team("cautious", "careful", "wary", strategy="parallel"),
    team("both", "one", "patient", strategy="parallel"),
    team("waiters", "waiting", "careful", strategy="parallel"),
    manifest("Team", "asked", {"strategy": "sequential", "members": [{"name": "one", "type": "agent"}, ANN, BOB]}),
]
CALCULATE = call("calculator", expression="2+2")


class Asked(Protocol):
    """Builds requests in one thread, that of a test."""

    def __call__(self, run: str, text: str | None = "Why?", **more: Any) -> Json: ...


@pytest.fixture
def asked() -> Asked:
    thread = str(uuid.uuid4())

    def asked(run: str, text: str | None = "Why?", **more: Any) -> Json:
        messages = [{"id": f"m-{run}", "role": "user", "content": text}] if text is not None else []
        return {"threadId": thread, "runId": run, "messages": messages, "tools": [], "context": [], "state": {}, **more}

    return asked


async def stream(gateway: GatewayServer, target: str, body: Json, *, key: str | None = None) -> list[Json]:
    """All events of a run; each is one of AG-UI's types, without unknown fields."""
    return [event async for event in following(gateway, target, body, key=key)]


async def following(gateway: GatewayServer, target: str, body: Json, *, key: str | None = None) -> AsyncIterator[Json]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with gateway.http.stream("POST", f"/ag-ui/{target}", json=body, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for event in read_sse(response):
            read = EVENTS.validate_python(event["data"])
            assert not read.model_extra
            yield event["data"]


def types_of(events: list[Json]) -> list[str]:
    return [event["type"] for event in events if event["type"] != "STATE_SNAPSHOT"]


def texts_of(events: list[Json]) -> dict[str, str]:
    """The texts of all messages by their ids."""
    texts: dict[str, str] = {}
    for event in events:
        if event["type"] == "TEXT_MESSAGE_CONTENT":
            texts[event["messageId"]] = texts.get(event["messageId"], "") + event["delta"]
    return texts


def interrupts_of(events: list[Json]) -> list[Json]:
    assert events[-1]["outcome"]["type"] == "interrupt", events[-1]
    interrupts: list[Json] = events[-1]["outcome"]["interrupts"]
    return interrupts


async def test_a_run_is_a_stream_of_steps_and_messages(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    events = await stream(gateway, "team/duo", asked("r"))
    message = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    step = ["STEP_STARTED", *message, "STEP_FINISHED"]
    assert types_of(events) == ["RUN_STARTED", *step, *step, "RUN_FINISHED"]
    assert [*texts_of(events).values()] == ["a", "b"]
    assert events[-1]["result"] == "b"
    assert events[-1]["outcome"] == {"type": "success"}
    snapshots = [event["snapshot"] for event in events if event["type"] == "STATE_SNAPSHOT"]
    assert [each["speakers"] for each in snapshots] == [[], ["one"], ["two"], []]
    assert snapshots[-1]["phase"] == "Completed"


async def test_text_is_streamed_while_the_model_sends_it(gateway: GatewayServer, asked: Asked) -> None:
    text = " ".join(f"word{number}" for number in range(20))
    gateway.env.script(line("one", {"text": text, "held": True}))
    events: list[Json] = []
    async for event in following(gateway, "one", asked("r")):
        events.append(event)
        if event["type"] == "TEXT_MESSAGE_CONTENT":
            gateway.env.model.release()
    [message] = texts_of(events)
    assert texts_of(events) == {message: text}
    assert types_of(events).count("TEXT_MESSAGE_CONTENT") > 1
    assert texts_of(await stream(gateway, "one", asked("r"))) == {message: text}


async def test_the_same_run_id_joins_the_run_and_its_messages_have_the_same_ids(
    gateway: GatewayServer, asked: Asked
) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    first, second = await asyncio.gather(*(stream(gateway, "duo", asked("r")) for _ in range(2)))
    later = await stream(gateway, "duo", asked("r", state={"more": 1}))
    assert texts_of(first) == texts_of(second) == texts_of(later)
    assert len(gateway.env.model.requests) == 2


async def test_a_call_of_a_tool_is_streamed_with_its_result(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("counter", CALCULATE, "It is 4."))
    events = await stream(gateway, "agent/counter", asked("r"))
    calls = [event for event in events if event["type"].startswith("TOOL_CALL")]
    assert [each["type"] for each in calls] == [
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
    ]
    assert len({each["toolCallId"] for each in calls}) == 1
    assert calls[0]["toolCallName"] == "calculator"
    assert calls[-1]["content"] == "4"


async def test_a_thread_is_a_conversation_that_each_caller_has_for_itself(
    served_env: Environment, tmp_path: Path, asked: Asked
) -> None:
    served_env.script(line("one", "a", "b", "c"))
    path, keys = key_file(tmp_path, {"ann": {}, "bob": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        await stream(gateway, "one", asked("r1", "First?"), key=keys["ann"])
        body = asked("r2", "Second?")
        body["messages"][:0] = [
            {"id": "1", "role": "user", "content": "First?"},
            {"id": "2", "role": "assistant", "content": "a"},
        ]
        await stream(gateway, "one", body, key=keys["ann"])
        contents = [message["content"] for message in served_env.model.requests[-1].body["messages"]]
        assert [text for text in contents if text in ("First?", "a", "Second?")] == ["First?", "a", "Second?"]
        await stream(gateway, "one", asked("r1", "Other?"), key=keys["bob"])
        assert "First?" not in str(served_env.model.requests[-1].body)


async def test_a_parent_run_is_a_place_from_which_the_thread_branches(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("one", "a", "b", "c"))
    await stream(gateway, "one", asked("r1", "First?"))
    await stream(gateway, "one", asked("r2", "Second?"))
    await stream(gateway, "one", asked("r3", "Instead?", parentRunId="r1"))
    last = str(gateway.env.model.requests[-1].body["messages"])
    assert "First?" in last
    assert "Instead?" in last
    assert "Second?" not in last


async def test_an_approval_interrupts_and_the_run_goes_on_with_it_once(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("careful", CALCULATE, "It is 4."))
    events = await stream(gateway, "careful", asked("r1"))
    [interrupt] = interrupts_of(events)
    assert interrupt["reason"] == "tool_call"
    assert interrupt["message"] == 'May careful call calculator with {"expression": "2+2"}?'
    wrong = asked("r2", None, resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": "yes"}])
    response = await gateway.http.post("/ag-ui/careful", json=wrong)
    assert (response.status_code, response.json()["type"]) == (400, "RUN_ERROR")
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    for _ in range(2):
        events = await stream(gateway, "careful", asked("r2", None, resume=resume))
        assert events[0]["runId"] == "r2"
        assert [*texts_of(events).values()] == ["It is 4."]
        assert events[-1]["outcome"] == {"type": "success"}
    assert len(gateway.env.model.requests) == 2


async def test_a_parent_run_may_be_one_that_continued_after_an_interrupt(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("careful", CALCULATE, "It is 4.", "No.", "It is 5."))
    before = await stream(gateway, "careful", asked("r1"))
    await stream(gateway, "careful", approved(asked, "r2", before))
    await stream(gateway, "careful", asked("r3", "Sure?"))

    branched = asked("r4", "And 2+3?", parentRunId="r2")
    while (await gateway.http.post("/ag-ui/careful", json=branched)).status_code == 404:
        await asyncio.sleep(0.1)  # Temporal lists a run a moment after its start
    last = str(gateway.env.model.requests[-1].body["messages"])
    assert ["It is 4." in last, "Sure?" in last, "And 2+3?" in last] == [True, False, True]
    response = await gateway.http.post("/ag-ui/careful", json=asked("r5", "?", parentRunId="r9"))
    assert response.status_code == 404
    assert response.json()["message"].startswith("parentRunId: no run 'r9' has begun in this thread")


LONG = " ".join(f"word{number}" for number in range(50))
"""A text of several pieces."""


@dataclass
class Gate:
    """The server of the tool ``wait``: it answers once the gate is open."""

    opened: threading.Event = field(default_factory=threading.Event)

    def answer(self, _number: int) -> Answer:
        self.opened.wait()
        return Answer("Enough.")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    server = ToolServer()
    server.answer = gate.answer
    with server.serving(WAIT_PORT):
        yield gate
        gate.opened.set()


async def until_interrupted(
    gateway: GatewayServer, target: str, body: Json, first: str, then: Callable[[], None]
) -> list[Json]:
    """The events of a run up to its interrupt. ``then`` is called at the first event of the type ``first``."""
    events: list[Json] = []
    async for event in following(gateway, target, body):
        if event["type"] == first and first not in types_of(events):
            then()
        events.append(event)
    return events


def approved(asked: Asked, run: str, events: list[Json]) -> Json:
    """The request that approves the only interrupt at the end of a stream."""
    [interrupt] = interrupts_of(events)
    return asked(run, None, resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": True}])


async def test_a_text_that_an_interrupt_has_cut_goes_on_in_the_next_stream(
    gateway: GatewayServer, asked: Asked, gate: Gate
) -> None:
    gateway.env.script(line("one", {"text": LONG, "held": True}), line("patient", call("wait"), CALCULATE, "4"))
    before = await until_interrupted(gateway, "both", asked("r1"), "TEXT_MESSAGE_CONTENT", gate.opened.set)
    [(message, begun)] = texts_of(before).items()
    assert len(begun) < len(LONG)
    gateway.env.model.release()
    for _ in range(2):
        after = await stream(gateway, "both", approved(asked, "r2", before))
        assert begun + texts_of(after)[message] == LONG
        assert sorted(texts_of(after).values(), key=len)[0] == "4"
        assert len(texts_of(after)) == 2


@pytest.mark.full
async def test_a_text_that_is_taken_back_after_an_interrupt_is_retracted_and_sent_as_another_message(
    gateway: GatewayServer, asked: Asked, gate: Gate
) -> None:
    failing = {"text": LONG, "held": True, "cut": 160}
    gateway.env.script(line("one", {"text": LONG, "before": [failing]}), line("patient", call("wait"), CALCULATE, "4"))
    before = await until_interrupted(gateway, "both", asked("r1"), "TEXT_MESSAGE_CONTENT", gate.opened.set)
    [message] = texts_of(before)
    gateway.env.model.release()
    await gateway.env.wait_for_calls(4)  # the second attempt has begun
    after = await stream(gateway, "both", approved(asked, "r2", before))
    assert [event["value"]["messageId"] for event in after if event["type"] == "CUSTOM"] == [message]
    assert message not in texts_of(after)
    assert sorted(texts_of(after).values(), key=len) == ["4", LONG]
    whole = await stream(gateway, "both", asked("r1"))
    assert {key: text for key, text in texts_of(whole).items() if text == LONG}.items() <= texts_of(after).items()


async def test_what_a_person_sends_into_a_run_is_a_message_of_the_user(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("one", "a"), line("two", {"text": "b", "held": True}))
    events: list[Json] = []
    async for event in following(gateway, "team/duo", asked("r1")):
        events.append(event)
        if event["type"] == "STEP_STARTED" and event["stepName"].startswith("two"):
            run = next(each["snapshot"]["run"] for each in events if each["type"] == "STATE_SNAPSHOT")
            await gateway.post(f"/runs/{run}/steer", {"text": "Be brief."})
            gateway.env.model.release()
    roles = {event["messageId"]: event["role"] for event in events if event["type"] == "TEXT_MESSAGE_START"}
    said = [(roles[message], text) for message, text in texts_of(events).items()]
    assert said == [("assistant", "a"), ("assistant", "b"), ("user", "Be brief.")]


async def test_a_tool_that_was_called_before_an_interrupt_has_its_result_in_the_next_stream(
    gateway: GatewayServer, asked: Asked, gate: Gate
) -> None:
    gateway.env.script(line("waiting", call("wait"), "Waited."), line("careful", {**CALCULATE, "held": True}, "4"))
    before = await until_interrupted(gateway, "waiters", asked("r1"), "TOOL_CALL_END", gateway.env.model.release)
    [called] = [event["toolCallId"] for event in before if event["type"] == "TOOL_CALL_START"]
    assert "TOOL_CALL_RESULT" not in types_of(before)
    gate.opened.set()
    after = await stream(gateway, "waiters", approved(asked, "r2", before))
    returned = {event["toolCallId"]: event["content"] for event in after if event["type"] == "TOOL_CALL_RESULT"}
    assert returned.pop(called) == "Enough."
    assert [*returned] == [event["toolCallId"] for event in after if event["type"] == "TOOL_CALL_START"]


async def test_an_abandoned_approval_is_rejected(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("careful", CALCULATE, "Not done."))
    [interrupt] = interrupts_of(await stream(gateway, "careful", asked("r1")))
    resume = [{"interruptId": interrupt["id"], "status": "cancelled"}]
    events = await stream(gateway, "careful", asked("r2", None, resume=resume))
    assert [*texts_of(events).values()] == ["Not done."]


async def test_a_reply_with_the_same_words_as_an_earlier_message_is_a_message_of_its_own(
    gateway: GatewayServer, asked: Asked
) -> None:
    gateway.env.script(line("one", "Yes."))
    events = await stream(gateway, "asked", asked("r1"))
    for run in ("r2", "r3"):
        [interrupt] = interrupts_of(events)
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": "Yes."}]
        events = await stream(gateway, "asked", asked(run, None, resume=resume))
        assert [*texts_of(events).values()] == ["Yes."]
    whole = await stream(gateway, "asked", asked("r1"))
    begun = [event for event in whole if event["type"] == "TEXT_MESSAGE_START"]
    assert [(event["name"], event["role"]) for event in begun] == [
        ("one", "assistant"),
        ("ann", "user"),
        ("bob", "user"),
    ]
    assert [*texts_of(whole).values()] == ["Yes."] * 3


async def test_more_budget_is_an_interrupt(env: Environment, asked: Asked) -> None:
    thrifty = team("thrifty", "one", "two", strategy="sequential", budget={"modelCalls": 1, "onExceeded": "ask"})
    async with (
        env.with_manifests([agent("one"), agent("two"), thrifty]) as served,
        GatewayServer.running(served) as gateway,
    ):
        served.script(line("one", "a"), line("two", "b"))
        [interrupt] = interrupts_of(await stream(gateway, "thrifty", asked("r1")))
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        events = await stream(gateway, "thrifty", asked("r2", None, resume=resume))
        assert [*texts_of(events).values()] == ["b"]


class AnsweredMeanwhile(Run):
    """A run whose first question is answered after its events were read, and before it is looked up what waits."""

    async def is_open(self) -> bool:
        [asked] = await self.undecided()
        await self.reply("Yes.", asked.id)
        while asked.id in [each.id for each in await self.pending()] or not await self.pending():
            await asyncio.sleep(0.02)
        return await super().is_open()


async def test_a_stream_that_ends_with_a_question_has_all_that_precedes_it(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "Yes."))
    client, environ = gateway.env.client, {**gateway.env.worker_env, "BATON_GATEWAY_NAMESPACES": "*"}
    core = Gateway.of(client, environ)
    target = await core.targets.find(LOCAL, "team/asked")
    run = await core.runs.start(LOCAL, target, TargetQuestion(input="Why?"), protocol="test")
    before = [event async for event in run.events_until_waiting()]
    last = before[-2]
    assert isinstance(last, WaitStartedEvent)
    answered = AnsweredMeanwhile(client, run.handle, run.memo, LOCAL, environ)
    *events, waits = [event async for event in answered.events_until_waiting(last.cursor)]
    assert isinstance(waits, RunWaits)
    [asked] = waits.decisions
    assert [each.text for each in events if isinstance(each, MessageEvent)] == ["Yes."]
    assert [each.wait for each in events if isinstance(each, WaitStartedEvent)] == [asked.id] != [last.wait]
    await run.cancel()


async def test_all_open_interrupts_need_an_answer(gateway: GatewayServer, asked: Asked) -> None:
    interrupts = interrupts_of(await stream(gateway, "panel", asked("r1")))
    while len(interrupts) < 2:  # the second is asked a moment later: the same run tells it
        interrupts = interrupts_of(await stream(gateway, "panel", asked("r1")))
    entries = [{"interruptId": each["id"], "status": "resolved", "payload": {"reply": "Yes."}} for each in interrupts]
    response = await gateway.http.post("/ag-ui/panel", json=asked("r2", None, resume=entries[:1]))
    assert response.status_code == 400
    assert "all open interrupts" in response.json()["message"]
    long = {**entries[1], "payload": {"reply": "x" * 70_000}}
    response = await gateway.http.post("/ag-ui/panel", json=asked("r2", None, resume=[entries[0], long]))
    assert (response.status_code, "64,000 bytes" in response.json()["message"]) == (400, True), response.text
    assert len([each for each in (await gateway.get("/inbox"))["waiting"] if "decision" not in each["decision"]]) == 2
    for _ in range(2):
        events = await stream(gateway, "panel", asked("r2", None, resume=entries))
        assert events[-1]["outcome"] == {"type": "success"}
    assert "ann:\nYes." in events[-1]["result"]


async def test_what_waits_only_since_the_interrupt_is_an_interrupt_of_the_next_stream(
    gateway: GatewayServer, asked: Asked
) -> None:
    gateway.env.script(line("careful", CALCULATE, "4"), line("wary", {**CALCULATE, "held": True}, "Four"))
    [first] = interrupts_of(before := await stream(gateway, "cautious", asked("r1")))
    gateway.env.model.release()
    while len((await gateway.get("/inbox"))["waiting"]) < 2:
        await asyncio.sleep(0.05)
    for _ in range(2):
        after = await stream(gateway, "cautious", approved(asked, "r2", before))
        [second] = interrupts_of(after)
        assert second["metadata"]["baton"]["speaker"] == "wary"
        assert second["id"] != first["id"]
    last = await stream(gateway, "cautious", approved(asked, "r3", after))
    assert last[-1]["outcome"] == {"type": "success"}
    assert "careful:\n4" in last[-1]["result"]
    assert "wary:\nFour" in last[-1]["result"]


WEATHER: Json = {
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def test_the_client_executes_its_tools_and_the_run_goes_on_with_their_results(
    gateway: GatewayServer, asked: Asked
) -> None:
    gateway.env.script(line("open", call("weather", city="Bern"), "It rains."))
    context = [{"description": "The user's city", "value": "Bern"}]
    first = await stream(gateway, "open", asked("r1", "Weather?", tools=[WEATHER], context=context))
    start, arguments, _ = [event for event in first if event["type"].startswith("TOOL_CALL")]
    assert (start["toolCallName"], arguments["delta"]) == ("weather", '{"city": "Bern"}')
    assert first[-1]["type"] == "RUN_FINISHED"
    assert "outcome" not in first[-1]
    assert "The user's city: Bern" in str(gateway.env.model.requests[0].body)
    body = asked("r2", "Weather?")
    body["messages"] += [
        {
            "id": "a",
            "role": "assistant",
            "toolCalls": [
                {
                    "id": start["toolCallId"],
                    "type": "function",
                    "function": {"name": "weather", "arguments": arguments["delta"]},
                }
            ],
        },
        {"id": "b", "role": "tool", "toolCallId": start["toolCallId"], "content": "Rain"},
    ]
    for _ in range(2):
        second = await stream(gateway, "open", body)
        assert [*texts_of(second).values()] == ["It rains."]
        assert not [event for event in second if event["type"].startswith("TOOL_CALL")]
    assert len(gateway.env.model.requests) == 2
    assert "Rain" in gateway.env.model.requests[1].body["messages"][-1]["content"]


async def test_results_of_two_calls_in_another_order_show_neither_call_again(
    gateway: GatewayServer, asked: Asked
) -> None:
    both = {"calls": [*call("weather", city="Bern")["calls"], *call("weather", city="Rome")["calls"]]}
    gateway.env.script(line("open", both, "Done."))
    calls: list[str] = []
    while len(calls) < 2:  # the run may begin to wait for the second a moment later: the same run tells it
        first = await stream(gateway, "open", asked("r1", "Weather?", tools=[WEATHER]))
        calls = [event["toolCallId"] for event in first if event["type"] == "TOOL_CALL_START"]
    results = [{"id": each, "role": "tool", "toolCallId": each, "content": "Rain"} for each in calls]
    body = asked("r2", "Weather?")
    question = body["messages"]
    for order in (results[::-1], results):  # the same results again have no further effect
        second = await stream(gateway, "open", {**body, "messages": [*question, *order]})
        assert [*texts_of(second).values()] == ["Done."]
        assert not [event for event in second if event["type"].startswith("TOOL_CALL")]
    broken = {**results[0], "toolCallId": results[0]["toolCallId"].rpartition("/")[0] + "/nonsense"}
    refused = await gateway.http.post("/ag-ui/open", json={**body, "messages": [*question, results[1], broken]})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")


async def test_a_failed_run_is_an_error_and_a_canceled_one_is_not(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("one", {"status": 401}))
    failed = await stream(gateway, "one", asked("r1"))
    assert failed[-1]["type"] == "RUN_ERROR"
    gateway.env.script(line("careful", CALCULATE))
    events = await stream(gateway, "careful", asked("r2"))
    run = events[1]["snapshot"]["run"]
    await gateway.post(f"/runs/{run}/cancel")
    canceled = await stream(gateway, "careful", asked("r2"))
    assert canceled[-1]["outcome"] == {"type": "cancelled"}


async def test_what_is_wrong_with_a_request_is_told_before_the_stream(gateway: GatewayServer, asked: Asked) -> None:
    for target, body, status in (
        ("nobody", asked("r"), 404),
        ("one", asked("r", None), 400),
        ("one", {"threadId": "t"}, 400),
        ("one", asked("r", None, resume=[{"interruptId": "x", "status": "resolved"}]), 400),
        ("one", asked("r", None, resume=[{"interruptId": "one-0/a/b", "status": "resolved"}]), 404),
        ("one", asked("r", parentRunId="other"), 404),
    ):
        response = await gateway.http.post(f"/ag-ui/{target}", json=body)
        assert response.status_code == status, response.text
        assert response.json()["type"] == "RUN_ERROR"


@pytest.mark.slow
async def test_a_run_goes_on_when_its_gateway_is_killed_and_another_streams_it(
    served_env: Environment, asked: Asked
) -> None:
    served_env.script(line("one", {"text": "a", "held": True}), line("two", "b"))
    port = own_port()
    address = served_env.client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        *(BATON, "serve", "--port", str(port), "--namespace", "*"),
        env=process_env(TEMPORAL_ADDRESS=address, **served_env.worker_env),
    )
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        killed = GatewayServer(served_env, url, http)
        while not await is_ready(killed):
            assert process.returncode is None
            await asyncio.sleep(0.05)
        with pytest.raises(httpx.TransportError):
            async for event in following(killed, "duo", asked("r")):
                assert event["type"] in ("RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED")
                if process.returncode is None:
                    process.kill()
    await process.wait()
    served_env.model.release()
    async with GatewayServer.running(served_env) as other:
        again = await stream(other, "duo", asked("r"))
    assert [*texts_of(again).values()] == ["a", "b"]
    assert len(served_env.model.requests) == 2


async def is_ready(gateway: GatewayServer) -> bool:
    try:
        return (await gateway.http.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def test_what_a_panel_quotes_is_sent_once(gateway: GatewayServer, asked: Asked) -> None:
    gateway.env.script(line("one", "a1", "a2"), line("two", "b1", "b2"))
    events = await stream(gateway, "rounds", asked("r"))
    assert [*texts_of(events).values()][:4] == ["a1", "b1", "a2", "b2"]
    assert len(texts_of(events)) == len({*texts_of(events).values()})
