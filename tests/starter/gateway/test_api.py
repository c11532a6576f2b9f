"""Baton's own protocol: runs, their events and their control over HTTP."""

import asyncio
import contextlib
import functools
import json
import logging
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import schemathesis

from baton.contracts.message import Head
from baton.contracts.scope import ACCOUNT, CALLER
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.gateway import runs as runs_of_gateway
from baton.starter.gateway.access import LOCAL
from baton.starter.gateway.app import Gateway
from baton.starter.gateway.errors import NotFoundError
from baton.starter.gateway.question import TargetQuestion
from baton.starter.gateway.settings import GatewaySettings
from baton.starter.gateway.targets import LISTED_SECONDS, Targets
from baton.starter.history.fork import ForkChanges, fork_run
from baton.starter.operations.manifests import manifests_of_workers
from baton.starter.runs import listing
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import PROGRAM, connect
from baton.temporal.encryption import Key
from baton.temporal.executions import delete_execution
from baton.testing import Reply
from baton.worker import run_worker
from tests.harness.environment import Environment, agent, call, line, manifest
from tests.harness.gateway import GatewayServer, Json, key_file
from tests.harness.postgres import execute


@pytest.mark.full
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


@pytest.mark.full
async def test_a_stream_goes_on_after_the_last_event_that_was_received(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    started = await gateway.post("/runs", {"target": "duo", "input": "Why?"}, 201)
    path = f"/runs/{started['id']}/events"
    await gateway.finished(started["id"])
    events = [event async for event in gateway.events(path)]
    for number, event in enumerate(events[:-1]):
        rest = [each["data"] async for each in gateway.events(path, last_event_id=event["id"])]
        assert rest == [each["data"] for each in events[number + 1 :]]


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({"target": "duo"}, "input", "is missing"),
        ({"target": "duo", "input": 5}, "input", "is a number, must be text"),
        ({"target": "duo", "input": {}}, "input", "is a mapping, must be text or a list"),
        ({"target": "duo", "input": "x", "timeot": "5m"}, "timeot", "did you mean 'timeout'?"),
        ({"target": "nosuch", "input": "x"}, "target", "there is no 'nosuch' here"),
        ([], None, "the body: is a list, must be a mapping"),
    ],
)
async def test_a_wrong_request_is_refused_with_the_field_and_what_is_wrong_with_it(
    gateway: GatewayServer, body: Json | list[Json], param: str | None, reason: str
) -> None:
    response = await gateway.http.post("/runs", json=body)
    error = response.json()["error"]
    assert response.status_code in (400, 404)
    assert error.get("param") == param
    assert reason in error["message"]


async def test_an_unknown_path_is_refused_with_where_the_others_are(gateway: GatewayServer) -> None:
    for path in ("/nosuch", "/v1/embeddings"):
        error = (await gateway.get(path, 404))["error"]
        assert error["code"] == "not_found"
        assert "/openapi.json" in error["message"]


async def test_a_question_with_an_image_is_refused_where_personal_data_is_redacted(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    variables = {"BATON_REDACT": str(tmp_path / "patterns.yaml")}
    (tmp_path / "patterns.yaml").write_text(r"email: '\S+@\S+'")
    client = await connect(server.address, variables)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGFsbG8="}}
    message = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}
    loaded = load_documents([Document("manifests.yaml", agent("one"), {})])
    async with (
        Environment.running(client, tmp_path, loaded, variables=variables) as env,
        GatewayServer.running(env) as gateway,
    ):
        for path, body in (
            ("/runs", {"target": "agent/one", "input": [message]}),
            ("/v1/chat/completions", {"model": "agent/one", "messages": [message]}),
        ):
            refused = await gateway.post(path, body, 400)
            assert "images and files can't be redacted" in refused["error"]["message"]


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


