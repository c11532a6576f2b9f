"""Agents that are executed elsewhere, and a worker or a server that dies: nothing is lost, nothing is done twice."""

import asyncio
import contextlib
import sqlite3
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import Part, TaskState
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from baton.contracts.turn import TurnResult
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from tests.harness.agent_server import AgentServer, Turn
from tests.harness.environment import Handle, Json, ended
from tests.harness.killable import journal_rows, wait_until
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.remote_agents import a2a_agent, a2a_server, engine, engine_agent, said
from tests.harness.tool_server import Answer, ToolServer

TRUST = {"BATON_INLINE_MANIFESTS": "all"}
"""The servers of the tests are in the worker's own network."""


@pytest_asyncio.fixture(loop_scope="session")
async def worker(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker that runs."""
    env = process_env(
        TEMPORAL_ADDRESS=server.address,
        BATON_HOME=str(tmp_path),
        BATON_INLINE_MANIFESTS="all",
        BATON_GRACEFUL_SHUTDOWN="1",
        BATON_TASK_QUEUE=uuid.uuid4().hex,
    )
    process = WorkerProcess(env, tmp_path / "worker.log")
    process.start()
    yield process
    await process.stop()


async def start(client: Client, worker: WorkerProcess, *manifests: Json) -> Handle:
    """Starts the agent ``oracle``."""
    return await client.start_workflow(
        "agent",
        {"agent": "oracle", "input": "Why?", "resources": [*manifests]},
        id=f"remote-{uuid.uuid4().hex[:8]}",
        task_queue=worker.task_queue,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
    )


async def until_noted(folder: Path) -> None:
    """Waits until the worker has noted the task of its call in the journal, where the next attempt finds it."""

    def is_noted() -> bool:
        query = "select count(*) from baton_messages where id like '%/task'"
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(folder / "journal.db")) as database:
            return bool(database.execute(query).fetchone()[0])
        return False

    await wait_until(is_noted)


def of_server(agents: AgentServer, **spec: Any) -> list[Json]:
    """An agent, and its A2AServer."""
    return [a2a_agent("oracle"), a2a_server(agents, **spec)]


def of_engine(tool_server: ToolServer, **spec: Any) -> list[Json]:
    """An agent, and its ExecutionEngine."""
    return [engine_agent("oracle"), engine(tool_server, **spec)]


SAID = said("Because.")


@pytest.mark.slow
@pytest.mark.parametrize(("idempotent", "requests"), [(False, 1), (True, 2)])
async def test_an_execution_whose_worker_dies_is_repeated_only_by_an_idempotent_engine(
    client: Client, worker: WorkerProcess, tool_server: ToolServer, idempotent: bool, requests: int
) -> None:
    tool_server.answers(Answer(hang=True), SAID)
    handle = await start(client, worker, *of_engine(tool_server, idempotent=idempotent))
    await wait_until(lambda: len(tool_server.seen) == 1)
    worker.kill()
    worker.start()
    turn = await ended(handle, TurnResult)
    assert len(tool_server.seen) == requests
    assert len({seen.headers["idempotency-key"] for seen in tool_server.seen}) == 1
    if idempotent:
        assert turn.message == "Because."
    else:
        assert turn.failure
        assert turn.failure.type == "OutcomeUnknown"


async def stop(worker: WorkerProcess) -> None:
    await worker.stop()


async def kill(worker: WorkerProcess) -> None:
    worker.kill()


@pytest.mark.slow
@pytest.mark.parametrize("end", [kill, stop])
@pytest.mark.parametrize("version", ["1.0", "0.3.0"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_task_whose_worker_ends_is_followed_by_the_next_and_not_begun_twice(
    client: Client,
    worker: WorkerProcess,
    tmp_path: Path,
    version: str,
    streaming: bool,
    end: Callable[[WorkerProcess], Any],
) -> None:
    agents = AgentServer()
    ended_at: list[int] = []

    async def slow(turn: Turn) -> None:
        task = await turn.task()
        await task.start_work()
        while not (ended_at and len(agents.calls) > ended_at[0]):  # until the next worker follows
            await asyncio.sleep(0.02)
        await task.add_artifact([Part(text="Because.")])
        await task.complete()

    agents.version, agents.streaming, agents.behaviour = version, streaming, slow
    with agents.serving():
        handle = await start(client, worker, *of_server(agents))
        await until_noted(tmp_path)
        await end(worker)
        ended_at.append(len(agents.calls))
        worker.start()
        turn = await ended(handle, TurnResult)
    assert turn.message == "Because."
    assert len(agents.turns) == 1
    sent = [call for call in agents.calls if call.startswith(("Send", "message/"))]
    assert len(sent) == 1, agents.calls
    assert agents.canceled == []


@pytest.mark.parametrize("version", ["1.0", "0.3.0"])
@pytest.mark.parametrize("given_up", [False, True], ids=["at once", "after its attempt was given up"])
async def test_a_cancel_while_no_worker_lives_reaches_the_task_when_one_is_back(
    client: Client, worker: WorkerProcess, tmp_path: Path, version: str, given_up: bool
) -> None:
    async def slow(turn: Turn) -> None:
        await (await turn.task()).start_work()
        await asyncio.sleep(120)

    agents = AgentServer()
    agents.version, agents.behaviour = version, slow
    with agents.serving():
        handle = await start(client, worker, *of_server(agents))
        await until_noted(tmp_path)
        worker.kill()
        await handle.signal("cancel")
        while given_up and await is_attempted(handle):
            await asyncio.sleep(0.05)
        worker.start()
        turn = await ended(handle, TurnResult)
        assert turn.stop_reason == "canceled"
        assert [*{*agents.canceled}] == [agents.turns[0].context.task_id]


async def is_attempted(handle: Handle) -> bool:
    """Whether Temporal takes the worker of a run's call for alive."""
    calls = (await handle.describe()).raw_description.pending_activities
    return any(call.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED for call in calls)


@pytest.mark.parametrize("goes_on", [False, True], ids=["completed meanwhile", "still going on"])
async def test_a_message_whose_worker_dies_before_it_knows_the_task_is_found_again(
    client: Client, worker: WorkerProcess, goes_on: bool
) -> None:
    killed, completed = threading.Event(), threading.Event()

    async def slow(turn: Turn) -> None:
        while not killed.is_set():  # no event yet: the worker can't know the task
            await asyncio.sleep(0.02)
        task = await turn.task()
        await task.start_work()
        while goes_on and "ListTasks" not in agents.calls:
            await asyncio.sleep(0.02)
        await task.add_artifact([Part(text="Because.")])
        await task.complete()
        completed.set()

    agents = AgentServer()
    agents.behaviour = slow
    with agents.serving():
        handle = await start(client, worker, *of_server(agents))
        await wait_until(lambda: len(agents.turns) == 1)
        worker.kill()
        killed.set()
        await wait_until(lambda: goes_on or completed.is_set())
        worker.start()
        turn = await ended(handle, TurnResult)
    assert (turn.message, len(agents.turns)) == ("Because.", 1)
    assert "ListTasks" in agents.calls


@pytest.mark.slow
@pytest.mark.parametrize(("idempotent", "turns"), [(False, 1), (True, 2)])
async def test_a_message_of_which_the_server_can_not_say_anything_is_not_sent_again(
    client: Client, worker: WorkerProcess, idempotent: bool, turns: int
) -> None:
    agents = AgentServer()

    async def slow(turn: Turn) -> None:
        await asyncio.sleep(30 if len(agents.turns) == 1 else 0)
        await turn.reply("Because.")

    agents.version, agents.behaviour = "0.3.0", slow
    with agents.serving():
        handle = await start(client, worker, *of_server(agents, idempotent=idempotent))
        await wait_until(lambda: len(agents.turns) == 1)
        worker.kill()
        worker.start()
        turn = await ended(handle, TurnResult)
    assert len(agents.turns) == turns
    assert len({each.message.message_id for each in agents.turns}) == 1
    assert turn.message == "Because." if idempotent else turn.failure and turn.failure.type == "OutcomeUnknown"


async def test_a_task_outlives_a_restart_of_its_server(client: Client, worker: WorkerProcess, tmp_path: Path) -> None:
    async def slow(turn: Turn) -> None:
        task = await turn.task()
        await task.start_work()
        await asyncio.sleep(60)

    first = AgentServer()
    first.behaviour = slow
    with first.serving():
        handle = await start(client, worker, *of_server(first))
        await until_noted(tmp_path)
    await asyncio.sleep(0.9)  # nobody is there
    assert isinstance(first.store, InMemoryTaskStore)
    for tasks in first.store._impl.tasks.values():  # what a durable agent does after its restart
        for task in tasks.values():
            task.status.state = TaskState.TASK_STATE_COMPLETED
            task.status.message.parts.append(Part(text="Because."))
    with first.serving():
        turn = await ended(handle, TurnResult)
    assert (turn.message, len(first.turns)) == ("Because.", 1)


async def test_a_task_that_its_server_has_forgotten_is_not_begun_again(
    client: Client, worker: WorkerProcess, tmp_path: Path
) -> None:
    async def slow(turn: Turn) -> None:
        await (await turn.task()).start_work()
        await asyncio.sleep(60)

    first = AgentServer()
    first.behaviour = slow
    with first.serving():
        handle = await start(client, worker, *of_server(first))
        await until_noted(tmp_path)
    first.store = InMemoryTaskStore()
    with first.serving():
        turn = await ended(handle, TurnResult)
    assert turn.failure
    assert turn.failure.type == "OutcomeUnknown"
    assert "no longer has the task" in turn.failure.message
    assert len(first.turns) == 1


@pytest.mark.slow
async def test_an_answer_that_stands_is_not_asked_for_again(
    client: Client, worker: WorkerProcess, tool_server: ToolServer, tmp_path: Path
) -> None:
    """The worker is killed right after its answer is written, before Temporal has heard of it or just after."""
    tool_server.answers(SAID)
    for number in (1, 2):
        handle = await start(client, worker, *of_engine(tool_server))
        await wait_until(lambda: journal_rows(tmp_path / "journal.db") >= 2 * number)  # noqa: B023  # awaited at once
        worker.kill()
        worker.start()
        assert (await ended(handle, TurnResult)).message == "Because."
        assert len(tool_server.seen) == number
