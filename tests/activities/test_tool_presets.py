"""Tests of preset arguments (``partial``): hidden from the model, and stronger than what it sends."""

import json
from pathlib import Path

import pytest

from baton.resources.problems import ManifestError
from tests.activities.test_custom_tools import OF_SAFE, TOKEN, env, tool
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.manifests import Writer
from tests.harness.tool_server import ToolServer

__all__ = ["env"]
PLACE: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "key": {"type": "string"}},
    "required": ["city", "days"],
}


async def asked(env: Environment, given: Json, partial: Json, *says: Json, **query: object) -> list[str]:
    """The conversation after an agent has used a tool with preset arguments."""
    env.script(line("one", *says, "Done."))
    one = agent("one", tools=[{"name": "forecast", "type": "http", "partial": {"name": "weather", **partial}}])
    status = await env.status(await env.start_query([one, given], "agent/one", **query))
    assert status.responses[0].head, status.error
    return [row["content"] for row in env.transcript(status.responses[0].head.id)][1:]


async def test_a_preset_argument_is_hidden_from_the_model_and_wins_over_what_it_sends(
    env: Environment, tool_server: ToolServer
) -> None:
    preset = {"parameters": [{"name": "city", "value": "{{ .Query.town }}"}, {"name": "days", "value": "3"}]}
    said = await asked(
        env,
        tool(tool_server.url, PLACE, method="POST"),
        preset,
        call("forecast", city="Bonn", key="k"),
        parameters=[{"name": "town", "value": "New York"}],
    )
    assert said == ["", "sunny", "Done."]
    assert json.loads(tool_server.seen[0].body) == {"city": "New York", "days": 3, "key": "k"}
    (sent,) = env.model.requests[0].body["tools"]
    assert sent["function"]["name"] == "forecast"
    assert sent["function"]["parameters"] == {
        "type": "object",
        "properties": {"key": {"type": "string"}},
        "required": [],
    }


async def test_a_preset_argument_may_come_from_a_secret_and_is_stored_nowhere(
    env: Environment, tool_server: ToolServer
) -> None:
    given = tool(tool_server.url, PLACE)
    given["spec"]["partial"] = {"parameters": [{"name": "key", **OF_SAFE}]}
    await asked(env, given, {"parameters": [{"name": "city", "value": "Rome"}]}, call("forecast", days=2))
    assert tool_server.seen[0].path == f"/?days=2&city=Rome&key={TOKEN}"
    assert TOKEN.encode() not in env.journal_bytes
    async for run in env.closed_runs():
        assert TOKEN not in str(await run.fetch_history())


@pytest.mark.parametrize(
    ("days", "text", "sent"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"$ref": "#/$defs/Days"}, '{"from": 1}', {"from": 1}),
        ({"enum": [3, "three"]}, "three", "three"),
        ({}, "3", "3"),
    ],
    ids=["one of several", "elsewhere", "a text", "anything"],
)
async def test_a_preset_argument_is_json_where_a_text_does_not_fit(
    env: Environment, tool_server: ToolServer, days: Json, text: str, sent: object
) -> None:
    schema = {**PLACE, "properties": {**PLACE["properties"], "days": days}, "$defs": {"Days": {"type": "object"}}}
    preset = {"parameters": [{"name": "days", "value": text}]}
    said = await asked(env, tool(tool_server.url, schema, method="POST"), preset, call("forecast", city="Rome"))
    assert said[1] == "sunny"
    assert json.loads(tool_server.seen[0].body)["days"] == sent


async def test_a_preset_argument_that_does_not_fit_the_schema_sends_nothing(
    env: Environment, tool_server: ToolServer
) -> None:
    wrong = {"parameters": [{"name": "days", "value": "many"}]}
    said = await asked(env, tool(tool_server.url, PLACE), wrong, call("forecast", city="Rome"))
    assert said[1].startswith(
        "Error: Agent/default/one: the preset arguments of forecast don't match its schema: $.days: 'many'"
    )
    assert not tool_server.seen


def test_an_unknown_name_in_a_preset_argument_is_refused_before_a_run_starts(tmp_path: Path) -> None:
    preset = {"parameters": [{"name": "city", "value": "{{.Query.town}}"}]}
    one = agent("one", tools=[{"name": "weather", "partial": preset}])
    query = manifest("Query", "q", {"input": "?", "targets": [{"type": "agent", "name": "one"}]})
    loaded = Writer(tmp_path).load(query, one, tool("http://x/", PLACE))
    start = loaded.catalog.get("Query", "default", "q")
    assert start
    with pytest.raises(ManifestError) as refused:
        loaded.needed_by(start)
    wrong = "Agent/default/one: spec.tools[0].partial.parameters[0].value: unknown name 'Query.town'; known: none"
    assert [str(each).partition(": ")[2] for each in refused.value.problems] == [wrong]


def test_a_preset_argument_that_the_tool_does_not_have_is_told(tmp_path: Path) -> None:
    preset = {"parameters": [{"name": "town", "value": "Rome"}]}
    one = agent("one", tools=[{"name": "weather", "partial": preset}])
    (notice,) = Writer(tmp_path).load(one, tool("http://x/", PLACE)).notices()
    text = "'town' is not a property of Tool/default/weather's inputSchema; it is sent anyway; its properties: "
    assert f"spec.tools[0].partial.parameters[0].name: {text}city, days, key" in str(notice)
