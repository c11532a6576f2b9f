"""Tests of HTTP tools in a run: what the model reads, what the server gets, what is retried, and what is stored."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from baton.activities.tool.http import MAX_BYTES
from baton.activities.tool.tool import ToolDefinition
from baton.activities.tool_calls import _as_arguments
from baton.resources.agent import Agent
from baton.resources.catalog import Catalog
from baton.resources.documents import Document
from baton.resources.loader import load_documents, load_files
from baton.resources.problems import ManifestError
from baton.resources.tool import Tool
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.manifests import Writer
from tests.harness.tool_server import Answer, ToolServer

TOKEN = "token-0123456789-hidden"
SAFE = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"token": f"{TOKEN}\n"}}
OF_SAFE = {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "token"}}}
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker that was given a Secret."""
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(SAFE))
    async with Environment.running(client, tmp_path, load_files([tmp_path / "secret.yaml"])) as env:
        yield env


def tool(url: str, schema: Json = CITY, *, name: str = "weather", parameters: Any = (), **http: Any) -> Json:
    spec = {"type": "http", "description": "Tells the weather.", "inputSchema": schema, "http": {"url": url, **http}}
    return manifest("Tool", name, {**spec, **({"parameters": parameters} if parameters else {})})


async def used(env: Environment, given: Json, *says: Any, options: Json | None = None, **query: Any) -> list[str]:
    """The conversation after an agent has used a tool."""
    env.script(line("one", *says, "Done."))
    one = agent("one", tools=[{"name": "weather", "type": "custom", **(options or {})}])
    status = await env.status(await env.start_query([one, given], "agent/one", **query))
    head = status.responses[0].head
    assert head, status.error
    return [row["content"] for row in env.transcript(head.id)][1:]


@pytest.mark.full
async def test_an_agent_uses_a_tool_over_http_and_reads_its_result(env: Environment, tool_server: ToolServer) -> None:
    said = await used(env, tool(tool_server.url + "/v1/{city}"), call("weather", city="New York"))
    assert said == ["", "sunny", "Done."]
    (seen,) = tool_server.seen
    assert (seen.method, seen.path) == ("GET", "/v1/New%20York")
    assert seen.headers["idempotency-key"].count("/") == 1
    sent = env.model.requests[0].body["tools"][0]["function"]
    assert sent == {"name": "weather", "description": "Tells the weather.", "parameters": CITY}


async def test_a_tool_without_a_schema_has_no_arguments_for_a_model(env: Environment, tool_server: ToolServer) -> None:
    given = tool(tool_server.url)
    del given["spec"]["inputSchema"]
    assert await used(env, given, call("weather")) == ["", "sunny", "Done."]
    sent = env.model.requests[0].body["tools"][0]["function"]
    assert sent["parameters"] == {"type": "object", "properties": {}}


async def test_the_arguments_in_the_url_of_a_tool_without_a_schema_are_required_texts(
    env: Environment, tool_server: ToolServer
) -> None:
    given = tool(tool_server.url + "/{city}")
    del given["spec"]["inputSchema"]
    assert await used(env, given, call("weather", city="Rome")) == ["", "sunny", "Done."]
    sent = env.model.requests[0].body["tools"][0]["function"]
    assert sent["parameters"] == CITY
    (notice,) = load_documents([Document("", given, {})]).notices()
    assert str(notice).endswith("spec: has no inputSchema: models see city as required texts")


@pytest.mark.parametrize(
    ("schema", "asked", "sent"),
    [
        ({"properties": {"city": {}}}, "Rome", {"city": "Rome"}),
        ({"properties": {"city": {}, "day": {}}, "required": ["city"]}, "Rome", {"city": "Rome"}),
        ({"properties": {"city": {}, "input": {}}, "required": ["city"]}, "Rome", {"input": "Rome"}),
        ({}, "Rome", {"input": "Rome"}),
        ({"properties": {"city": {}, "day": {}}}, '{"day": "Monday"}', {"day": "Monday"}),
    ],
)
def test_a_text_is_the_argument_that_it_can_only_be_for(schema: Json, asked: str, sent: Json) -> None:
    definition = ToolDefinition("weather", "", schema)
    assert json.loads(_as_arguments(asked, definition)) == sent


def test_a_text_for_a_tool_with_several_arguments_is_refused_before_the_run_starts() -> None:
    asks = manifest("Query", "q", {"input": "Rome", "targets": [{"type": "tool", "name": "weather"}]})
    given = tool("http://host/{city}")
    given["spec"]["inputSchema"] = {
        "type": "object",
        "properties": {"city": {}, "day": {}},
        "required": ["city", "day"],
    }
    with pytest.raises(ManifestError) as refused:
        load_documents([Document("", asks, {}), Document("", given, {})])
    assert str(refused.value) == (
        "Query/default/q: spec.input: is a text, and the tool has the arguments city, day: "
        'write JSON, as in {"city": "…", "day": "…"}'
    )
    asks["spec"]["input"] = '{"city": "Rome", "day": "today"}'
    load_documents([Document("", asks, {}), Document("", given, {})])


