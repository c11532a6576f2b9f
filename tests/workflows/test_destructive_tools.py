"""Tools that say they destroy something wait for a person where the setting of the workers says so."""

import json
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.contracts.turn import TurnResult
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Environment, Json, agent, call, ended, line, manifest
from tests.harness.mcp_process import McpServerProcess
from tests.harness.tool_answers import plain_answer
from tests.harness.tool_server import ToolServer
from tests.workflows.test_approval import approve, pending


def wipe(request: Request) -> Reply:
    """Wipes a disk, and then repeats the result."""
    results = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    call = ScriptedToolCall(name="test-wipe", arguments={"disk": "a"})
    return Reply(text=results[0]) if results else Reply(calls=[call])


@pytest.mark.parametrize(
    ("setting", "own", "asked", "approved", "calls"),
    [
        ("1", {}, True, True, ["wiped a"]),
        ("1", {}, True, False, []),
        ("1", {"approval": {"required": False}}, True, False, []),
        ("0", {}, False, False, ["wiped a"]),
    ],
)
async def test_a_tool_of_an_mcp_server_that_destroys_waits_for_a_yes_where_the_worker_says_so(
    client: Client,
    tmp_path: Path,
    setting: str,
    own: Json,
    asked: bool,
    approved: bool,
    calls: list[str],
) -> None:
    variables = {"BATON_APPROVE_DESTRUCTIVE": setting}
    with McpServerProcess("2026", tmp_path).running() as mcp:
        async with Environment.running(client, tmp_path, variables=variables) as env:
            env.answer = wipe
            resources = [agent("one", tools=[{"name": "test-wipe", "type": "mcp", **own}]), mcp.manifest()]
            handle = await env.start("agent", {"agent": "one", "input": "Wipe!", "resources": resources})
            if asked:
                (waiting,) = await pending(handle)
                assert (waiting.tool, mcp.calls) == ("test-wipe", [])
                await approve(handle, waiting, approved=approved)
            turn = await ended(handle, TurnResult)
    assert mcp.calls == calls
    assert [each.decision.approved for each in turn.messages if each.decision] == ([approved] if asked else [])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["openapi", "mcp"])
async def test_a_hint_of_a_manifest_counts_for_all_tools_that_are_generated_from_it(
    client: Client, tmp_path: Path, tool_server: ToolServer, kind: str
) -> None:
    with McpServerProcess("2026", tmp_path).running() as mcp:
        variables = {"BATON_APPROVE_DESTRUCTIVE": "1"}
        async with Environment.running(client, tmp_path, variables=variables) as env:
            hint = {"annotations": {"destructiveHint": True}}
            operation = {"operationId": "wipe", "summary": "Wipes."}
            document = {
                "openapi": "3.1.0",
                "servers": [{"url": tool_server.url}],
                "paths": {"/": {"delete": operation}},
            }
            spec = {"type": "openapi", "openapi": {"document": json.dumps(document)}}
            if kind == "mcp":
                spec = {"type": "mcp", "mcp": {"mcpServerRef": {"name": "test"}, "toolName": "ech*"}}
            tool = manifest("Tool", "all", {**spec, **hint})
            called = "all-wipe" if kind == "openapi" else "test-echo"
            env.script(line("one", call(called, **({"message": "a"} if kind == "mcp" else {})), "Done."))
            resources = [agent("one", tools=[{"name": "all", "type": kind}]), mcp.manifest(), tool]
            handle = await env.start("agent", {"agent": "one", "input": "Wipe!", "resources": resources})
            (waiting,) = await pending(handle)
            assert waiting.tool == called
            assert (mcp.calls, tool_server.calls) == ([], [])
            await approve(handle, waiting, approved=False)
            await ended(handle, TurnResult)
