"""Tests of tools of MCP servers in a run: what the model is told, what is asked again, and what is stored."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError

from baton.activities.tool.mcp.pinned_tools import ListedTool, with_listed_tools
from baton.contracts.errors import InvalidManifest
from baton.resources.documents import Document
from baton.resources.loader import load_documents, load_files
from baton.resources.run_catalog import RunCatalog
from baton.resources.tool import Tool
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest
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


@pytest.mark.full
async def test_a_server_that_restarts_between_two_calls_is_met_again(env: Environment, mcp: McpServerProcess) -> None:
    env.script(line("one", call("test-note", words="a"), {**call("test-note", words="b"), "held": True}, "Done."))
    handle = await env.start_query([user("test-note"), mcp.manifest()], "agent/one")
    await env.wait_for_calls(2)
    await mcp.restart()
    env.model.release()
    status = await env.status(handle)
    assert (status.phase, mcp.calls) == ("Completed", ["a", "b"])


@pytest.mark.full
async def test_a_server_that_has_forgotten_its_sessions_is_met_again(env: Environment, tmp_path: Path) -> None:
    with McpServerProcess("2025", tmp_path).running() as mcp:
        env.script(line("one", call("test-note", words="a"), {**call("test-note", words="b"), "held": True}, "Done."))
        handle = await env.start_query([user("test-note"), mcp.manifest()], "agent/one")
        await env.wait_for_calls(2)
        await mcp.restart()
        env.model.release()
        status = await env.status(handle)
        assert (status.phase, mcp.calls) == ("Completed", ["a", "b"])


@pytest.mark.full
async def test_a_safe_call_that_a_server_breaks_off_is_made_again_and_another_is_not(
    env: Environment, mcp: McpServerProcess
) -> None:
    env.script(line("one", call("test-work", steps=5), call("test-note", words="once", seconds=30), "Done."))
    handle = await env.start_query([user("test"), mcp.manifest()], "agent/one")
    await until((mcp.folder / "working").exists)
    await mcp.restart()
    await until(lambda: bool(mcp.calls))
    await mcp.restart()
    status = await env.status(handle)
    head = status.responses[0].head
    assert head
    said = [row["content"] for row in env.transcript(head.id)]
    assert said[2] == "all done"
    assert said[4].startswith(f"Error: the MCP server test (127.0.0.1:{mcp.port}) did not complete its response")
    assert said[4].endswith("whether it was executed is unknown")
    assert mcp.calls == ["once"]


@pytest.mark.full
async def test_a_call_is_canceled_at_the_server_with_its_run(env: Environment, mcp: McpServerProcess) -> None:
    env.script(line("one", call("test-work", steps=300), "Done."))
    handle = await env.start_query([user("test-work"), mcp.manifest()], "agent/one")
    await until((mcp.folder / "working").exists)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    await until((mcp.folder / "canceled").exists)


async def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


def tool(name: str, tool_name: str, **spec: Any) -> Json:
    """A Tool of the server ``test``."""
    return manifest(
        "Tool", name, {"type": "mcp", "mcp": {"mcpServerRef": {"name": "test"}, "toolName": tool_name}, **spec}
    )


@pytest.mark.slow
async def test_a_server_that_is_a_command_of_the_worker_is_started_again_when_it_has_died(owner: Environment) -> None:
    process = call("test-process")
    owner.script(line("one", process, {**process, "held": True}, call("test-header", name="KEY"), "Done."))
    handle = await owner.start_query([user("test")], "agent/one")
    await owner.wait_for_calls(2)
    told = owner.model.requests[1].body["messages"][-1]["content"]
    os.kill(next(int(each) for each in told.splitlines() if each.isdigit()), signal.SIGKILL)
    owner.model.release()
    status = await owner.status(handle)
    head = status.responses[0].head
    assert head, status.error
    said = [row["content"] for row in owner.transcript(head.id)]
    assert said[2] != said[4]
    assert said[6] == "[secret]"


async def test_a_run_may_bring_no_command(env: Environment, owner: Environment, tmp_path: Path) -> None:
    mine = stdio_manifest(tmp_path, "mine")
    status = await env.status(await env.start_query([user("mine"), mine], "agent/one"))
    assert status.error == (
        "MCPServer/default/mine: spec.command: an inline manifest can't set the command of a worker: "
        "start the worker with this MCPServer"
    )
    other = stdio_manifest(tmp_path, args=["-c", "print('anything')"])
    assert "can't set the command" in str(
        (await owner.status(await owner.start_query([user("test"), other], "agent/one"))).error
    )


async def test_an_agent_has_all_tools_of_a_server_those_that_fit_or_one_under_another_name(
    env: Environment, mcp_2026: McpServerProcess
) -> None:
    old = manifest(
        "Tool", "sum", {"type": "mcp", "mcpServer": {"name": "test"}, "function": "add_up", "description": "Σ"}
    )
    given = [mcp_2026.manifest(), tool("some", "*o*"), tool("loud", "echo", inputSchema={"type": "object"}), old]
    await used(env, [user("some", "loud", "sum", "test-echo"), *given])
    names = ["test-note", "test-work", "test-process", "test-wrong", "test-book", "loud", "sum", "test-echo"]
    assert [*offered(env)] == names
    assert (offered(env)["sum"]["description"], offered(env)["sum"]["parameters"]["required"]) == ("Σ", ["a", "b"])
    assert offered(env)["loud"]["parameters"] == {"type": "object"}
    env.model.requests.clear()
    await used(env, [user("test"), mcp_2026.manifest()])
    assert len(offered(env)) == 15


async def test_the_tools_that_fit_a_pattern_have_the_settings_of_its_manifest(
    env: Environment, mcp_2026: McpServerProcess
) -> None:
    preset = {"parameters": [{"name": "message", "value": "fixed"}, {"name": "other", "value": "of no tool"}]}
    some = tool("some", "ech*", partial=preset, untrustedContent=False)
    said = await used(env, [user("some"), some, mcp_2026.manifest()], call("test-echo", message="chosen"))
    assert said[1] == "fixed"
    assert offered(env)["test-echo"]["parameters"]["properties"] == {}


@pytest.mark.full
async def test_two_manifests_that_make_the_same_tool_are_refused_unless_they_agree(
    env: Environment, mcp_2026: McpServerProcess
) -> None:
    some = tool("some", "ech*", untrustedContent=False)
    status = await env.status(
        await env.start_query([user("some", "test-echo"), some, mcp_2026.manifest()], "agent/one")
    )
    assert "would both make the tool test-echo of an agent" in str(status.error)


def test_two_servers_whose_tools_would_have_the_same_name_are_refused() -> None:
    """Otherwise an agent would call the tool of a server that it does not have."""
    servers = [manifest("MCPServer", name, {"address": {"value": "https://x"}}) for name in ("jira", "jira-cloud")]
    agents = [
        manifest("Agent", f"with-{name}", {"prompt": "Hi.", "tools": [{"name": name, "type": "mcp"}]})
        for name in ("jira", "jira-cloud")
    ]
    loaded = load_documents([Document("manifests.yaml", each, {}) for each in (*servers, *agents)])
    listed = {
        "MCPServer/default/jira": [ListedTool("cloud_search", None, {"type": "object"})],
        "MCPServer/default/jira-cloud": [ListedTool("search", None, {"type": "object"})],
    }
    with pytest.raises(InvalidManifest, match="would both make the tool jira-cloud-search of an agent"):
        with_listed_tools(RunCatalog.of_files(loaded.catalog), listed)


def test_a_schema_of_an_older_draft_is_that_of_today() -> None:
    server = manifest("MCPServer", "test", {"address": {"value": "https://x"}})
    loaded = load_documents([Document("manifests.yaml", each, {}) for each in (server, user("test"))])
    pair = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}
    schema: Json = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"pair": pair}}
    listed = {"MCPServer/default/test": [ListedTool("put", None, schema)]}
    catalog = with_listed_tools(RunCatalog.of_files(loaded.catalog), listed)
    tool = catalog.by_id("Tool/default/test-put")
    assert isinstance(tool, Tool)
    new = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}
    assert tool.spec.input_schema["properties"] == {"pair": new}


@pytest.mark.parametrize(
    ("used", "patterns", "expected"),
    [
        ("test", {}, "bad-1 (REASON), bad-2 (REASON), bad-3 (REASON), and 1 more"),
        ("some", {"some": "*-2"}, "bad-2 (REASON)"),
        ("test-good-2", {}, None),
    ],
)
def test_the_notices_of_a_run_name_the_tools_of_its_agent_that_can_not_be_used(
    used: str, patterns: dict[str, str], expected: str | None
) -> None:
    server = manifest("MCPServer", "test", {"address": {"value": "https://x"}})
    given = [server, user(used), *(tool(name, pattern) for name, pattern in patterns.items())]
    loaded = load_documents([Document("manifests.yaml", each, {}) for each in given])
    wrong: Json = {"type": "nothing"}
    listed = {
        "MCPServer/default/test": [
            *(ListedTool(f"bad-{number}", None, wrong) for number in range(1, 5)),
            ListedTool("good-2", None, {"type": "object"}),
        ]
    }
    catalog = with_listed_tools(RunCatalog.of_files(loaded.catalog), listed, lambda text: f"redacted {text}")
    notices = [re.sub(r"\(Value error[^)]*\)", "(REASON)", notice) for notice in catalog.notices]
    said = f"redacted MCPServer/default/test: left out what can't be used as a tool: {expected}"
    assert notices == ([said] if expected else [])


async def test_a_tool_that_no_server_has_is_told_before_the_run_begins(
    env: Environment, mcp_2026: McpServerProcess
) -> None:
    status = await env.status(await env.start_query([user("test-nothing"), mcp_2026.manifest()], "agent/one"))
    assert str(status.error).startswith(
        "Agent/default/one: MCPServer/default/test has no tool 'test-nothing'; its tools: test-echo, "
    )


async def test_a_query_is_put_to_a_tool_of_a_server(env: Environment, mcp_2026: McpServerProcess) -> None:
    status = await env.status(
        await env.start_query([mcp_2026.manifest()], "tool/test-add-up", input='{"a": 1, "b": 2}')
    )
    assert json.loads(status.responses[0].message) == {"sum": 3}


@pytest.mark.full
async def test_content_that_is_no_text_is_named_and_an_error_is_told_as_the_answer(
    env: Environment, mcp_2026: McpServerProcess
) -> None:
    said = await used(
        env,
        [user("test"), mcp_2026.manifest()],
        call("test-pieces"),
        call("test-wrong"),
        call("test-ask"),
        call("test-much", size=5_000_000),
    )
    assert said[1].splitlines() == [
        "Look:",
        "[image: image/png, 5 bytes]",
        "[resource plan: file:///plan.txt, text/plain]",
        "[resource note://1]",
        "a note",
        "[resource note://2: binary, 5 bytes]",
        '{"found": 5}',
    ]
    assert said[3] == "Error: there is no such town"
    assert "which requires 'questions' in its MCPServer: Shall I?" in said[5]
    assert said[7] == f"Error: the MCP server test (127.0.0.1:{mcp_2026.port}) sent more than 4,000,000 bytes"


async def test_a_call_is_given_up_after_the_timeout_of_tool_calls_and_not_after_that_of_the_server(
    env: Environment, mcp_2026: McpServerProcess
) -> None:
    env.script(line("one", call("test-note", words="x", seconds=60), "Done."))
    server = mcp_2026.manifest(timeout="30s", toolCallTimeout="300ms")
    status = await env.status(await env.start_query([user("test-note"), server], "agent/one"))
    (result,) = [each.content for each in status.responses[0].messages if each.role == "tool"]
    assert "0.3 s" in result


@pytest.mark.full
async def test_what_a_server_reports_of_its_progress_stands_in_the_heartbeats(
    env: Environment, mcp_2026: McpServerProcess
) -> None:
    env.script(line("one", call("test-work", steps=300), "Done."))
    handle = await env.start_query([user("test-work"), mcp_2026.manifest()], "agent/one")
    async with asyncio.timeout(120):
        while "step 2 is done (2/300)" not in str(await pending(handle)):
            await asyncio.sleep(0.1)
    await handle.cancel()


async def pending(handle: Handle) -> bytes:
    """What the last heartbeats of a run's activities say."""
    try:
        found = (await handle.describe()).raw_description.pending_activities
    except RPCError:
        return b""
    return b"".join(each.data for one in found for each in one.heartbeat_details.payloads)


