"""ARK's API, as its clients use it: queries by name, lists, streams and cancellation."""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.service import RetryConfig

from baton.starter.gateway import runs as runs_of_gateway
from baton.starter.runs import listing
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.converter import DATA_CONVERTER
from baton.testing import Reply
from tests.harness.environment import Environment, agent, call, line, manifest
from tests.harness.gateway import GatewayServer, key_file, read_sse
from tests.harness.tcp_proxy import TcpProxy

Json = dict[str, Any]

QUERY = {"name": "first", "input": "Why?", "target": {"type": "team", "name": "duo"}}


def named(name: str, **more: Any) -> Json:
    return {**QUERY, "name": name, **more}


NULLS = {"memory": None, "parameters": None, "overrides": None, "sessionId": None, "timeout": None, "metadata": None}


@pytest_asyncio.fixture(loop_scope="session")
async def shared(served_env: Any, tmp_path: Path) -> AsyncIterator[tuple[GatewayServer, dict[str, str]]]:
    """A gateway with the keys of two callers."""
    path, keys = key_file(tmp_path, {"ann": {}, "ben": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        yield gateway, {name: f"Bearer {key}" for name, key in keys.items()}


async def chunks_of(gateway: GatewayServer, path: str, **headers: str) -> list[Any]:
    async with gateway.http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event["data"] async for event in read_sse(response)]


def said(chunks: list[Any]) -> dict[str, str]:
    """What each speaker has said."""
    texts: dict[str, str] = {}
    for chunk in chunks:
        if isinstance(chunk, dict) and "agent" in chunk.get("ark", ()):
            content = chunk["choices"][0]["delta"].get("content", "")
            texts[chunk["ark"]["agent"]] = texts.get(chunk["ark"]["agent"], "") + content
    return texts


async def test_a_query_is_created_streamed_read_listed_and_deleted(gateway: GatewayServer) -> None:
    cut_off = {"text": "d", "stop": "length"}
    gateway.env.script(line("one", "a b c"), line("two", cut_off), line("one", "again"), line("two", "again"))
    created = await gateway.post("/v1/queries", {**QUERY, **NULLS, "sessionId": "s-1"})
    assert created["name"] == "first"
    assert created["target"] == QUERY["target"]
    chunks = await chunks_of(gateway, "/stream/first?from-beginning=true&wait-for-query=30s")
    assert said(chunks) == {"one": "a b c", "two": "d"}
    assert chunks[-1] == "[DONE]"
    first = chunks[0]
    assert first["object"] == "chat.completion.chunk"
    assert first["ark"]["query"] == "first"
    assert first["ark"]["session"] == "s-1"
    assert first["ark"]["target"] == "team/duo"
    assert first["ark"]["team"] == "duo"
    assert first["ark"]["model"]
    assert [ended for each in chunks[:-1] if (ended := each["choices"][0]["finish_reason"])] == ["stop", "length"]
    read = await gateway.get("/v1/queries/first")
    completed = chunks[-2]["ark"]["completedQuery"]
    assert (completed["kind"], completed["metadata"]["name"]) == ("Query", "first")
    assert (completed["metadata"]["uid"], completed["status"]) == (read["metadata"]["uid"], read["status"])
    assert read["status"]["phase"] == "done"
    assert read["status"]["response"]["content"] == "d"
    assert read["status"]["conditions"][0]["reason"] == "QuerySucceeded"
    assert read["metadata"]["creationTimestamp"]
    while not (listed := await gateway.get("/v1/queries?page=1&page_size=500&search=WHY"))["items"]:
        await asyncio.sleep(0.02)  # Temporal lists a run a moment after its start
    assert (listed["count"], listed["total"], listed["page_size"]) == (1, 1, 100)
    assert listed["items"][0]["status"]["phase"] == "done"
    assert (await gateway.get("/v1/queries?search=nothing"))["items"] == []
    assert (await gateway.http.delete("/v1/queries/first")).status_code == 204
    missing = await gateway.get("/v1/queries/first", 404)
    assert missing == {"detail": "query 'first' not found in namespace default"}
    again = await gateway.post("/ark/v1/queries", QUERY)
    assert again["name"] == "first"


async def test_a_name_is_used_once_in_a_namespace_by_a_caller(
    shared: tuple[GatewayServer, dict[str, str]],
) -> None:
    gateway, keys = shared
    gateway.env.script(line("one", "a", "b"), line("two", "c", "d"))
    await gateway.post("/v1/queries", named("shared"), authorization=keys["ann"])
    conflict = await gateway.post("/v1/queries", named("shared"), 409, authorization=keys["ann"])
    assert conflict == {"detail": "query 'shared' already exists in namespace default"}
    await gateway.get("/v1/queries/shared", 404, authorization=keys["ben"])
    assert (await gateway.get("/v1/queries", authorization=keys["ben"]))["items"] == []
    await gateway.post("/v1/queries", named("shared"), authorization=keys["ben"])
    for key in keys.values():
        await chunks_of(gateway, "/stream/shared", authorization=key)
        assert (await gateway.get("/v1/queries/shared", authorization=key))["status"]["phase"] == "done"
    refused = await gateway.get("/v1/queries/shared", 401)
    assert "key" in refused["detail"]


async def test_what_a_person_sends_into_a_query_is_streamed_as_that_of_a_user(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", {"text": "b", "held": True}))
    query = await gateway.post("/v1/queries", named("steered"))
    await gateway.env.wait_for_calls(2)
    await gateway.post(f"/runs/{query['metadata']['uid']}/steer", {"text": "Be brief."})
    gateway.env.model.release()
    chunks = await chunks_of(gateway, "/stream/steered?from-beginning=true")
    deltas = [(chunk["ark"].get("agent"), chunk["choices"][0]["delta"]) for chunk in chunks if chunk != "[DONE]"]
    roles = {agent: delta["role"] for agent, delta in deltas if "role" in delta}
    assert roles == {"one": "assistant", "two": "assistant", "local": "user"}
    assert said(chunks) == {"one": "a", "two": "b", "local": "Be brief."}


async def test_a_query_is_canceled_at_once(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", {"delay": 60, "text": "late"}))
    await gateway.post("/v1/queries", named("canceled"))
    await gateway.env.wait_for_calls(1)
    assert (await gateway.get("/v1/queries/canceled"))["status"]["phase"] == "running"
    response = await gateway.http.put("/v1/queries/canceled/cancel")
    assert response.status_code == 200
    chunks = await chunks_of(gateway, "/stream/canceled?from-beginning=true")
    assert chunks[-3]["error"]["code"] == "canceled"
    assert chunks[-2]["ark"]["completedQuery"]["status"]["phase"] == "canceled"
    assert (await gateway.get("/v1/queries/canceled"))["status"]["phase"] == "canceled"
    assert (await gateway.http.patch("/ark/v1/namespaces/default/queries/canceled/cancel")).status_code == 200


async def test_a_changed_query_is_refused_except_for_its_cancellation(
    shared: tuple[GatewayServer, dict[str, str]],
) -> None:
    gateway, keys = shared
    gateway.env.script(line("one", {"delay": 60, "text": "late"}))
    headers = {"authorization": keys["ann"]}
    await gateway.post("/v1/queries", named("put", conversationId="c", timeout="5m"), authorization=keys["ann"])
    path = "/v1/queries/put"
    same = {**QUERY, **NULLS, "name": "put", "conversationId": "c", "timeout": "5m", "cancel": False}
    for changes, status in (({}, 200), ({"input": "How?"}, 409), ({"timeout": "6m"}, 409), ({"cancel": True}, 200)):
        response = await gateway.http.put(path, json={**same, **changes}, headers=headers)
        assert response.status_code == status, response.text
    await chunks_of(gateway, "/stream/put", **headers)
    read = await gateway.get(path, authorization=keys["ann"])
    assert read["status"]["phase"] == "canceled"
    assert (await gateway.http.put(path, json=read, headers=headers)).status_code == 200
    assert (await gateway.http.put(path, json=read, headers={"authorization": keys["ben"]})).status_code == 404


async def test_an_open_query_is_ended_by_its_deletion(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", {"delay": 60, "text": "late"}))
    await gateway.post("/v1/queries", named("deleted"))
    await gateway.env.wait_for_calls(1)
    assert (await gateway.http.delete("/v1/queries/deleted")).status_code == 204


async def test_queries_are_listed_while_no_worker_can_tell_their_status(env: Environment) -> None:
    async with contextlib.AsyncExitStack() as stack:
        quick = dataclasses.replace(env, variables={"BATON_GRACEFUL_SHUTDOWN": "0.2"})
        async with quick.with_manifests([agent("one")]) as served:
            gateway = await stack.enter_async_context(GatewayServer.running(served))
            served.script(line("one", "a"))
            one = {"target": {"type": "agent", "name": "one"}}
            await gateway.post("/v1/queries", named("ended-before", **one))
            await chunks_of(gateway, "/stream/ended-before?from-beginning=true")
            served.script(line("one", {"held": True, "text": "b"}))
            created = await gateway.post("/v1/queries", named("still-open", **one))
            await served.wait_for_calls(2)
        for query in ("", "?search=why"):
            phases: dict[str, str] = {}
            async with asyncio.timeout(30):  # Temporal's list knows of what has happened a moment later
                while phases != {"ended-before": "done", "still-open": "running"}:
                    listed = await gateway.get(f"/v1/queries{query}")
                    phases = {each["name"]: each["status"]["phase"] for each in listed["items"]}
            newest = listed["items"][0]
            assert (newest["name"], newest["input"], newest["namespace"]) == ("still-open", "Why?", "default")
            assert newest["creationTimestamp"]
        await env.client.get_workflow_handle(created["metadata"]["uid"]).terminate()


async def test_a_stream_waits_for_its_query(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    missing = await gateway.get("/stream/awaited", 404)
    assert "not found" in missing["detail"]
    reading = asyncio.create_task(chunks_of(gateway, "/stream/awaited?from-beginning=true&wait-for-query=30s"))
    await gateway.post("/v1/queries", named("awaited"))
    assert said(await reading) == {"one": "a", "two": "b"}


@pytest.mark.slow
async def test_a_stream_that_an_outage_of_temporal_ends_says_so(
    served_env: Environment, server: EmbeddedServer
) -> None:
    served_env.script(line("one", {"text": "a", "held": True}), line("two", "b"))
    hasty = RetryConfig(max_retries=1, max_elapsed_time_millis=100)  # by itself, the SDK tries again for seconds
    async with TcpProxy(server.port) as proxy:
        client = await Client.connect(proxy.address, data_converter=DATA_CONVERTER, retry_config=hasty)
        async with GatewayServer.running(dataclasses.replace(served_env, client=client)) as gateway:
            await gateway.post("/v1/queries", named("cut-off"))
            async with gateway.http.stream("GET", "/stream/cut-off") as response:
                await served_env.wait_for_calls(1)
                outage = asyncio.create_task(proxy.cut(600))
                *_, error, last = [event["data"] async for event in read_sse(response)]
                outage.cancel()
    assert error == {
        "error": {"message": "Temporal can't be reached now", "type": "server_error", "code": "unavailable"}
    }
    assert last == "[DONE]"
    served_env.model.release()


@pytest.mark.full
async def test_a_list_searches_a_bounded_number_of_runs(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.env.answer = lambda _: Reply(text="a")
    for name in ("oldest", "older", "newest"):
        await gateway.post("/v1/queries", named(name, target={"type": "agent", "name": "one"}))
        await chunks_of(gateway, f"/stream/{name}?from-beginning=true")
    while (await gateway.get("/runs?phase=Completed"))["runs"][2:] == []:
        await asyncio.sleep(0.02)
    monkeypatch.setattr(runs_of_gateway, "search_runs", functools.partial(listing.search_runs, most=2))
    listed = await gateway.get("/v1/queries")
    assert ([each["name"] for each in listed["items"]], listed["total"]) == (["newest", "older"], 2)


async def leave(gateway: GatewayServer, method: str, path: str) -> None:
    """Makes a request to a gateway with one slot, leaves while it is in progress, and waits until the slot is free."""

    async def is_free() -> bool:
        return (await gateway.http.get("/v1/namespaces")).is_success

    async with asyncio.timeout(20), httpx.AsyncClient(base_url=gateway.url) as leaving:
        while True:
            asking = asyncio.create_task(leaving.request(method, path, timeout=None))
            while not asking.done() and await is_free():
                await asyncio.sleep(0.02)
            if not asking.done():
                break
            assert asking.result().status_code == 429, "the look at the slot was in it"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while not await is_free():
            await asyncio.sleep(0.02)


async def test_a_stream_does_not_wait_for_its_query_after_its_client_has_left(served_env: Environment) -> None:
    async with GatewayServer.running(served_env, BATON_GATEWAY_MAX_STREAMS="1") as gateway:
        await leave(gateway, "GET", "/stream/never?wait-for-query=300s")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["ark", "responses"])
async def test_a_deletion_does_not_wait_for_the_end_of_a_run_after_its_client_has_left(
    env: Environment, protocol: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with env.with_manifests([agent("one")]) as served:
            gateway = await stack.enter_async_context(GatewayServer.running(served, BATON_GATEWAY_MAX_STREAMS="1"))
            served.script(line("one", {"held": True, "text": "b"}))
            if protocol == "ark":
                query = named("kept", target={"type": "agent", "name": "one"})
                run = (await gateway.post("/v1/queries", query))["metadata"]["uid"]
                path = "/v1/queries/kept"
            else:
                asked = {"model": "agent/one", "input": "Why?", "background": True}
                response = (await gateway.post("/v1/responses", asked))["id"]
                run = response.removeprefix("resp_")
                path = f"/v1/responses/{response}"
            await served.wait_for_calls(1)
        await leave(gateway, "DELETE", path)
        await env.client.get_workflow_handle(run).terminate()


async def test_the_stream_has_tool_calls_and_an_answer_by_termination_once(env: Environment) -> None:
    async with env.with_manifests([agent("ender", "terminate")]) as own, GatewayServer.running(own) as gateway:
        own.script(line("ender", call("terminate", "I am done.", response="All is said.")))
        await gateway.post("/v1/queries", named("ending", target={"type": "agent", "name": "ender"}))
        for _ in range(2):
            chunks = await chunks_of(gateway, "/stream/ending?from-beginning=true")
            assert said(chunks) == {"ender": "I am done.All is said."}
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
            calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
            assert [each["function"]["name"] for each in calls] == ["terminate"]


async def test_a_client_sends_only_headers_that_a_model_allows(env: Environment) -> None:
    config = {"openai": {"baseUrl": "https://models.example.com/v1"}}
    model = manifest("Model", "m", {"type": "openai", "model": {"value": "gpt"}, "config": config})
    async with (
        env.with_manifests([model, agent("asked", modelRef={"name": "m"})]) as own,
        GatewayServer.running(own) as gateway,
    ):
        override = {"resourceType": "model", "headers": [{"name": "x-team", "value": {"value": "a"}}]}
        asked = named("headers", target={"type": "agent", "name": "asked"}, overrides=[override])
        refused = await gateway.post("/v1/queries", asked, 422)
        assert "Model/default/m does not allow a client to send x-team" in refused["detail"]
        [listed] = (await gateway.get("/ark/v1/models"))["items"]
        assert (listed["name"], listed["provider"], listed["model"]) == ("m", "openai", "gpt")
        assert "example.com" not in (await gateway.http.get("/ark/v1/models/m")).text


async def test_a_selector_finds_the_first_target(gateway: GatewayServer) -> None:
    selector = {"matchLabels": {"a": "b"}}
    refused = await gateway.post("/v1/queries", {"name": "q", "input": "Why?", "selector": selector}, 404)
    assert "selector" in refused["detail"]
    none = await gateway.post("/v1/queries", {"name": "q", "input": "Why?"}, 422)
    assert "target" in none["detail"]


async def test_a_client_gets_no_secrets_no_other_account_and_sends_no_headers(gateway: GatewayServer) -> None:
    secret = {"name": "p", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    refused = await gateway.post("/v1/queries", named("refused", input="{{.p}}", parameters=[secret]), 422)
    assert "only give values" in refused["detail"]
    await gateway.post("/v1/queries", named("refused", serviceAccount="admin"), 403)
    override = {"resourceType": "model", "headers": [{"name": "Authorization", "value": {"value": "k"}}]}
    await gateway.post("/v1/queries", named("refused", overrides=[override]), 422)
    await gateway.post("/v1/queries", named("refused", target={"type": "model", "name": "default"}), 404)
    await gateway.post("/v1/queries", named("refused", target={"type": "agent", "name": "nobody"}), 404)
    for broken in (named("Not A Name"), named("refused", input=5), named("refused", timeout="soon"), {}):
        assert "detail" in await gateway.post("/v1/queries", broken, 422)
    assert not gateway.env.model.requests


async def test_what_is_served_is_listed_without_prompts_and_addresses(gateway: GatewayServer) -> None:
    agents = await gateway.get("/v1/agents")
    assert [agent["name"] for agent in agents["items"]] == ["one", "two"]
    assert agents["count"] == agents["total"] == 2
    teams = await gateway.get("/ark/v1/namespaces/default/teams")
    assert teams["items"][0]["members_count"] == 2
    team = await gateway.get("/v1/teams/duo")
    assert team["members"] == [{"name": "one", "type": "agent"}, {"name": "two", "type": "agent"}]
    agent = await gateway.get("/v1/agents/one")
    assert "prompt" not in agent
    assert (await gateway.get("/ark/v1/models"))["items"] == []
    assert (await gateway.get("/v1/tools"))["items"] == []
    assert (await gateway.get("/v1/agents?namespace=other"))["items"] == []
    assert (await gateway.get("/v1/namespaces"))["items"] == [{"name": "default"}]
    await gateway.get("/v1/agents/nobody", 404)
    assert (await gateway.get("/health"))["status"] == "healthy"
    assert (await gateway.get("/ark/ready"))["status"] == "ready"
