"""Baton's own protocol: runs, their events and their control over HTTP."""

from tests.harness.environment import line
from tests.harness.gateway import GatewayServer


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
    events = [event async for event in gateway.events(path)]
    for number, event in enumerate(events[:-1]):
        rest = [each["id"] async for each in gateway.events(path, last_event_id=event["id"])]
        assert rest == [each["id"] for each in events[number + 1 :]]


async def test_the_same_idempotency_key_starts_one_run(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    body = {"target": "agent/one", "input": "Why?"}
    first = await gateway.post("/runs", body, 201, idempotency_key="k")
    again = await gateway.post("/runs", body, 201, idempotency_key="k")
    assert again["id"] == first["id"]
    [_ async for _ in gateway.events(f"/runs/{first['id']}/events")]
    after_its_end = await gateway.post("/runs", body, 201, idempotency_key="k")
    assert after_its_end["id"] == first["id"]
    assert len(gateway.env.model.requests) == 1
    refused = await gateway.post("/runs", {**body, "input": "Other?"}, 409, idempotency_key="k")
    assert refused["error"]["code"] == "conflict"
