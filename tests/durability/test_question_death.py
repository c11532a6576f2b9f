"""A worker that is killed while a server waits for a person: asked once, answered once, and carried out once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowExecutionStatus

from baton.contracts.turn import TurnResult
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Json, agent, ended
from tests.harness.killable import KillableWorker, pending_of
from tests.harness.mcp_process import McpServerProcess
from tests.harness.tool_answers import plain_answer
from tests.workflows.test_people import reply


def answer(request: Request) -> Reply:
    """Books a room, and then repeats the result."""
    received = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    book = ScriptedToolCall(name="test-book", arguments={"day": "Monday"})
    return Reply(text=received[0]) if received else Reply(calls=[book])


@pytest_asyncio.fixture(loop_scope="session")
async def killable(client: Client, server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[KillableWorker]:
    async with KillableWorker.ready(client, server.address, tmp_path, answer) as killable:
        yield killable


async def book(killable: KillableWorker, resources: list[Json], answers: dict[str, str]) -> TurnResult:
    """Books a room in a run that answers the server's questions, with kills of the worker before and after each."""
    handle = await killable.start("agent", agent="one", input="Book!", resources=resources)
    seen = set[str]()
    for words, text in answers.items():
        while not (asked := [a for a in await pending_of(handle) if a.id not in seen]):
            await asyncio.sleep(0.05)
            if (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING:
                break
        if not asked:
            break
        killable.restart()
        assert words in (asked[0].question or "")
        seen.add(asked[0].id)
        await reply(handle, text, to=asked[0].id)
        killable.restart()
    return await ended(handle, TurnResult)


@pytest.mark.slow
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_question_of_a_server_survives_the_death_of_its_worker_and_its_call_is_made_once(
    killable: KillableWorker, tmp_path: Path, era: str
) -> None:
    with McpServerProcess(era, tmp_path).running() as mcp:
        resources = [agent("one", "test-book"), mcp.manifest(questions={})]
        answers = {"Which room?": '{"room": "blue"}', "How many nights": '{"nights": 2}'}
        booked = "booked blue for 2 on Monday"
        for _ in range(4):
            before = len(mcp.calls)
            turn = await book(killable, resources, answers)
            if turn.message == "booked the blue room":
                break
            # The server had got a reply when the worker was killed, so nobody knows what it has done.
            assert "unknown" in (turn.failure.message if turn.failure else turn.message)
        assert turn.message == "booked the blue room"
        assert mcp.calls[before:] == [booked]
        assert {*mcp.calls} == {booked}
