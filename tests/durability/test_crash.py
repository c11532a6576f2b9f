"""A worker that is killed at any moment loses nothing, says nothing twice, and asks for no answer twice."""

import asyncio
import contextlib
import json
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from baton.conversation.messages.turn import TurnResult
from baton.conversation.temporal.temporal_client import TASK_QUEUE, TASK_TIMEOUT, connect
from baton.starter.scripted_model.script import Call, Reply, Request
from baton.starter.scripted_model.server import ScriptedModel
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import KEY, agent, manifest, replay, team, texts
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.tool_server import Answer, ToolServer

MANIFESTS = [agent("one"), agent("two"), agent("three"), team("team", "one", "two", "three", maxTurns=3)]
SAID = [f"answer {number}" for number in range(1, 10)]


class Play:
    """A team of three on a worker that can be killed; the model takes its time for the fifth answer."""

    def __init__(self, client: Client, model: ScriptedModel, worker: WorkerProcess, journal: Path) -> None:
        self.client, self.model, self.worker, self.journal = client, model, worker, journal

    def written(self) -> int:
        """How many rows the journal holds."""
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self.journal)) as database:
            return int(database.execute("select count(*) from baton_messages").fetchone()[0])
        return 0


def answer(request: Request) -> Reply:
    number = sum(message["role"] == "assistant" for message in request["messages"]) + 1
    return Reply(text=f"answer {number}", delay=1.0 if number == 5 else 0.02)


@pytest_asyncio.fixture(loop_scope="session")
async def play(client: Client, server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Play]:
    model = ScriptedModel(answer)
    with model.serving() as url:
        env = process_env(
            TEMPORAL_ADDRESS=server.address, BATON_HOME=str(tmp_path), OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY
        )
        worker = WorkerProcess(env, tmp_path / "worker.log")
        yield Play(client, model, worker, tmp_path / "journal.db")
        await worker.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def reached(play: Play, rows: int) -> bool:
    return play.written() >= rows


async def test_a_tool_call_survives_the_death_of_its_worker(play: Play) -> None:
    """The call is in flight as its worker dies: a reply that calls for the tool stands, its result may or may not."""
    play.model._answer = lambda request: Reply(calls=[Call(name="terminate", arguments={"response": "Done."})])
    for rows in (2, 3):
        play.worker.start()
        before = play.written()
        handle = await play.client.start_workflow(
            "round-robin",
            {"team": "t", "input": "Why?", "resources": [agent("one", "terminate"), team("t", "one", maxTurns=9)]},
            id=f"crash-{uuid.uuid4().hex[:8]}",
            task_queue=TASK_QUEUE,
            task_timeout=TASK_TIMEOUT,
        )
        await until(partial(reached, play, before + rows))
        play.worker.kill()
        play.worker.start()
        turn = TurnResult.model_validate_json(json.dumps(await handle.result()))
        assert (turn.stop_reason, turn.turns, turn.message) == ("terminated", 1, "Done.")
        assert play.written() == before + 3
        play.worker.kill()
    play.worker.start()


UNKNOWN = "was begun by a worker that died; whether it was carried out is unknown"


async def start_tool(play: Play, tool_server: ToolServer, method: str) -> WorkflowHandle[Any, Any]:
    """Starts an agent that uses a tool over HTTP once, and then repeats what it heard."""

    def say(request: Request) -> Reply:
        heard = [message["content"] for message in request["messages"] if message["role"] == "tool"]
        return Reply(text=heard[0]) if heard else Reply(calls=[Call(name="order")])

    play.model._answer = say
    order = manifest("Tool", "order", {"type": "http", "http": {"url": tool_server.url, "method": method}})
    given = {"agent": "one", "input": "Order!", "resources": [agent("one", "order"), order]}
    play.worker.start()
    return await play.client.start_workflow(
        "agent", given, id=f"crash-{uuid.uuid4().hex[:8]}", task_queue=TASK_QUEUE, task_timeout=TASK_TIMEOUT
    )