async def test_an_agent_may_describe_a_tool_differently(env: Environment, tool_server: ToolServer) -> None:
    options = {"description": "Only for Rome."}
    await used(env, tool(tool_server.url), call("weather", city="Rome"), options=options)
    assert env.model.requests[0].body["tools"][0]["function"]["description"] == "Only for Rome."


async def test_wrong_arguments_are_not_sent_and_defaults_are_filled_in(
    env: Environment, tool_server: ToolServer
) -> None:
    schema: Json = {**CITY, "properties": {"city": {"type": "string"}, "unit": {"type": "string", "default": "C"}}}
    said = await used(env, tool(tool_server.url, schema), call("weather", town="Rome"), call("weather", city="Rome"))
    assert said[1] == "Error: the arguments of weather don't match its schema: $: 'city' is a required property"
    assert [seen.path for seen in tool_server.seen] == ["/?city=Rome&unit=C"]


async def test_parameters_of_tool_agent_and_query_are_filled_in_and_secrets_are_redacted(
    env: Environment, tool_server: ToolServer
) -> None:
    given = tool(
        tool_server.url + "/{{where}}?key={{token}}",
        method="POST",
        headers={"Authorization": "Bearer {{token}}", "X-Held": OF_SAFE},
        body='{"city": "{{input.city}}", "who": "{{who}}", "key": "{{token}}"}',
        parameters=[{"name": "token", **OF_SAFE}, {"name": "where", "value": "here"}],
    )
    tool_server.answers(Answer(f"your key is {TOKEN}"))
    said = await used(
        env, given, call("weather", city='R"me'), input="Hi, {{who}}", parameters=[{"name": "who", "value": "Ada"}]
    )
    (seen,) = tool_server.seen
    assert seen.path == f"/here?key={TOKEN}"
    assert (seen.headers["authorization"], seen.headers["x-held"]) == (f"Bearer {TOKEN}", TOKEN)
    assert json.loads(seen.body) == {"city": 'R"me', "who": "Ada", "key": TOKEN}
    assert said[1] == "your key is [secret]"
    assert TOKEN.encode() not in env.journal_bytes
    async for run in env.closed_runs():
        assert TOKEN not in str(await run.fetch_history())


async def test_no_part_of_a_secret_is_stored_where_a_response_is_cut(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer("x" * (MAX_BYTES - 12) + TOKEN + "y" * 99))
    said = await used(env, tool(tool_server.url, headers={"X-Key": OF_SAFE}), call("weather", city="Rome"))
    assert said[1].startswith("x" * (MAX_BYTES - 12) + "… [truncated")


async def test_a_secret_in_an_error_is_redacted(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(f"bad key {TOKEN}", 403))
    said = await used(env, tool(tool_server.url, headers={"X-Key": OF_SAFE}), call("weather", city="Rome"))
    assert said[1] == f"Error: {tool_server.host} answered HTTP 403 Forbidden: bad key [secret]"


def test_an_unknown_name_in_a_template_is_refused_before_a_run_starts(tmp_path: Path) -> None:
    one = agent("one", tools=[{"name": "weather"}], parameters=[{"name": "mine", "value": "x"}], prompt="You.")
    query = manifest("Query", "q", {"input": "?", "targets": [{"type": "agent", "name": "one"}]})
    given = tool("http://x/{{mine}}/{{other}}", method="POST", body="{{input.city}} {{third}}")
    loaded = Writer(tmp_path).load(query, one, given)
    start = loaded.catalog.get("Query", "default", "q")
    assert start
    with pytest.raises(ManifestError) as refused:
        loaded.needed_by(start)
    assert [str(each).partition(": ")[2] for each in refused.value.problems] == [
        "Tool/default/weather: spec.http.url: unknown name 'other'; known: mine",
        "Tool/default/weather: spec.http.body: unknown name 'third'; known: input.city, mine",
    ]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"url": "ftp://x"}, "spec.http.url: is not an address"),
        ({"url": "http://user:pass@x/"}, "spec.http.url: contains a user or a password"),
        ({"url": "http://x/{town}"}, "spec.http.url: '{town}' is not a property of inputSchema; its properties: city"),
        ({"url": "http://x/{{range .a}}"}, "spec.http.url: looks like an unrendered Helm template"),
        ({"body": "x"}, "spec.http.body: can't be used with GET: remove it, or set another method"),
        (
            {"schema": {"$ref": "file:///etc/passwd"}},
            "spec.inputSchema: refers to 'file:///etc/passwd', which it does not",
        ),
        (
            {"schema": {"$ref": "#/$defs/none"}},
            "spec.inputSchema: refers to '/$defs/none', which it does not contain",
        ),
        ({"timeout": "0s"}, "spec.http.timeout: is not a timeout: write '30s', '5m' or '30' for seconds"),
        ({"method": "FETCH"}, "spec.http.method: "),
    ],
)
def test_a_tool_that_can_never_work_is_refused_with_the_field(tmp_path: Path, changes: Json, wrong: str) -> None:
    said = Writer(tmp_path).refusal(tool(changes.pop("url", "http://x/"), **changes))
    assert wrong in said[0]


