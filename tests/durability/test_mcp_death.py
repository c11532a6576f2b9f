"""A worker that is killed under a call of an MCP tool: no second unsafe call, and a safe one is answered."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from baton.contracts.turn import TurnResult
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Json, agent, ended
from tests.harness.killable import KillableWorker, wait_until
from tests.harness.mcp_process import McpServerProcess
from tests.harness.tool_answers import plain_answer


def answer(request: Request) -> Reply:
    """Uses the only tool that it was offered, and then repeats its result."""
    received = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    given: Json = {"test-note": {"words": "once", "seconds": 60}, "test-work": {"steps": 10, "seconds": 0.3}}
    name = request["tools"][0]["function"]["name"]
    return Reply(text=received[0]) if received else Reply(calls=[ScriptedToolCall(name=name, arguments=given[name])])


@pytest_asyncio.fixture(loop_scope="session")
async def killable(client: Client, server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[KillableWorker]:
    """A worker that can be killed."""
    async with KillableWorker.ready(client, server.address, tmp_path, answer) as killable:
        yield killable


UNKNOWN = "Error: test-note was started before and interrupted; whether it was executed is unknown"


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "received"), [("test-note", UNKNOWN), ("test-work", "all done")])
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_only_a_safe_call_is_made_again_after_the_death_of_its_worker(
    killable: KillableWorker, tmp_path: Path, era: str, tool: str, received: str
) -> None:
    with McpServerProcess(era, tmp_path).running() as mcp:
        resources = [agent("one", tool), mcp.manifest()]
        handle = await killable.start("agent", agent="one", input="Use it!", resources=resources)
        await wait_until(lambda: (tmp_path / "calls").exists() or (tmp_path / "working").exists())
        killable.restart()
        turn = await ended(handle, TurnResult)
        assert turn.message == received
        assert len(mcp.calls) == (tool == "test-note")
