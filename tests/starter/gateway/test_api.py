"""Baton's own protocol: runs, their events and their control over HTTP."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest_asyncio
import schemathesis

from baton.contracts.message import Head
from baton.starter.gateway.access import LOCAL
from baton.starter.gateway.app import Gateway
from baton.starter.gateway.runs import TargetQuestion
from baton.testing import Reply
from tests.harness.environment import Environment, agent, call, line, manifest
from tests.harness.gateway import GatewayServer, Json


async def test_a_run_is_started_watched_and_read_over_http(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    targets = await gateway.get("/targets")
    assert [target["id"] for target in targets["targets"]] == ["agent/one", "agent/two", "team/duo"]
    started = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    events = [event async for event in gateway.events(f"/runs/{started['id']}/events")]
    said = [event["data"] for event in events if event["event"] == "message"]
    assert [each["text"] for each in said] == ["a", "b"]
    assert events[-1]["event"] == "run.ended"
    state = await gateway.get(f"/runs/{started['id']}")
    assert state["status"]["phase"] == "Completed"


async def test_a_stream_goes_on_after_the_last_event_that_was_received(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    started = await gateway.post("/runs", {"target": "duo", "input": "Why?"}, 201)
    path = f"/runs/{started['id']}/events"
    await gateway.finished(started["id"])
    events = [event async for event in gateway.events(path)]
    for number, event in enumerate(events[:-1]):
        rest = [each["data"] async for each in gateway.events(path, last_event_id=event["id"])]
        assert rest == [each["data"] for each in events[number + 1 :]]


async def test_the_same_idempotency_key_starts_one_run(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    body = {"target": "agent/one", "input": "Why?"}
    key = uuid.uuid4().hex
    first = await gateway.post("/runs", body, 201, idempotency_key=key)
    again = await gateway.post("/runs", body, 201, idempotency_key=key)
    assert again["id"] == first["id"]
    [_ async for _ in gateway.events(f"/runs/{first['id']}/events")]
    after_its_end = await gateway.post("/runs", body, 201, idempotency_key=key)
    assert after_its_end["id"] == first["id"]
    assert len(gateway.env.model.requests) == 1
    refused = await gateway.post("/runs", {**body, "input": "Other?"}, 409, idempotency_key=key)
    assert refused["error"]["code"] == "conflict"


ORDER = call("order", input="12 desks")
SHOP = [
    agent("buyer", "order"),
    agent("shop"),
    manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {}}),
]


@pytest_asyncio.fixture(loop_scope="session")
async def shop(env: Environment) -> AsyncIterator[GatewayServer]:
    """A gateway before an agent whose orders need approval."""
    async with env.with_manifests(SHOP) as served, GatewayServer.running(served) as gateway:
        served.script(line("buyer", ORDER, "Ordered."), line("shop", "Confirmed."))
        yield gateway


async def waiting(gateway: GatewayServer) -> Json:
    """The first thing that waits for a person."""
    while not (found := (await gateway.get("/inbox"))["waiting"]):
        await asyncio.sleep(0.05)
    first: Json = found[0]
    return first


async def test_a_call_is_approved_over_http_with_other_arguments_once(shop: GatewayServer) -> None:
    run = await shop.post("/runs", {"target": "buyer", "input": "Buy desks."}, 201)
    found = await waiting(shop)
    assert found["root"] == run["id"]
    approval = {"call": found["decision"]["id"], "arguments": {"input": "1 desk"}, "reason": "Enough."}
    first = await shop.post(f"/runs/{run['id']}/approve", approval)
    assert first["decision"]["by"] == "local"
    again = await shop.post(f"/runs/{run['id']}/approve", approval)
    assert again["decision"]["approved"] is True
    events = await shop.finished(run["id"])
    after_its_end = await shop.post(f"/runs/{run['id']}/approve", approval)
    assert after_its_end["decision"]["by"] == "local"
    refused = await shop.post(f"/runs/{run['id']}/reject", {"call": found["decision"]["id"]}, 409)
    assert refused["error"]["code"] == "conflict"
    ended = [event["data"] for event in events if event["event"] == "wait.ended"]
    assert [(each["outcome"], each["by"]) for each in ended] == [("approved", "local")]
    asked = [request.body["messages"][-1]["content"] for request in shop.env.model.requests]
    assert asked.count("1 desk") == 1


async def test_what_controls_a_run_tells_who_has_sent_it(shop: GatewayServer) -> None:
    run = await shop.post("/runs", {"target": "buyer", "input": "Buy desks."}, 201)
    await waiting(shop)
    path = f"/runs/{run['id']}"
    await shop.post(f"{path}/steer", {"text": "Hurry."})
    await shop.post(f"{path}/pause")
    await shop.post(f"{path}/resume")
    await shop.post(f"{path}/terminate", {"reason": "Too late.", "now": True})
    events = {event["event"]: event["data"] for event in await shop.finished(run["id"])}
    assert (events["steered"]["by"], events["steered"]["text"]) == ("local", "Hurry.")
    assert (events["stop.requested"]["by"], events["stop.requested"]["reason"]) == ("local", "Too late.")
    assert events["run.ended"]["phase"] == "Completed"
    await shop.post(f"{path}/terminate", {"reason": "Again."})
    refused = await shop.post(f"{path}/steer", {"text": "Hello?"}, 409)
    assert "has ended" in refused["error"]["message"]


async def test_a_question_follows_the_exact_place_in_a_run_twice(gateway: GatewayServer) -> None:
    gateway.env.answer = lambda request: Reply(text=f"{len(request['messages'])} messages")
    caller = LOCAL
    environ = {**gateway.env.worker_env, "BATON_GATEWAY_NAMESPACES": "*"}
    core = Gateway.of(gateway.env.client, environ)
    one = await core.targets.find(caller, "agent/one")
    first = await core.runs.start(caller, one, TargetQuestion(input="First?"), protocol="test")
    head = (await first.run.result()).responses[0].head
    answers = []
    for text in ("Second?", "Another second?"):
        started = await core.runs.start(caller, one, TargetQuestion(input=text, after=head), protocol="test")
        answers.append((await started.run.result()).message)
    assert answers == ["4 messages", "4 messages"]
    wrong = TargetQuestion(input="?", after=Head(id="nothing", depth=3))
    failed = await (await core.runs.start(caller, one, wrong, protocol="test")).run.result()
    assert (failed.phase, "has no row" in (failed.error or "")) == ("Failed", True)


async def test_the_description_of_the_protocol_is_valid_and_complete(gateway: GatewayServer) -> None:
    described = await gateway.get("/openapi.json")
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        for method in methods:
            response = await gateway.http.request(method, path.replace("{run}", "nothing"), json={})
            assert response.status_code != 405, path
    schema = schemathesis.openapi.from_dict(described)
    assert len([*schema.get_all_operations()]) == sum(map(len, described["paths"].values()))
