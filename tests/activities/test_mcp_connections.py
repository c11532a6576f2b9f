"""Connections to MCP servers: how long they are kept, and what a server that leaves something unanswered can't hold."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from baton.activities.tool.mcp.connection import McpConnections
from baton.activities.tool.mcp.endpoint import McpEndpoint
from baton.activities.tool.mcp.input import Elicitation
from baton.activities.tool.mcp.request import McpRequest, list_tools, use_tool
from baton.contracts.errors import ToolFailed
from tests.harness.mcp_process import McpServerProcess, command
from tests.harness.scripted_mcp_server import ScriptedMcpServer


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[ScriptedMcpServer]:
    async with ScriptedMcpServer().serving() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def connections() -> AsyncIterator[McpConnections]:
    connections = McpConnections()
    yield connections
    await connections.close()


def at(server: ScriptedMcpServer, **more: Any) -> McpEndpoint:
    """The endpoint of a server."""
    return McpEndpoint("test", server.url, **more)


async def ask(connections: McpConnections, endpoint: McpEndpoint, tool: str = "echo", seconds: float = 30) -> str:
    """What a tool answers."""

    async def current(_: bool, __: bool) -> McpEndpoint:
        return endpoint

    result = await McpRequest(connections, current, repeatable=False).send(use_tool(tool, {}, "test"), seconds)
    return result.content[0].text  # type: ignore[union-attr]  # the tools here answer with a text


async def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_connection_in_use_is_kept_and_one_without_a_call_is_closed(tmp_path: Path) -> None:
    endpoint = McpEndpoint("test", command=tuple(command("stdio", tmp_path)))
    connections, loop = McpConnections(idle=3), asyncio.get_running_loop()
    processes = {await ask(connections, endpoint, "process")}
    connection, end = connections.to(endpoint), loop.time() + 5
    while loop.time() < end:
        processes.add(await ask(connections, endpoint, "process"))
        await asyncio.sleep(0.05)
    assert len(processes) == 1
    assert connections.to(endpoint) is connection
    await until(lambda: connection.is_closed)
    assert await ask(connections, endpoint, "process") not in processes
    await connections.close()


async def test_a_server_that_takes_no_notification_holds_no_other_call(
    connections: McpConnections, server: ScriptedMcpServer
) -> None:
    server.silent = {"slow", "notifications/cancelled"}
    slow = asyncio.create_task(ask(connections, at(server), "slow"))
    await until(lambda: "slow" in server.seen)
    first = connections.to(at(server))
    slow.cancel()
    await until(lambda: "notifications/cancelled" in server.seen)
    assert await ask(connections, at(server)) == "done"
    await until(lambda: first.is_closed)
    assert await ask(connections, at(server)) == "done"
    assert server.seen.count("initialize") == 2


async def test_a_server_that_does_not_end_its_session_does_not_keep_the_worker_from_ending(
    connections: McpConnections, server: ScriptedMcpServer
) -> None:
    server.silent = {"DELETE"}
    assert await ask(connections, at(server)) == "done"
    async with asyncio.timeout(30):
        await connections.close()
    assert "DELETE" in server.seen


async def test_a_connection_that_nobody_waits_for_any_more_is_opened_anew_by_the_next_call(
    connections: McpConnections, server: ScriptedMcpServer
) -> None:
    server.silent = {"initialize"}
    with pytest.raises(ToolFailed, match=r"gave no answer in 0\.5 s") as failure:
        await ask(connections, at(server), seconds=0.5)
    assert not failure.value.non_retryable
    server.silent.clear()
    assert await ask(connections, at(server)) == "done"


@pytest.mark.parametrize(("status", "asked"), [(401, [(False, False), (True, True)]), (404, [(False, False)])])
async def test_an_sse_server_that_refuses_the_connection_is_told_as_any_other(
    connections: McpConnections, server: ScriptedMcpServer, status: int, asked: list[tuple[bool, bool]]
) -> None:
    server.statuses = {"GET": status}
    seen = list[tuple[bool, bool]]()

    async def current(anew: bool, unauthorized: bool) -> McpEndpoint:
        seen.append((anew, unauthorized))
        return at(server, transport="sse")

    with pytest.raises(ToolFailed, match=f"answered HTTP {status}") as failure:
        await McpRequest(connections, current).send(use_tool("echo", {}, "test"), 30)
    assert failure.value.non_retryable
    assert seen[: len(asked)] == asked


async def test_many_small_parts_of_an_answer_are_not_read(
    connections: McpConnections, server: ScriptedMcpServer
) -> None:
    server.results = {"tools/call": lambda _: {"content": [{"type": "text", "text": "1"}] * 40_000}}
    with pytest.raises(ToolFailed, match="gives more than 30,000 objects") as failure:
        await ask(connections, at(server))
    assert failure.value.non_retryable


async def test_a_long_text_may_hold_many_objects(connections: McpConnections, server: ScriptedMcpServer) -> None:
    text = '{"a": 1}' * 40_000
    server.results = {"tools/call": lambda _: {"content": [{"type": "text", "text": text}]}}
    assert await ask(connections, at(server)) == text


async def test_no_page_is_read_after_the_thousandth_tool(
    connections: McpConnections, server: ScriptedMcpServer
) -> None:
    tools = [{"name": f"tool-{number}", "inputSchema": {"type": "object"}} for number in range(600)]
    server.results = {"tools/list": lambda _: {"tools": tools, "nextCursor": "more"}}

    async def current(_: bool, __: bool) -> McpEndpoint:
        return at(server)

    with pytest.raises(ToolFailed, match="lists more than 1,000 tools"):
        await McpRequest(connections, current).send(list_tools, 30)
    assert server.seen.count("tools/list") == 2


async def test_a_server_that_is_put_back_to_an_older_version_is_met_again(
    connections: McpConnections, tmp_path: Path
) -> None:
    newer = McpServerProcess("2026", tmp_path)
    with newer.running():
        assert (await ask(connections, McpEndpoint("test", newer.url), "process")).isdigit()
    with McpServerProcess("2025", tmp_path, port=newer.port).running():
        assert (await ask(connections, McpEndpoint("test", newer.url), "process")).isdigit()


async def test_a_call_that_waits_for_another_with_questions_has_its_own_time_and_has_not_begun(
    connections: McpConnections, server: ScriptedMcpServer
) -> None:
    server.seconds = 1
    begun = list[int]()

    async def current(_: bool, __: bool) -> McpEndpoint:
        return at(server, asks=True)

    async def begin() -> None:
        begun.append(server.seen.count("echo"))

    async def one() -> str:
        request, asks = McpRequest(connections, current, repeatable=False, begin_once=begin), Elicitation("test", None)
        result = await request.send(use_tool("echo", {}, "test", asks), 4, asks)
        return result.content[0].text  # type: ignore[union-attr]  # the tool answers with a text

    assert await asyncio.gather(*(one() for _ in range(6))) == ["done"] * 6
    assert begun == [*range(6)]
