"""Tests of tools of MCP servers in a run: what the model is told, what is asked again, and what is stored."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from baton.resources.loader import load_files
from tests.harness.environment import Environment, Json, agent, call, line
from tests.harness.mcp_process import McpServerProcess, stdio_manifest

TOKEN = "token-0123456789-hidden"
SAFE: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"token": TOKEN}}
OF_SAFE = {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "token"}}}
ERAS = ("2025", "2026", "sse")


@pytest.fixture(params=ERAS)
def mcp(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[McpServerProcess]:
    """An MCP server, of each era."""
    with McpServerProcess(request.param, tmp_path).running() as server:
        yield server


@pytest.fixture
def mcp_2026(tmp_path: Path) -> Iterator[McpServerProcess]:
    """An MCP server of the newest era."""
    with McpServerProcess("2026", tmp_path).running() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def owner(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker that was started with an MCPServer with a command, and with a Secret."""
    server = stdio_manifest(tmp_path, env=[{"name": "KEY", **OF_SAFE}])
    (tmp_path / "own.yaml").write_text(yaml.safe_dump_all([SAFE, server]))
    async with Environment.running(client, tmp_path, load_files([tmp_path / "own.yaml"])) as env:
        yield env


def user(*tools: Json | str) -> Json:
    """An agent with tools of MCP servers."""
    return agent("one", tools=[each if isinstance(each, dict) else {"name": each, "type": "mcp"} for each in tools])


async def used(env: Environment, given: list[Json], *says: Any, **query: Any) -> list[str]:
    """The conversation after an agent has used tools."""
    env.script(line("one", *says, "Done."))
    status = await env.status(await env.start_query(given, "agent/one", **query))
    head = status.responses[0].head if status.responses else None
    assert head, status.error
    return [row["content"] for row in env.transcript(head.id)][1:]


def offered(env: Environment) -> dict[str, Json]:
    """The tools that the model was offered, by name."""
    return {each["function"]["name"]: each["function"] for each in env.model.requests[0].body.get("tools", ())}


async def test_an_agent_uses_a_tool_of_a_server_of_each_era(env: Environment, mcp: McpServerProcess) -> None:
    said = await used(env, [user("test-add-up"), mcp.manifest()], call("test-add-up", a=1, b=2))
    assert [said[0], json.loads(said[1]), said[2]] == ["", {"sum": 3}, "Done."]
    (tool,) = offered(env).values()
    assert (tool["name"], tool["description"]) == ("test-add-up", "Adds two numbers.")
    assert tool["parameters"]["required"] == ["a", "b"]


async def test_a_server_that_restarts_between_two_calls_is_met_again(env: Environment, mcp: McpServerProcess) -> None:
    env.script(line("one", call("test-note", words="a"), {**call("test-note", words="b"), "delay": 1}, "Done."))
    handle = await env.start_query([user("test-note"), mcp.manifest()], "agent/one")
    await env.wait_for_calls(2)
    await mcp.restart()
    status = await env.status(handle)
    assert (status.phase, mcp.calls) == ("Completed", ["a", "b"])


async def test_a_safe_call_that_a_server_breaks_off_is_made_again_and_another_is_not(
    env: Environment, mcp: McpServerProcess
) -> None:
    env.script(line("one", call("test-work", steps=5), call("test-note", words="once", seconds=30), "Done."))
    handle = await env.start_query([user("test"), mcp.manifest()], "agent/one")
    await appears(mcp.folder / "working")
    await mcp.restart()
    await appears(mcp.folder / "calls")
    await mcp.restart()
    status = await env.status(handle)
    head = status.responses[0].head
    assert head
    said = [row["content"] for row in env.transcript(head.id)]
    assert said[2] == "all done"
    assert said[4].startswith("Error: the MCP server test (127.0.0.1) broke off its answer")
    assert said[4].endswith("whether it was carried out is unknown")
    assert mcp.calls == ["once"]


async def test_a_call_is_canceled_at_the_server_with_its_run(env: Environment, mcp: McpServerProcess) -> None:
    env.script(line("one", call("test-work", steps=300), "Done."))
    handle = await env.start_query([user("test-work"), mcp.manifest()], "agent/one")
    await appears(mcp.folder / "working")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    await appears(mcp.folder / "canceled")


async def appears(file: Path) -> None:
    """Waits until there is a file."""
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(file.exists):
            await asyncio.sleep(0.05)
