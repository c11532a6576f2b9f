"""Manifests as ARK's users write them for approvals, filters, preset arguments, agents as tools and Bedrock."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.testing import ScriptedToolCall
from tests.activities.test_custom_tools import TOKEN, env
from tests.harness.bedrock_server import BedrockServer
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.manifests import Writer
from tests.harness.mcp_process import McpServerProcess
from tests.harness.stand_in import StandInReply
from tests.harness.tool_server import Answer, ToolServer
from tests.workflows.test_approval import approve, pending, waiting_run

__all__ = ["env"]
KEY_OF_SAFE = {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "token"}}}


@pytest.fixture
def aws() -> Iterator[BedrockServer]:
    server = BedrockServer()
    with server.serving():
        yield server


def coordinates(server: ToolServer) -> Json:
    """A Tool that knows one property."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    http = {"url": f"{server.url}/v1/search?name={{city}}&count=1"}
    return manifest("Tool", "get-coordinates", {"type": "http", "inputSchema": schema, "http": http})


async def test_calls_of_a_servers_tools_wait_for_a_yes_and_those_that_read_do_not(
    env: Environment, tmp_path: Path
) -> None:
    waits = {"approval": {"required": True, "timeout": "5m", "onTimeout": "reject"}}
    tools = [{"type": "mcp", "name": "files-note", **waits}, {"type": "mcp", "name": "files-echo"}]
    env.script(line("keeper", call("files-echo", message="hi"), call("files-note", words="a"), "Kept."))
    with McpServerProcess("2025", tmp_path).running() as server:
        given = [agent("keeper", tools=tools), server.manifest("files", transport="http", timeout="30s")]
        handle = await env.start_query(given, "agent/keeper")
        run = await waiting_run(env, handle.id)
        (asked,) = await pending(run)
        assert (asked.tool, server.calls) == ("files-note", [])
        await approve(run, asked)
        assert (await env.status(handle)).message == "Kept."
        assert server.calls == ["a"]


async def test_preset_arguments_come_from_the_query_also_those_that_the_tool_does_not_know(
    env: Environment, tool_server: ToolServer, tmp_path: Path
) -> None:
    preset = [("city", "{{ .Query.city }}"), ("units", "metric"), ("country", "nil")]
    partial = {"name": "get-coordinates", "parameters": [{"name": name, "value": value} for name, value in preset]}
    tools = [{"type": "custom", "name": "get-my-coordinates", "description": "Where the user is.", "partial": partial}]
    env.script(line("guide", call("get-my-coordinates"), "There."))
    given = [agent("guide", tools=tools), coordinates(tool_server)]
    assert len(Writer(tmp_path).load(*given).notices()) == 2
    parameters = [{"name": "city", "value": "Los Angeles"}]
    handle = await env.start_query(given, "agent/guide", parameters=parameters)
    assert (await env.status(handle)).message == "There."
    assert tool_server.seen[0].path.startswith("/v1/search?name=Los%20Angeles&count=1")
    (sent,) = env.model.requests[0].body["tools"]
    assert (sent["function"]["name"], sent["function"]["parameters"]["properties"]) == ("get-my-coordinates", {})


@pytest.mark.full
async def test_filters_with_jq_cut_what_the_model_reads(env: Environment, tool_server: ToolServer) -> None:
    filters = [{"name": "jq", "value": ".results[0]"}, {"name": "jq", "value": "{latitude, longitude}"}]
    tools = [{"type": "custom", "name": "get-coordinates", "functions": filters}]
    found = {"results": [{"latitude": 50.7, "longitude": 7.1, "population": 330_000}]}
    tool_server.answers(Answer(json.dumps(found)))
    env.script(line("guide", call("get-coordinates", city="Bonn"), "There."))
    handle = await env.start_query([agent("guide", tools=tools), coordinates(tool_server)], "agent/guide")
    assert (await env.status(handle)).message == "There."
    assert '{"latitude":50.7,"longitude":7.1}' in str(env.model.requests[1].body["messages"])
    assert "population" not in str(env.model.requests[1].body["messages"])


async def test_an_agent_uses_another_one_as_a_tool(env: Environment) -> None:
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    spec = {"type": "agent", "description": "Delegates.", "inputSchema": schema, "agent": {"name": "researcher"}}
    env.script(line("coordinator", call("call-researcher", input="Whales?"), "Done."), line("researcher", "They sing."))
    tools = [{"type": "agent", "name": "call-researcher"}]
    given = [agent("coordinator", tools=tools), agent("researcher"), manifest("Tool", "call-researcher", spec)]
    handle = await env.start_query(given, "agent/coordinator")
    assert (await env.status(handle)).message == "Done."
    asked, last = env.model.requests[1].body["messages"], env.model.requests[2].body["messages"]
    assert (asked[-1]["content"], last[-1]["content"]) == ("Whales?", "They sing.")


async def test_a_model_of_bedrock_with_its_keys_in_a_secret_answers_and_uses_a_tool(
    env: Environment, aws: BedrockServer
) -> None:
    aws.answers(
        StandInReply(calls=[ScriptedToolCall(name="noop", arguments={"message": "x"})]), StandInReply(text="Because.")
    )
    keys = {"accessKeyId": KEY_OF_SAFE, "secretAccessKey": KEY_OF_SAFE, "maxTokens": 1000, "temperature": "0.2"}
    bedrock = {"region": {"value": "us-east-1"}, "baseUrl": {"value": aws.url}, **keys}
    given = {"provider": "bedrock", "model": {"value": "us.claude:0"}, "config": {"bedrock": bedrock}}
    one = agent("one", modelRef={"name": "claude"}, tools=[{"type": "built-in", "name": "noop"}])
    handle = await env.start_query([one, manifest("Model", "claude", given)], "agent/one")
    assert (await env.status(handle)).message == "Because."
    assert aws.models == ["us.claude:0"] * 2
    assert aws.requests[0]["inferenceConfig"] == {"maxTokens": 1000, "temperature": 0.2}
    assert TOKEN not in str(env.rows())
