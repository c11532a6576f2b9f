"""A Temporal server that is killed, alone or with its worker: no message is lost and no answered call repeated."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from baton.contracts.turn import TurnResult
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Handle, agent, manifest, texts
from tests.harness.killable import REPLIES, Kill, KillableEnvironment, reply_count, wait_until
from tests.harness.replayer import replay
from tests.harness.tool_answers import plain_answer
from tests.harness.tool_server import Answer, ToolServer


@pytest_asyncio.fixture(loop_scope="session")
async def killable(tmp_path: Path) -> AsyncIterator[KillableEnvironment]:
    async with KillableEnvironment.running(tmp_path) as killable:
        yield killable


def asked(killable: KillableEnvironment, *, answered: bool = False) -> Counter[int]:
    """How often each reply was requested."""
    return Counter(reply_count(each.body) for each in killable.model.requests if each.answered or not answered)


async def ended(handle: Handle) -> TurnResult:
    """The end of a team whose rounds are used up."""
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, ApplicationError)
    return TurnResult.model_validate_json(json.dumps(failure.value.cause.details[0]))


KILL_POINTS: dict[str, Callable[[KillableEnvironment], bool]] = {
    "before-the-first-call": lambda killable: killable.journal_rows() >= 1,
    "in-a-call": lambda killable: len(killable.model.requests) >= 5 + killable.failing,
    "just-after-an-answer-was-written": lambda killable: killable.journal_rows() >= 5,
}


@pytest.mark.slow
@pytest.mark.parametrize("worker_too", [False, True], ids=["server", "server-and-worker"])
@pytest.mark.parametrize("kill_point", KILL_POINTS)
async def test_a_run_survives_the_death_of_its_server(
    killable: KillableEnvironment, kill_point: str, worker_too: bool
) -> None:
    is_reached = partial(KILL_POINTS[kill_point], killable)
    kill = Kill(killable.answer, is_reached)
    if worker_too:
        killable.model._answer = kill.answer
    handle = await killable.start_team()
    await wait_until(is_reached)
    if worker_too:
        killable.worker.kill()
        kill.is_over = True
    await killable.kill_server()
    restarted, before = time.time(), len(killable.model.requests)
    await killable.server.start()
    if worker_too:  # it ends if it finds no server
        killable.worker.start()

    turn = await ended(handle)
    assert (turn.stop_reason, texts(turn.messages)) == ("max_turns", REPLIES)
    assert killable.journal_rows() == 1 + len(REPLIES), "each message stands once in the journal"
    assert asked(killable, answered=worker_too) == Counter(range(9)), "no answered call was repeated"
    waited = killable.model.requests[before].received_at - restarted
    print(f"{kill_point}: {waited:.1f} s from the restart to the next call")
    assert waited < 60, "a few seconds, and some for a busy machine"
    await replay([await handle.fetch_history()])


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "away", "failing"), [(5, 3, 0), (8, 3, 3), (12, 9, 0)], ids=["short", "wait", "long"])
async def test_a_model_that_is_asked_while_the_server_is_away_is_not_asked_again(
    killable: KillableEnvironment, slow: float, away: float, failing: int
) -> None:
    """Without heartbeats for so long the attempt is ended; the next one takes over its call, be it after a wait."""
    killable.slow, killable.failing = slow, failing
    handle = await killable.start_team()
    await wait_until(lambda: KILL_POINTS["in-a-call"](killable))
    await killable.stop_server_for(away)
    assert texts((await ended(handle)).messages) == REPLIES
    assert asked(killable) == Counter(range(9)) + Counter({4: failing}), "no call was made twice"
    assert killable.journal_rows() == 1 + len(REPLIES)


@pytest.mark.slow
async def test_an_answer_that_comes_while_the_server_is_away_is_kept(killable: KillableEnvironment) -> None:
    handle = await killable.start_team()
    await wait_until(lambda: KILL_POINTS["in-a-call"](killable))
    await killable.stop_server_for(4)
    back = time.time()
    assert texts((await ended(handle)).messages) == REPLIES
    assert asked(killable) == Counter(range(9))
    print(f"{killable.model.requests[5].received_at - back:.1f} s from the server's return to the next call")


@pytest.mark.slow
async def test_a_tool_that_may_be_used_once_answers_although_the_server_was_away(
    killable: KillableEnvironment, tool_server: ToolServer
) -> None:
    def say(request: Request) -> Reply:
        results = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
        return Reply(text=results[0]) if results else Reply(calls=[ScriptedToolCall(name="order")])

    killable.model._answer = say
    tool_server.answers(Answer("ordered", delay=5))
    order = manifest("Tool", "order", {"type": "http", "http": {"url": tool_server.url, "method": "POST"}})
    given = {"agent": "one", "input": "Order!", "resources": [agent("one", "order"), order]}
    handle = await killable.start("agent", given)
    await wait_until(lambda: len(tool_server.seen) == 1)
    await killable.stop_server_for(3)
    assert TurnResult.model_validate_json(json.dumps(await handle.result())).message == "ordered"
    assert len(tool_server.seen) == 1


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 3], ids=["taken-over", "not-yet"])
async def test_a_cancel_reaches_the_call_of_an_attempt_that_was_ended(
    killable: KillableEnvironment, failing: int
) -> None:
    """Three failures make Temporal wait for four seconds before another attempt takes the call over."""
    killable.slow, killable.failing = 200, failing
    handle = await killable.start_team()
    await wait_until(lambda: KILL_POINTS["in-a-call"](killable))
    # Frozen, so that its next heartbeat does not come before the server has noticed that one is missing.
    with killable.worker.frozen():
        await killable.stop_server_for(3)
        while (await pending(handle)).attempt < failing + 2:
            await asyncio.sleep(0.01)
    # After failures it is canceled before the next attempt, unless this process needs the four seconds itself.
    while not failing and (await pending(handle)).state != PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
        await asyncio.sleep(0.01)
    canceled = time.time()
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    while killable.model.requests[4 + failing].disconnected_at is None:
        await asyncio.sleep(0.05)
    assert (killable.model.requests[4 + failing].disconnected_at or 0) - canceled < 60, "long before the answer"
    assert len(killable.model.requests) == 5 + failing


async def pending(handle: Handle) -> PendingActivityInfo:
    """The call that Temporal waits for."""
    [call] = (await handle.describe()).raw_description.pending_activities
    return call
