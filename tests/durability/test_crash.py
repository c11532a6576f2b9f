"""A worker that is killed at any time loses no message, writes none twice, and repeats no answered call."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from baton.contracts.turn import TurnResult
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import connect
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Handle, agent, ended, manifest, team, texts
from tests.harness.killable import MANIFESTS, REPLIES, Kill, KillableWorker, reply_count, wait_until
from tests.harness.replayer import replay
from tests.harness.tool_answers import plain_answer
from tests.harness.tool_server import Answer, ToolServer


def answer(request: Request) -> Reply:
    return Reply(text=f"answer {reply_count(request) + 1}", delay=0.02)


@pytest_asyncio.fixture(loop_scope="session")
async def killable(client: Client, server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[KillableWorker]:
    async with KillableWorker.ready(client, server.address, tmp_path, answer) as killable:
        yield killable


def reached(killable: KillableWorker, rows: int) -> bool:
    return killable.journal_rows() >= rows


@pytest.mark.slow
async def test_a_tool_call_survives_the_death_of_its_worker(killable: KillableWorker) -> None:
    """The call is in flight as its worker dies: a reply that calls for the tool stands, its result may or may not."""
    killable.model._answer = lambda request: Reply(
        calls=[ScriptedToolCall(name="terminate", arguments={"response": "Done."})]
    )
    for rows in (2, 3):
        before = killable.journal_rows()
        brought = [agent("one", "terminate"), team("t", "one", maxTurns=9)]
        handle = await killable.start("round-robin", team="t", input="Why?", resources=brought)
        await wait_until(partial(reached, killable, before + rows))
        killable.restart()
        turn = await ended(handle, TurnResult)
        assert (turn.stop_reason, turn.turns, turn.message) == ("terminated", 1, "Done.")
        assert killable.journal_rows() == before + 3
        killable.worker.kill()
    killable.worker.start()


UNKNOWN = "was started before and interrupted; whether it was executed is unknown"


async def start_tool(killable: KillableWorker, tool_server: ToolServer, method: str) -> Handle:
    """Starts an agent that uses a tool over HTTP once, and then repeats its result."""

    def say(request: Request) -> Reply:
        received = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
        return Reply(text=received[0]) if received else Reply(calls=[ScriptedToolCall(name="order")])

    killable.model._answer = say
    order = manifest("Tool", "order", {"type": "http", "http": {"url": tool_server.url, "method": method}})
    return await killable.start("agent", agent="one", input="Order!", resources=[agent("one", "order"), order])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "calls", "received"),
    [
        ("POST", 1, "Error: order was started before and interrupted; whether it was executed is unknown"),
        ("PUT", 2, "ok"),
    ],
)
async def test_a_tool_that_may_be_used_once_is_not_used_again_after_the_death_of_its_worker(
    killable: KillableWorker, tool_server: ToolServer, method: str, calls: int, received: str
) -> None:
    tool_server.answers(Answer(hang=True), Answer("ok"))
    handle = await start_tool(killable, tool_server, method)
    await wait_until(lambda: len(tool_server.seen) == 1)
    killable.restart()
    turn = await ended(handle, TurnResult)
    assert turn.message == received
    assert len(tool_server.seen) == calls
    assert len({seen.headers["idempotency-key"] for seen in tool_server.seen}) == 1


@pytest.mark.slow
async def test_an_answer_of_a_tool_that_stands_is_not_asked_for_again(
    killable: KillableWorker, tool_server: ToolServer
) -> None:
    """Killed right after the answer is written, before Temporal has heard of it or just after."""
    for _ in range(5):
        before, tool_server.seen[:] = killable.journal_rows(), []
        handle = await start_tool(killable, tool_server, "GET")
        await wait_until(partial(reached, killable, before + 3))
        killable.restart()
        turn = await ended(handle, TurnResult)
        assert (turn.message, len(tool_server.seen)) == ("sunny", 1)
        killable.worker.kill()
    killable.worker.start()


KILL_POINTS: dict[str, Callable[[KillableWorker], bool]] = {
    "before-the-first-call": lambda killable: killable.journal_rows() >= 1,
    "in-a-call": lambda killable: len(killable.model.requests) >= 5,
    "just-after-an-answer-was-written": lambda killable: killable.journal_rows() >= 5,
}


@pytest.mark.slow
@pytest.mark.parametrize("kill_point", KILL_POINTS)
async def test_a_run_survives_the_death_of_its_worker(killable: KillableWorker, kill_point: str) -> None:
    is_reached = partial(KILL_POINTS[kill_point], killable)
    kill = Kill(answer, is_reached)
    killable.model._answer = kill.answer
    handle = await killable.start("round-robin", team="team", input="Why?", resources=MANIFESTS)
    await wait_until(is_reached)
    killable.worker.kill()
    kill.is_over = True
    killed, asked = time.time(), len(killable.model.requests)
    killable.worker.start()

    turn = await ended(handle, TurnResult)
    assert turn.stop_reason == "max_turns"
    assert texts(turn.messages) == REPLIES
    assert killable.journal_rows() == 1 + len(REPLIES), "each message stands once in the journal"
    answered = Counter(
        sum(m["role"] == "assistant" for m in a.body["messages"]) for a in killable.model.requests if a.answered
    )
    assert answered == Counter(range(9)), "no answered call was repeated"
    waited = killable.model.requests[asked].received_at - killed
    print(f"{kill_point}: {waited:.1f} s from the restart to the next call")
    assert waited < 60, "a few seconds, and some for a busy machine"
    await replay([await handle.fetch_history()])


@pytest.mark.slow
async def test_a_run_survives_the_death_of_its_worker_as_it_goes_on_in_a_new_one(
    server_with_short_histories: EmbeddedServer, tmp_path: Path
) -> None:
    """It is killed at two moments around that at which the run resumes."""
    address = server_with_short_histories.address

    def count(request: Request) -> Reply:
        return Reply(text=str(len(request["messages"]) - 1))

    async with KillableWorker.ready(await connect(address), address, tmp_path, count) as killable:
        brought = [agent("one"), team("t", "one", maxTurns=24)]
        handle = await killable.start("round-robin", team="t", input="?", resources=brought)
        for rows in (8, 17):
            await wait_until(partial(reached, killable, rows))
            killable.restart()
        turn = await ended(handle, TurnResult)
        assert (turn.stop_reason, turn.turns) == ("max_turns", 24)
        assert texts(turn.messages) == [str(number) for number in range(1, 25)]
        assert killable.journal_rows() == 25, "each message stands once in the journal"
