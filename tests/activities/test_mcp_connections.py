"""Connections to MCP servers: how long they are kept, and what a server that leaves something unanswered can't hold."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from baton.activities.tool.mcp.connection import McpConnections
from baton.activities.tool.mcp.endpoint import McpEndpoint
from baton.activities.tool.mcp.input import Elicitation
from baton.activities.tool.mcp.request import McpRequest, list_tools, use_tool
from baton.contracts.errors import ToolFailed
from tests.harness.manifests import own_server
from tests.harness.mcp_process import McpServerProcess, command
from tests.harness.scripted_mcp_server import ScriptedMcpServer

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")


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
    return McpEndpoint("test", own_server(server.url), **more)


async def ask(connections: McpConnections, endpoint: McpEndpoint, tool: str = "echo", seconds: float = 30) -> str:
    """What a tool answers."""

    async def current(_: bool, __: bool) -> McpEndpoint:
        return endpoint

    result = await McpRequest(connections, current, repeatable=False).send(use_tool(tool, {}, "test"), seconds)
    return result.content[0].text  # type: ignore[union-attr]  # the tools here answer with a text


async def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_connection_in_use_is_kept_and_one_without_a_call_is_closed(tmp_path: Path) -> None:
    endpoint = McpEndpoint("test", command=tuple(command("stdio", tmp_path)))
    connections, loop = McpConnections(idle=3), asyncio.get_running_loop()
    processes = {await ask(connections, endpoint, "process")}
    connection, end = connections.find(endpoint), loop.time() + 5
    assert connection
    while loop.time() < end:
        processes.add(await ask(connections, endpoint, "process"))
        await asyncio.sleep(0.05)
    assert len(processes) == 1
    assert connections.find(endpoint) is connection
    await until(lambda: connection.is_closed)
    assert await ask(connections, endpoint, "process") not in processes
    await connections.close()


@pytest.mark.full
async def test_a_server_that_takes_no_notification_holds_no_other_call(
    connections: McpConnections, server: ScriptedMcpServer
) -> None:
    server.silent = {"slow", "notifications/cancelled"}
    slow = asyncio.create_task(ask(connections, at(server), "slow"))
    await until(lambda: "slow" in server.seen)
    first = connections.find(at(server))
    assert first
    slow.cancel()
    await until(lambda: "notifications/cancelled" in server.seen)
    assert await ask(connections, at(server)) == "done"
    await until(lambda: first.is_closed)
    assert await ask(connections, at(server)) == "done"
    assert server.seen.count("initialize") == 2


@pytest.mark.full
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
    with pytest.raises(ToolFailed, match=r"did not respond within 0\.5 s") as failure:
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
    with pytest.raises(ToolFailed, match="sent more than 30,000 objects") as failure:
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


@pytest.mark.full
async def test_a_server_that_is_put_back_to_an_older_version_is_met_again(
    connections: McpConnections, tmp_path: Path
) -> None:
    newer = McpServerProcess("2026", tmp_path)
    with newer.running():
        assert (await ask(connections, McpEndpoint("test", own_server(newer.url)), "process")).isdigit()
    with McpServerProcess("2025", tmp_path, port=newer.port).running():
        assert (await ask(connections, McpEndpoint("test", own_server(newer.url)), "process")).isdigit()


@pytest.mark.full
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


@pytest.mark.slow
async def test_servers_that_are_processes_are_bounded_and_calls_wait_for_one_another(tmp_path: Path) -> None:
    """Each run has an environment of its own, and so a process of its own."""
    connections = McpConnections(most=3)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, sum(tmp_path.name in " ".join(child.cmdline()) for child in psutil.Process().children()))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    endpoints = [
        McpEndpoint("test", command=tuple(command("stdio", tmp_path)), env=(("USER_NUMBER", f"{number}"),))
        for number in range(8)
    ]
    processes = await asyncio.gather(*(ask(connections, endpoint, "process") for endpoint in endpoints))
    watching.cancel()
    assert len({*processes}) == 8
    assert 1 <= most <= 3
    await connections.close()


@pytest.mark.slow
async def test_two_hundred_users_with_tokens_of_their_own_share_a_few_connections(tmp_path: Path) -> None:
    connections = McpConnections(most=20)
    most = 0

    async def watch(server: psutil.Process) -> None:
        nonlocal most
        while True:
            opened = [each for each in server.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
            most = max(most, len(opened))
            await asyncio.sleep(0.05)

    with McpServerProcess("2025", tmp_path).running() as server:
        assert server._process
        watching = asyncio.create_task(watch(psutil.Process(server._process.pid)))
        endpoints = [
            McpEndpoint("test", own_server(server.url), headers=(("authorization", f"{user}"),)) for user in range(200)
        ]
        texts = await asyncio.gather(*(ask(connections, endpoint, "process") for endpoint in endpoints))
        watching.cancel()
        await connections.close()
    assert len(texts) == 200
    assert 1 <= most <= 2 * 20, "each session has a stream from the server beside its requests"


async def test_the_connection_that_was_used_least_recently_makes_room(server: ScriptedMcpServer) -> None:
    connections = McpConnections(most=2)
    first, second, third = (at(server, headers=(("authorization", user),)) for user in "abc")
    for endpoint in (first, second, first, third):
        assert await ask(connections, endpoint) == "done"
    assert [connections.find(endpoint) is not None for endpoint in (first, second, third)] == [True, False, True]
    await connections.close()


async def test_a_call_that_waits_for_a_connection_spends_none_of_its_time(server: ScriptedMcpServer) -> None:
    server.silent = {"slow"}
    answers = list[str]()
    for seconds in (1, 10):  # on a busy machine the call itself may take longer than the first of them
        connections = McpConnections(most=1)
        server.seen.clear()
        slow = asyncio.create_task(ask(connections, at(server), "slow", seconds=seconds * 1.5))
        await until(lambda: "slow" in server.seen)
        other = at(server, headers=(("authorization", "b"),))
        with contextlib.suppress(ToolFailed):
            answers.append(await ask(connections, other, seconds=seconds))
        with pytest.raises(ToolFailed, match="did not respond"):
            await slow
        await connections.close()
        if answers:
            break
    assert answers == ["done"], "it waits longer than it may take"