@pytest.mark.parametrize(
    ("method", "calls", "heard"),
    [
        ("POST", 1, "Error: order was begun by a worker that died; whether it was carried out is unknown"),
        ("PUT", 2, "ok"),
    ],
)
async def test_a_tool_that_may_be_used_once_is_not_used_again_after_the_death_of_its_worker(
    play: Play, tool_server: ToolServer, method: str, calls: int, heard: str
) -> None:
    tool_server.answers(Answer(hang=True), Answer("ok"))
    handle = await start_tool(play, tool_server, method)
    await until(lambda: len(tool_server.seen) == 1)
    play.worker.kill()
    play.worker.start()
    turn = TurnResult.model_validate_json(json.dumps(await handle.result()))
    assert turn.message == heard
    assert len(tool_server.seen) == calls
    assert len({seen.headers["idempotency-key"] for seen in tool_server.seen}) == 1


async def test_an_answer_of_a_tool_that_stands_is_not_asked_for_again(play: Play, tool_server: ToolServer) -> None:
    """Killed right after the answer is written, before Temporal has heard of it or just after."""
    for _ in range(5):
        before, tool_server.seen[:] = play.written(), []
        handle = await start_tool(play, tool_server, "GET")
        await until(partial(reached, play, before + 3))
        play.worker.kill()
        play.worker.start()
        turn = TurnResult.model_validate_json(json.dumps(await handle.result()))
        assert (turn.message, len(tool_server.seen)) == ("sunny", 1)
        play.worker.kill()
    play.worker.start()


MOMENTS: dict[str, Callable[[Play], bool]] = {
    "before-the-first-call": lambda play: play.written() == 1,
    "in-a-call": lambda play: len(play.model.asked) == 5,
    "just-after-an-answer-was-written": lambda play: play.written() == 5,
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_run_survives_the_death_of_its_worker(play: Play, moment: str) -> None:
    play.worker.start()
    handle = await play.client.start_workflow(
        "round-robin",
        {"team": "team", "input": "Why?", "resources": MANIFESTS},
        id=f"crash-{uuid.uuid4().hex[:8]}",
        task_queue=TASK_QUEUE,
        task_timeout=TASK_TIMEOUT,
    )
    await until(lambda: MOMENTS[moment](play))
    play.worker.kill()
    killed, asked = time.time(), len(play.model.asked)
    play.worker.start()

    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, ApplicationError)
    turn = TurnResult.model_validate_json(json.dumps(failure.value.cause.details[0]))
    assert turn.stop_reason == "max_turns"
    assert texts(turn.messages) == SAID
    assert play.written() == 1 + len(SAID), "each message stands once in the journal"
    answered = Counter(
        sum(m["role"] == "assistant" for m in a.request["messages"]) for a in play.model.asked if a.answered
    )
    assert answered == Counter(range(9)), "no answered call was repeated"
    waited = play.model.asked[asked].at - killed
    print(f"{moment}: {waited:.1f} s from the restart to the next call")
    assert waited < 30
    await replay([await handle.fetch_history()])


async def test_a_run_survives_the_death_of_its_worker_as_it_goes_on_in_a_new_one(
    server_with_short_histories: EmbeddedServer, tmp_path: Path
) -> None:
    """It is killed at two moments around that at which the run goes on."""
    model = ScriptedModel(lambda request: Reply(text=str(len(request["messages"]) - 1)))
    with model.serving() as url:
        env = process_env(
            TEMPORAL_ADDRESS=server_with_short_histories.address,
            BATON_HOME=str(tmp_path),
            OPENAI_BASE_URL=url,
            OPENAI_API_KEY=KEY,
        )
        worker = WorkerProcess(env, tmp_path / "log")
        play = Play(await connect(server_with_short_histories.address), model, worker, tmp_path / "journal.db")
        play.worker.start()
        given = {"team": "t", "input": "?", "resources": [agent("one"), team("t", "one", maxTurns=24)]}
        handle = await play.client.start_workflow(
            "round-robin", given, id=f"crash-{uuid.uuid4().hex[:8]}", task_queue=TASK_QUEUE, task_timeout=TASK_TIMEOUT
        )
        for rows in (8, 17):
            await until(partial(reached, play, rows))
            play.worker.kill()
            play.worker.start()
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert isinstance(failure.value.cause, ApplicationError)
        turn = TurnResult.model_validate_json(json.dumps(failure.value.cause.details[0]))
        assert (turn.stop_reason, turn.turns) == ("max_turns", 24)
        assert texts(turn.messages) == [str(number) for number in range(1, 25)]
        assert play.written() == 25, "each message stands once in the journal"
        await play.worker.stop()
