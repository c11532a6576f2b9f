"""``onToolsUnavailable``: what becomes of an agent whose MCP server is away when its run begins."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.mcp_process import McpServerProcess
from tests.starter.test_ark_events import events


def user(name: str = "a", wanted: str | None = "continue", tool: str = "test", **spec: Any) -> Json:
    given = {"onToolsUnavailable": wanted} if wanted else {}
    tools = [{"name": tool, "type": "mcp"}, {"name": "calculator", "type": "built-in"}]
    return agent(name, tools=tools, **given, **spec)


def offered(env: Environment) -> list[str]:
    return [each["function"]["name"] for each in env.model.requests[-1].body.get("tools", ())]


@pytest.fixture
def away(tmp_path: Path) -> McpServerProcess:
    """A server that is not started."""
    return McpServerProcess("2025", tmp_path)


@pytest.mark.slow
async def test_an_agent_goes_on_without_the_tools_of_a_server_that_is_away(
    env: Environment, away: McpServerProcess
) -> None:
    env.script(line("a", call("calculator", expression="1 + 1"), "Two."))
    handle = await env.start_query([user(), away.manifest()], "agent/a")
    status = await env.status(handle)
    assert (status.phase, status.message, offered(env)) == ("Completed", "Two.", ["calculator"])
    (notice,) = status.notices or ()
    assert notice.startswith("a: without the tools of MCPServer/default/test: ")
    told = [each for each in await events(env.client, handle) if each.name == "ToolsUnavailable"]
    assert [each.data["notice"] for each in told] == [notice]


@pytest.mark.parametrize("tool", ["test-echo", "mine", "some"])
@pytest.mark.slow
async def test_a_tool_that_is_named_is_left_out_as_well(env: Environment, away: McpServerProcess, tool: str) -> None:
    of_server = {"mcpServerRef": {"name": "test"}}
    mine = manifest("Tool", "mine", {"type": "mcp", "mcp": {**of_server, "toolName": "echo"}})
    some = manifest("Tool", "some", {"type": "mcp", "mcp": {**of_server, "toolName": "e*"}})
    env.script(line("a", "Here."))
    status = await env.status(await env.start_query([user(tool=tool), mine, some, away.manifest()], "agent/a"))
    assert (status.message, offered(env)) == ("Here.", ["calculator"])


@pytest.mark.slow
async def test_with_fail_the_run_fails_at_once_and_no_model_is_asked(env: Environment, away: McpServerProcess) -> None:
    status = await env.status(await env.start_query([user(wanted="fail"), away.manifest()], "agent/a"))
    assert status.failure
    assert (status.phase, status.failure.type) == ("Failed", "ToolFailed")
    assert "the MCP server test" in status.failure.message
    assert env.model.requests == []


@pytest.mark.slow
async def test_by_default_the_run_waits_for_the_server(env: Environment, away: McpServerProcess) -> None:
    env.script(line("a", "Here."))
    handle = await env.start_query([user(wanted=None), away.manifest()], "agent/a")
    while not (outages := (await handle.query("status")).get("outages")):
        await asyncio.sleep(0.05)
    assert [(outage["call"], outage["type"]) for outage in outages] == [("resolve and pin the manifests", "ToolFailed")]
    assert env.model.requests == []
    with away.running():
        status = await env.status(handle)
    assert status.notices is None
    assert "test-echo" in offered(env)


@pytest.mark.slow
async def test_agents_go_on_together_only_if_all_do(env: Environment, away: McpServerProcess) -> None:
    both = team("team", "a", "b", strategy="sequential")
    status = await env.status(await env.start_query([user(), user("b", "fail"), both, away.manifest()], "team/team"))
    assert status.failure
    assert status.failure.type == "ToolFailed"


async def test_an_agent_that_could_go_on_has_its_tools_where_the_server_is_there(
    env: Environment, away: McpServerProcess
) -> None:
    env.script(line("a", call("test-echo", message="x"), "Here."))
    with away.running():
        status = await env.status(await env.start_query([user(), away.manifest()], "agent/a"))
    assert (status.message, status.notices) == ("Here.", None)