@pytest.mark.full
async def test_two_runs_are_compared_by_a_caller_who_may_see_both(gateway: GatewayServer) -> None:
    runs = []
    for answer in ("b", "c"):
        gateway.env.script(line("one", "a"), line("two", answer))
        started = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
        await gateway.finished(started["id"])
        runs.append(started["id"])
    a, b = runs
    difference = await gateway.get(f"/runs/{a}/diff/{b}")
    assert (difference["a"]["id"], difference["b"]["id"]) == (a, b)
    assert (difference["shared"], difference["equal"], difference["differsIn"]) == (0, 1, "words")
    (pair,) = difference["pairs"]
    assert (pair["a"]["words"], pair["b"]["words"]) == ("b", "c")
    assert difference["truncated"] is False
    refused = await gateway.get(f"/runs/{a}/diff/nobody", status=404)
    assert refused["error"]["code"] == "not_found"


@pytest.mark.full
async def test_two_forks_are_compared_without_the_steps_of_a_forked_run_that_the_caller_may_not_see(
    served_env: Environment, tmp_path: Path
) -> None:
    env = served_env
    env.script(line("one", "only in the run of alice"), line("two", "b"))
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}, "root": {"allRuns": True}})
    async with GatewayServer.running(env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        run = (await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201, key=keys["alice"]))["id"]
        await gateway.finished(run, key=keys["alice"])
        env.script(line("one", "again"), line("two", "b"))
        owner = {CALLER: "bob", ACCOUNT: str(LOCAL.account)}
        forks = []
        for at in ("0", "1"):
            handle = env.client.get_workflow_handle(run)
            forks.append((await fork_run(env.client, handle, at, ForkChanges(), memo=owner)).id)
            await gateway.finished(forks[-1], key=keys["bob"])
        for caller, sees in (("root", True), ("bob", False)):
            difference = await gateway.get(f"/runs/{forks[0]}/diff/{forks[1]}", key=keys[caller])
            assert ("only in the run of alice" in json.dumps(difference["pairs"])) is sees


