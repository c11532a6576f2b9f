"""A worker with another journal than a run's own does not end the run: it waits for its own journal."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from baton import worker
from baton.starter.scripted_model.script import Reply, Request
from tests.harness.environment import Environment, Handle, agent, team, texts

TEAM = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=2, onMaxTurns="complete")]


@pytest.fixture
def other(env: Environment, tmp_path: Path) -> Environment:
    """The same task queue with an empty journal."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    return dataclasses.replace(env, folder=elsewhere)


async def begun(env: Environment, second: asyncio.Event) -> Handle:
    """A team on a task queue of its own, whose second turn waits for an event."""
    loop = asyncio.get_running_loop()

    def answer(request: Request) -> Reply:
        if len(env.model.requests) > 1:
            asyncio.run_coroutine_threadsafe(second.wait(), loop).result(60)
        return Reply(text=f"answer {len(env.model.requests)}")

    env.model._answer = answer
    handle = await env.start_team(TEAM)
    await env.wait_for_calls(2)
    return handle


async def test_a_run_waits_while_its_worker_has_another_journal_and_goes_on_with_its_own(
    env: Environment, other: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    second, env = asyncio.Event(), dataclasses.replace(env, task_queue=f"{env.task_queue}-own")
    other = dataclasses.replace(other, task_queue=env.task_queue)
    quick = {"BATON_GRACEFUL_SHUTDOWN": "0.1"}
    async with worker.run_worker(env.client, env.catalog, {**env.worker_env, **quick}):
        handle = await begun(env, second)
    async with worker.run_worker(env.client, env.catalog, {**other.worker_env, **quick}):
        second.set()
        while "waits: its conversation is not in the journal at sqlite:///" not in caplog.text:
            await asyncio.sleep(0.05)
        assert str(other.journal) in caplog.text
        await asyncio.sleep(2)
        assert (await handle.describe()).status.name == "RUNNING"  # type: ignore[union-attr]  # it has one
    async with worker.run_worker(env.client, env.catalog, env.worker_env):
        turn = await env.turn_result(handle)
    assert turn.failure is None
    assert texts(turn.messages)[0] == "answer 1"
    assert other.rows() == []


async def test_a_journal_that_is_moved_away_under_a_worker_is_noticed_and_waited_for(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    second = asyncio.Event()
    handle = await begun(env, second)
    moved = env.journal.rename(env.journal.with_name("moved.db"))
    second.set()
    while "was moved away or replaced while it is open" not in caplog.text:
        await asyncio.sleep(0.05)
    assert str(env.journal) in caplog.text
    moved.rename(env.journal)
    assert texts((await env.turn_result(handle)).messages) == [f"answer {number}" for number in range(1, 5)]