@pytest.mark.full
async def test_a_failed_get_is_retried_and_a_failed_post_is_reported_to_the_model(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answers(Answer("later", 503, {"retry-after": "1"}), Answer("", 500), Answer("at last"))
    said = await used(env, tool(tool_server.url), call("weather", city="Rome"))
    assert said[1] == "at last"
    assert len({seen.headers["idempotency-key"] for seen in tool_server.seen}) == 1
    assert tool_server.seen[1].at - tool_server.seen[0].at >= 1
    tool_server.seen.clear()
    tool_server.answers(Answer("later", 503))
    said = await used(env, tool(tool_server.url, method="POST"), call("weather", city="Rome"))
    assert said[1] == f"Error: {tool_server.host} answered HTTP 503 Service Unavailable: later"
    assert len(tool_server.seen) == 1


async def test_a_post_is_retried_where_the_agent_says_so(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer("no", 503), Answer("done"))
    said = await used(
        env, tool(tool_server.url, method="POST"), call("weather", city="Rome"), options={"onError": "retry"}
    )
    assert said[1] == "done"


async def test_on_error_fail_ends_the_turn(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer("no such city", 404))
    env.script(line("one", call("weather", city="X"), "Done."))
    one = agent("one", tools=[{"name": "weather", "onError": "fail"}])
    status = await env.status(await env.start_query([one, tool(tool_server.url)], "agent/one"))
    assert status.failure
    assert (status.failure.family, status.failure.type) == ("ToolError", "ToolFailed")
    assert status.failure.message == f"{tool_server.host} answered HTTP 404 Not Found: no such city"


async def test_a_model_cannot_choose_a_host_in_the_workers_network(env: Environment, tool_server: ToolServer) -> None:
    host = tool_server.url.removeprefix("http://")
    said = await used(env, tool("http://{city}/"), call("weather", city=host))
    assert "127.0.0.1 is in the worker's own network" in said[1]
    assert not tool_server.seen


async def test_a_post_that_was_never_sent_is_retried(env: Environment, tool_server: ToolServer, tmp_path: Path) -> None:
    """The file of a Secret is being edited at the first attempt."""
    given = tool(
        tool_server.url, method="POST", headers={"X-Key": {"valueFrom": {"secretKeyRef": {"name": "x", "key": "k"}}}}
    )
    env.script(line("one", call("weather", city="Rome"), "Done."))
    one = agent("one", tools=[{"name": "weather"}])
    catalog = Catalog(manifests=(Agent.model_validate(one), Tool.model_validate(given)))
    (env.folder / "sources").mkdir(exist_ok=True)
    (env.folder / "broken.yaml").write_text("a: [")
    (env.folder / "sources" / f"{catalog.sha}.json").write_text(json.dumps([str(env.folder / "broken.yaml")]))
    handle = await env.start("agent", {"agent": "one", "input": "?", "resources": [one, given]})
    while not any(each.attempt > 1 for each in (await handle.describe()).raw_description.pending_activities):
        await asyncio.sleep(0.02)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"k": "key-0123456789"}}
    (env.folder / "edited.yaml").write_text(yaml.safe_dump(secret))
    (env.folder / "edited.yaml").replace(env.folder / "broken.yaml")  # an attempt may read it just now
    turn = await env.turn_result(handle)
    assert [message.content for message in turn.messages] == ["", "sunny", "Done."]
    assert len(tool_server.seen) == 1


async def test_half_of_a_surrogate_pair_in_an_argument_breaks_no_request(
    env: Environment, tool_server: ToolServer
) -> None:
    half = {"text": "", "calls": [{"name": "weather", "arguments": '{"city": "R\\ud83d"}'}]}
    said = await used(env, tool(tool_server.url, method="POST"), half)
    assert said[1] == "sunny"
    assert json.loads(tool_server.seen[0].body) == {"city": "R\ufffd"}


async def test_a_tool_that_is_slow_ends_at_its_own_timeout(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(hang=True))
    said = await used(env, tool(tool_server.url, method="PATCH", timeout="1s"), call("weather", city="Rome"))
    assert said[1] == f"Error: {tool_server.host} did not respond within 1 s; whether it was executed is unknown"


async def test_a_canceled_query_cancels_its_tool_call(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(hang=True))
    env.script(line("one", call("weather", city="Rome"), "Done."))
    one = agent("one", tools=[{"name": "weather"}])
    handle = await env.start_query([one, tool(tool_server.url)], "agent/one")
    while not tool_server.seen:
        await asyncio.sleep(0.01)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(handle.result(), 60)
    assert isinstance(failed.value.cause, CancelledError)