async def test_secrets_in_headers_and_tokens_reach_the_server_and_nothing_else(
    client: Client, tmp_path: Path, mcp_2026: McpServerProcess
) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump_all([SAFE]))
    server = mcp_2026.manifest(
        headers=[{"name": "X-Key", "value": OF_SAFE}],
        authorization={"tokenSecretRef": {"name": "safe", "accessTokenKey": "token"}},
    )
    async with Environment.running(client, tmp_path, load_files([tmp_path / "own.yaml"])) as env:
        said = await used(
            env,
            [user("test"), server],
            call("test-header", name="x-key"),
            call("test-header", name="authorization"),
        )
        assert [said[1], said[3]] == ["[secret]", "Bearer [secret]"]
        async for run in env.closed_runs():
            assert TOKEN not in str(await run.fetch_history())
    assert not await asyncio.to_thread(holds, tmp_path, TOKEN)


@pytest.mark.full
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_token_of_the_workers_own_files_is_read_anew_when_the_server_refuses_it(
    client: Client, tmp_path: Path, era: str
) -> None:
    own = tmp_path / "own.yaml"

    def write(token: str) -> None:
        own.write_text(yaml.safe_dump({**SAFE, "stringData": {"token": token}}))

    write("the-first-token")
    (tmp_path / "token").write_text("the-first-token")
    with McpServerProcess(era, tmp_path).running() as mcp:
        server = mcp.manifest(authorization={"tokenSecretRef": {"name": "safe", "accessTokenKey": "token"}})
        async with Environment.running(client, tmp_path, load_files([own])) as env:
            assert (await used(env, [user("test"), server], call("test-echo", message="hello")))[1] == "hello"
            (tmp_path / "token").write_text("the-second-token")
            (tmp_path / "held").touch()
            using = asyncio.create_task(used(env, [user("test"), server], call("test-echo", message="again")))
            await until((tmp_path / "refused").exists)
            write("the-second-token")
            (tmp_path / "held").unlink()
            assert (await using)[1] == "again"


async def test_an_address_that_comes_with_a_query_may_not_lead_into_the_workers_own_network(
    env: Environment, mcp_2026: McpServerProcess
) -> None:
    where = {"valueFrom": {"queryParameterRef": {"name": "where"}}}
    server = manifest("MCPServer", "test", {"address": where})
    asked = {"input": "?", "parameters": [{"name": "where", "value": mcp_2026.url}]}
    status = await env.status(await env.start_query([user("test"), server], "agent/one", **asked))
    assert "is in the worker's own network" in str(status.error)


def holds(folder: Path, text: str) -> bool:
    """Whether a text is in the files of a journal."""
    return text.encode() in b"".join(file.read_bytes() for file in folder.glob("journal.db*") if file.is_file())