@pytest.mark.full
async def test_a_run_is_forked_once_for_the_same_idempotency_key(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a", "A"), line("two", "b", "B"))
    started = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    await gateway.finished(started["id"])
    asked = len(gateway.env.model.requests)
    key = uuid.uuid4().hex
    body = {"at": "1", "say": "Be brief."}
    forked = await gateway.post(f"/runs/{started['id']}/fork", body, 201, idempotency_key=key)
    await gateway.finished(forked["id"])
    again = await gateway.post(f"/runs/{started['id']}/fork", body, 201, idempotency_key=key)
    assert again["id"] == forked["id"] != started["id"]
    status = (await gateway.get(f"/runs/{forked['id']}"))["status"]
    assert (status["phase"], status["forkedFrom"], status["forkedAt"]) == ("Completed", started["id"], "1")
    assert len(gateway.env.model.requests) == asked + 1
    assert "Be brief." in str(gateway.env.model.requests[-1].body)
    other = await gateway.post(f"/runs/{started['id']}/fork", {"at": "0"}, 409, idempotency_key=key)
    assert other["error"]["code"] == "conflict"
    wrong = await gateway.post(f"/runs/{started['id']}/fork", {"at": "9"}, 400)
    assert "there is no turn '9'" in wrong["error"]["message"]
    for long in ("1/" * 20_000, "1" * 5_000):
        wrong = await gateway.post(f"/runs/{started['id']}/fork", {"at": long}, 400)
        assert (wrong["error"]["param"], "1000 characters" in wrong["error"]["message"]) == ("at", True)


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


async def test_a_run_that_the_gateway_has_no_key_to_read_does_not_hide_what_waits_in_others(
    gateway: GatewayServer,
) -> None:
    address = gateway.env.client.service_client.config.target_host
    other = await connect(address, {"BATON_ENCRYPTION_KEYS": str(Key.generate("other"))})
    queue = f"{gateway.env.task_queue}{PROGRAM}other"
    handle = await other.start_workflow("query", id=f"{uuid.uuid4()}", task_queue=queue, memo={"namespace": "default"})
    try:
        while handle.id not in [run["id"] for run in (await gateway.get("/runs"))["runs"]]:
            await asyncio.sleep(0.02)
        assert await gateway.get("/inbox") == {"waiting": []}
    finally:
        await handle.terminate()
        run_id = handle.first_execution_run_id or ""
        await delete_execution(other, handle.id, run_id)


@pytest.mark.full
async def test_a_call_is_approved_over_http_with_other_arguments_once(shop: GatewayServer) -> None:
    run = await shop.post("/runs", {"target": "buyer", "input": "Buy desks."}, 201)
    found = await waiting(shop)
    assert found["root"] == run["id"]
    approval = {"call": found["decision"]["id"], "arguments": {"input": "1 desk"}, "reason": "Enough."}
    first = await shop.post(f"/runs/{run['id']}/approve", approval)
    assert first["decision"]["by"] == "local"
    assert await shop.post(f"/runs/{run['id']}/approve", approval) == first
    events = await shop.finished(run["id"])
    assert await shop.post(f"/runs/{run['id']}/approve", approval) == first
    call = found["decision"]["id"]
    for other in ({"arguments": {"input": "9 desks"}}, {"reason": "Why not?"}, {"remember": True}, {}):
        refused = await shop.post(f"/runs/{run['id']}/approve", {"call": call, **other}, 409)
    refused = await shop.post(f"/runs/{run['id']}/reject", {"call": call}, 409)
    assert refused["error"]["code"] == "conflict"
    ended = [event["data"] for event in events if event["event"] == "wait.ended"]
    assert [(each["outcome"], each["by"]) for each in ended] == [("approved", "local")]
    asked = [request.body["messages"][-1]["content"] for request in shop.env.model.requests]
    assert asked.count("1 desk") == 1


@pytest.mark.full
async def test_what_the_last_workers_had_is_served_while_none_is_live(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.starter.gateway.targets.FRESH_SECONDS", 0)
    async with contextlib.AsyncExitStack() as stack:
        async with env.with_manifests(SHOP) as served:
            gateway = await stack.enter_async_context(GatewayServer.running(served))
            served.script(line("buyer", ORDER), line("shop", "Sold."))
            done = await gateway.post("/runs", {"target": "shop", "input": "Sell."}, 201)
            await gateway.finished(done["id"])
            open_run = await gateway.post("/runs", {"target": "buyer", "input": "Buy desks."}, 201)
            call = (await waiting(gateway))["decision"]["id"]
        assert [target["id"] for target in (await gateway.get("/targets"))["targets"]] == ["agent/buyer", "agent/shop"]
        run = await gateway.post("/runs", {"target": "buyer", "input": "Buy desks."}, 201)
        await gateway.post(f"/runs/{run['id']}/cancel")
        await gateway.post("/runs", {"target": "nobody", "input": "?"}, 503)  # the next worker may have it
        assert (await gateway.get(f"/runs/{done['id']}"))["status"]["message"] == "Sold."
        await gateway.post(f"/runs/{open_run['id']}/approve", {"call": call}, 503)
        await gateway.post(f"/runs/{open_run['id']}/cancel")
        # One that has started since then does not know what the next worker has.
        other = await stack.enter_async_context(GatewayServer.running(served))
        refused = await other.post("/runs", {"target": "buyer", "input": "Buy desks."}, 503)
        assert refused["error"]["code"] == "unavailable"
        await other.get("/v1/models/agent/buyer", 503)


@pytest.mark.slow
async def test_a_deletion_waits_for_a_worker_only_for_a_limited_time_and_is_finished_when_it_is_repeated(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.starter.gateway.run.DELETION_SECONDS", 2)
    query = {"name": "q", "input": "Buy desks.", "target": {"type": "agent", "name": "buyer"}}
    async with contextlib.AsyncExitStack() as stack:
        async with env.with_manifests(SHOP) as served:
            gateway = await stack.enter_async_context(GatewayServer.running(served))
            served.script(line("buyer", ORDER, ORDER))
            background = {"model": "buyer", "input": "Buy desks.", "background": True}
            response = await gateway.post("/v1/responses", background)
            await gateway.post("/v1/queries", query)
            while len((await gateway.get("/inbox"))["waiting"]) < 2:
                await asyncio.sleep(0.05)
        paths = [f"/v1/responses/{response['id']}", "/v1/queries/q"]
        async with asyncio.timeout(30):
            refused = [await gateway.http.delete(path) for path in paths]
        assert [each.status_code for each in refused] == [503, 503]
        assert all(int(each.headers["retry-after"]) > 0 for each in refused)
        assert all("has not ended yet: delete it again" in each.text for each in refused)
        assert (await gateway.get(paths[0]))["status"] == "in_progress", "nothing of it is deleted"
        # With a worker it takes a moment, which may be longer than a gateway would wait on a busy machine.
        monkeypatch.setattr("baton.starter.gateway.run.DELETION_SECONDS", 120)
        async with run_worker(env.client, served.catalog, served.worker_env):
            for path in paths:
                deleted = await gateway.http.delete(path, timeout=120)
                assert deleted.is_success, deleted.text
                await gateway.get(path, 404)


async def test_what_is_served_stays_while_the_manifests_of_a_live_worker_can_not_be_read(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.starter.gateway.targets.FRESH_SECONDS", 0)
    async with env.with_manifests(SHOP) as served, GatewayServer.running(served) as gateway:
        before = await gateway.get("/targets")
        assert before["targets"]
        await execute(served.journal_address, "delete from baton_worker_manifests")
        assert await gateway.get("/targets") == before


@pytest.mark.full
async def test_what_a_live_worker_may_have_is_not_missing_for_a_gateway_that_can_not_read_its_manifests_yet(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.starter.gateway.targets.FRESH_SECONDS", 0)
    async with env.with_manifests(SHOP) as served, GatewayServer.running(served) as gateway:

        async def statuses(name: str) -> set[int]:
            """What each protocol responds about an agent of that name."""
            message = {"role": "user", "parts": [{"text": "?"}], "messageId": "1"}
            run: Json = {"threadId": "1", "runId": "1", "messages": [{"id": "1", "role": "user", "content": "?"}]}
            run |= {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
            responses = [
                await gateway.http.get(f"/v1/models/agent/{name}"),
                await gateway.http.get(f"/v1/agents/{name}"),
                await gateway.http.get(f"/targets/agent/default/{name}/drawing"),
                await gateway.http.get(f"/a2a/agent/{name}/.well-known/agent-card.json"),
                await gateway.http.post("/runs", json={"target": f"agent/{name}", "input": "?"}),
                await gateway.http.post("/v1/responses", json={"model": f"agent/{name}", "input": "?"}),
                await gateway.http.post(f"/a2a/agent/{name}/message:send", json={"message": message}),
                await gateway.http.post(f"/ag-ui/agent/{name}", json=run),
            ]
            retried = {response.status_code == 503 for response in responses if "retry-after" in response.headers}
            assert retried <= {True}, "what is unknown may be asked for again"
            return {response.status_code for response in responses}

        while await statuses("nobody") != {404}:
            await asyncio.sleep(0.05)
        await execute(served.journal_address, "update baton_worker_manifests set digest = 'late ' || digest")
        async with GatewayServer.running(served) as gateway:
            assert await statuses("shop") == await statuses("nobody") == {503}
            await execute(served.journal_address, "update baton_worker_manifests set digest = substr(digest, 6)")
            await gateway.get("/v1/models/agent/shop")
            assert await statuses("nobody") == {404}


async def test_what_is_in_the_files_of_a_worker_stays_for_a_while_if_only_others_are_listed(
    env: Environment,
) -> None:
    now = 0.0
    async with env.with_manifests([agent("stays")]) as served:
        environ = {**served.worker_env, "BATON_GATEWAY_NAMESPACES": "*"}
        targets = Targets(env.client, GatewaySettings.of(environ), environ, lambda: now)

        async def served_at(time: float) -> list[str]:
            nonlocal now
            now = time
            return [target.id for target in await targets.of(LOCAL)]

        late = load_documents([Document("late.yaml", agent("late"), {})])
        other = await connect(env.client.service_client.config.target_host)  # a client has one worker of a task queue
        async with run_worker(other, late, served.worker_env):
            while await served_at(now + 3) != ["agent/late", "agent/stays"]:
                await asyncio.sleep(0.05)
        while (await manifests_of_workers(env.client, served.worker_env)).workers > 1:
            await asyncio.sleep(0.05)
        assert await served_at(now + LISTED_SECONDS - 1) == ["agent/late", "agent/stays"]
        assert await served_at(now + 3) == ["agent/stays"]
        with pytest.raises(NotFoundError):
            await targets.find(LOCAL, "agent/late")


async def test_a_message_that_is_sent_again_with_its_key_arrives_once(shop: GatewayServer) -> None:
    run = await shop.post("/runs", {"target": "buyer", "input": "Buy desks."}, 201)
    await waiting(shop)
    path = f"/runs/{run['id']}"
    for key in ("first", "first", "second"):
        await shop.post(f"{path}/steer", {"text": "Hurry."}, idempotency_key=key)
    await shop.post(f"{path}/terminate", {"reason": "Enough.", "now": True})
    steered = [event for event in await shop.finished(run["id"]) if event["event"] == "steered"]
    assert len(steered) == 2


async def test_what_controls_a_run_tells_who_has_sent_it(shop: GatewayServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton.runs")
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
    by_gateway = [each.__dict__ for each in caplog.records if "verified" in each.__dict__]
    logged = [(each["run"], each["request"], each["by"], each["verified"]) for each in by_gateway]
    assert logged[:4] == [
        (run["id"], request, "local", False) for request in ("steer", "pause", "resume", "terminate_team")
    ]


@pytest.mark.full
async def test_a_question_follows_the_exact_place_in_a_run_twice(gateway: GatewayServer) -> None:
    gateway.env.answer = lambda request: Reply(text=f"{len(request['messages'])} messages")
    caller = LOCAL
    environ = {**gateway.env.worker_env, "BATON_GATEWAY_NAMESPACES": "*"}
    core = Gateway.of(gateway.env.client, environ)
    one = await core.targets.find(caller, "agent/one")
    first = await core.runs.start(caller, one, TargetQuestion(input="First?"), protocol="test")
    head = (await first.result()).responses[0].head
    answers = []
    for text in ("Second?", "Another second?"):
        started = await core.runs.start(caller, one, TargetQuestion(input=text, after=head), protocol="test")
        answers.append((await started.result()).message)
    assert answers == ["4 messages", "4 messages"]
    wrong = TargetQuestion(input="?", after=Head(id="nothing", depth=3))
    failed = await (await core.runs.start(caller, one, wrong, protocol="test")).result()
    assert (failed.phase, "has no row" in (failed.error or "")) == ("Failed", True)


@pytest.mark.full
async def test_the_description_of_the_protocol_is_valid_and_complete(gateway: GatewayServer) -> None:
    described = await gateway.get("/openapi.json")
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        for method in methods:
            response = await gateway.http.request(method, path.replace("{run}", "nothing"), json={})
            assert response.status_code != 405, path
    schema = schemathesis.openapi.from_dict(described)
    assert len([*schema.get_all_operations()]) == sum(map(len, described["paths"].values()))


async def listed(gateway: GatewayServer, count: int, **filters: str) -> list[str]:
    """The ids of the runs that fit the filters, once there are so many: Temporal lists a run a moment late."""
    while True:
        response = await gateway.http.get("/runs", params=filters)
        assert response.status_code == 200, response.text
        if len(runs := response.json()["runs"]) == count:
            return [run["id"] for run in runs]
        await asyncio.sleep(0.05)


@pytest.mark.full
async def test_runs_are_filtered_by_everything_that_a_list_shows(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a", "c"), line("two", "b"))
    team = (await gateway.post("/runs", {"target": "team/duo", "input": "Why is the sea salty?"}, 201))["id"]
    await gateway.finished(team)
    agent_run = (await gateway.post("/runs", {"target": "agent/one", "input": "Who's there?"}, 201))["id"]
    await gateway.finished(agent_run)
    assert await listed(gateway, 2) == [agent_run, team]
    assert await listed(gateway, 1, team="duo") == [team]
    assert await listed(gateway, 1, strategy="round-robin") == [team]
    assert await listed(gateway, 1, text="SEA SALTY") == [team]
    assert await listed(gateway, 1, text=agent_run[:12]) == [agent_run]
    assert await listed(gateway, 2, phase="Completed") == [agent_run, team]
    assert await listed(gateway, 2, caller="local") == [agent_run, team]
    for nothing in ({"team": "d'uo \\"}, {"caller": "ann"}, {"phase": "Running"}, {"startedAfter": "2100-01-01"}):
        assert await listed(gateway, 0, **nothing) == []
    assert await listed(gateway, 0, startedBefore="2020-01-01T00:00:00Z") == []
    await gateway.get("/runs?startedAfter=yesterday", 400)
    unknown = (await gateway.get("/runs?phase=completed", 400))["error"]
    assert (unknown["param"], "did you mean 'Completed'?" in unknown["message"]) == ("phase", True)
    shown = (await gateway.get("/runs?team=duo"))["runs"][0]
    assert (shown["question"], shown["caller"], shown["strategy"]) == ("Why is the sea salty?", "local", "round-robin")


@pytest.mark.parametrize("by_signal", [True, False])
async def test_a_canceled_run_is_listed_as_canceled_whoever_has_canceled_it(
    gateway: GatewayServer, by_signal: bool
) -> None:
    gateway.env.script(line("one", {"text": "a", "held": True}))
    run = (await gateway.post("/runs", {"target": "agent/one", "input": "Why?"}, 201))["id"]
    if by_signal:
        await gateway.post(f"/runs/{run}/cancel")
    else:
        await gateway.env.client.get_workflow_handle(run).cancel()
    await gateway.finished(run)
    assert await listed(gateway, 1, phase="Canceled") == [run]
    assert await listed(gateway, 0, phase="Failed") == []
    assert (await gateway.get("/runs"))["runs"][0]["state"] == "Canceled"


@pytest.mark.full
async def test_the_progress_of_open_and_of_ended_runs_is_listed_together(shop: GatewayServer) -> None:
    run = (await shop.post("/runs", {"target": "buyer", "input": "Buy desks."}, 201))["id"]
    call_id = (await waiting(shop))["decision"]["id"]
    (now,) = (await shop.get(f"/progress?runs={run},nothing"))["runs"]
    assert (now["id"], now["phase"], now["waits"]) == (run, "InputRequired", 1)
    await shop.post(f"/runs/{run}/reject", {"call": call_id})
    await shop.finished(run)
    while (then := (await shop.get(f"/progress?runs={run}"))["runs"][0])["phase"] != "Completed":
        await asyncio.sleep(0.05)
    assert (then["waits"], then["message"]) == (0, "Ordered.")
    assert then["tokens"] > now["tokens"]
    await shop.get(f"/progress?runs={','.join(['x'] * 101)}", 400)


async def test_the_runs_of_a_caller_are_listed_in_pages_each_of_which_searches_few_runs(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.env.script(line("one", *"abcdefg"))
    ids = []
    for _ in range(5):
        ids.append((await gateway.post("/runs", {"target": "agent/one", "input": "Why?"}, 201))["id"])
        await gateway.finished(ids[-1])
    await listed(gateway, 5, phase="Completed")
    search = listing.search_runs
    monkeypatch.setattr(runs_of_gateway, "search_runs", functools.partial(search, most=2))

    async def pages(query: str) -> list[list[str]]:
        found, place = [], ""
        while True:
            page = await gateway.get(f"/runs?{query}{place}")
            found.append([run["id"] for run in page["runs"]])
            if "before" not in page:
                return found
            place = f"&before={page['before']}"

    assert await pages("limit=10") == [ids[:2:-1], ids[2:0:-1], ids[:1]]
    assert await pages("limit=10&caller=local") == [ids[:2:-1], ids[2:0:-1], ids[:1]]
    assert await pages("limit=10&caller=ann") == [[], [], []], "runs that do not fit are searched as well"
    assert await pages("limit=1") == [[run] for run in reversed(ids)]
