"""A worker that is killed while a run waits for the result of a client's tool: asked once, and carried out once."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from baton.contracts.decisions import PendingDecision
from baton.contracts.status import Status
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Handle, Json, agent, ended
from tests.harness.killable import KillableWorker, pending_of
from tests.harness.tool_answers import plain_answer

CITIES = ("Bern", "Rome")


def answer(request: Request) -> Reply:
    """Asks for the weather in two cities at once, and then repeats it."""
    received = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    calls = [ScriptedToolCall(name="weather", arguments={"city": city}) for city in CITIES]
    return Reply(text=" and ".join(received)) if received else Reply(calls=calls)


@pytest_asyncio.fixture(loop_scope="session")
async def killable(client: Client, server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[KillableWorker]:
    async with KillableWorker.ready(client, server.address, tmp_path, answer) as killable:
        yield killable


async def waiting(handle: Handle, count: int) -> dict[str, PendingDecision]:
    """What the run waits for, by city, once it is so much."""
    while len(pending := await pending_of(handle)) != count:
        await asyncio.sleep(0.05)
    return {json.loads(decision.arguments or "")["city"]: decision for decision in pending}


@pytest.mark.slow
async def test_a_call_of_a_clients_tool_survives_the_death_of_its_worker_and_takes_one_result(
    killable: KillableWorker,
) -> None:
    tool: Json = {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}
    spec = {"input": "Weather?", "targets": [{"type": "agent", "name": "one"}], "client": {"tools": [tool]}}
    handle = await killable.start("query", name="q", spec=spec, resources=[agent("one", clients={"tools": True})])
    calls = await waiting(handle, 2)
    killable.restart()
    given = {"call": calls["Rome"].id, "output": "sun", "by": "ann"}
    await handle.execute_update("give_result", given)
    killable.restart()
    await handle.execute_update("give_result", given)
    assert {*await waiting(handle, 1)} == {"Bern"}
    killable.restart()
    await handle.execute_update("give_result", {"call": calls["Bern"].id, "output": "rain", "by": "ann"})
    killable.restart()
    status = await ended(handle, Status)
    assert status.message == "rain and sun"
    assert status.token_usage.tool_calls == 2
    # The call that repeats the results may be under way at the last kill.
    asking = [request for request in killable.model.requests if not request.body.tool_results]
    assert len(asking) == 1, "the calls are asked for once"
