"""Workers and servers that are killed while calls wait for approval: each is decided once, and none is made without it.

Six members of a team each ask to buy something. People decide while everything dies around them: they ask again until
they are told that the decision stands.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from baton.contracts.decisions import ApproveRequest, PendingDecision
from baton.contracts.turn import TurnResult
from baton.starter.runs.decisions import NotDecided, decide, pending_decisions
from baton.starter.runs.runs import NotServedError
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Handle, Json, agent, ended, manifest, team
from tests.harness.killable import KillableEnvironment
from tests.harness.tool_answers import plain_answer
from tests.harness.tool_server import ToolServer

BUYERS = [f"buyer-{number}" for number in range(1, 7)]


@pytest_asyncio.fixture(loop_scope="session")
async def killable(tmp_path: Path) -> AsyncIterator[KillableEnvironment]:
    async with KillableEnvironment.running(tmp_path) as killable:
        killable.model._answer = buy
        yield killable


def buy(request: Request) -> Reply:
    """Asks once to buy what is named like the buyer, and then repeats the result."""
    results = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    item = request["messages"][0]["content"].split()[2].rstrip(".")
    return Reply(text=results[0]) if results else Reply(calls=[ScriptedToolCall(name="buy", arguments={"item": item})])


def shop_of(server: ToolServer) -> Json:
    schema: Json = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
    http = {"url": f"{server.url}/{{item}}", "method": "POST"}
    return manifest("Tool", "buy", {"type": "http", "http": http, "inputSchema": schema, "approval": {}})


async def pending(handle: Handle) -> list[PendingDecision]:
    """What all buyers wait for, asked for until a worker answers."""
    while True:
        with contextlib.suppress(RPCError, NotServedError):
            decisions = await pending_decisions(handle._client, handle.id)
            if len(decisions) == len(BUYERS):
                return decisions
        await asyncio.sleep(0.05)


async def say(handle: Handle, asked: PendingDecision, number: int) -> None:
    """Says yes, no, or yes to something else, and again while it is not known whether that was heard."""
    given = ApproveRequest(call=asked.id, approved=number % 3 != 1, by="ann")
    changed: Json = {"arguments": {"item": f"{asked.speaker}-changed"}} if number % 3 == 2 else {}
    may_be_heard = False
    while True:
        try:
            await asyncio.wait_for(decide(handle._client, handle, given.model_copy(update=changed)), 10)
        except (RPCError, TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            may_be_heard = True
            continue
        except NotServedError:  # no worker runs: nothing was sent
            continue
        except NotDecided as error:
            # The run of the call may have ended by then: its parent knows only what waits.
            is_over = may_be_heard and "is not waiting for a decision" in str(error)
            assert is_over or "decided already" in str(error)
        return


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["worker", "server", "both"])
async def test_each_call_is_decided_once_and_only_approved_ones_are_made_whatever_is_killed(
    killable: KillableEnvironment, tool_server: ToolServer, killed: str
) -> None:
    members = [agent(name, "buy") for name in BUYERS]
    resources = [*members, team("team", *BUYERS, strategy="parallel"), shop_of(tool_server)]
    handle = await killable.start("parallel", {"team": "team", "input": "Buy!", "resources": resources})
    asked = sorted(await pending(handle), key=lambda each: each.speaker)
    assert tool_server.seen == []
    deciding = [asyncio.create_task(say(handle, each, number)) for number, each in enumerate(asked[:3])]
    await kill(killable, killed)
    deciding += [asyncio.create_task(say(handle, each, number)) for number, each in enumerate(asked[3:])]
    await kill(killable, killed)
    await asyncio.gather(*deciding)
    await ended(handle, TurnResult)
    made = Counter(each.path.lstrip("/") for each in tool_server.seen)
    wanted = {"buyer-1", "buyer-3-changed", "buyer-4", "buyer-6-changed"}
    assert set(made) <= wanted, "nothing is bought without approval"
    assert set(made.values()) == {1}, "nothing is bought twice"


async def kill(killable: KillableEnvironment, killed: str) -> None:
    """Kills the worker, the server or both, and starts them again."""
    if killed != "server":
        killable.worker.kill()
    if killed != "worker":
        await killable.stop_server_for(0.3)
    if killed != "server":
        killable.worker.start()
