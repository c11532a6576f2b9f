"""A worker with another journal than that of the open runs refuses to start, and no run ends for its sake."""

import asyncio
import contextlib
import dataclasses
import sqlite3
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton import worker
from baton.contracts.errors import JournalUnavailable
from baton.contracts.settings import SettingsError
from baton.journal.database import JournalIdentity
from baton.journal.journal import Journal
from baton.testing import Reply, Request
from tests.harness.environment import Environment, Handle, agent, team, texts
from tests.harness.postgres import execute
from tests.harness.processes import baton, process_env

TEAM = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=2, onMaxTurns="complete")]


QUICK = {"BATON_GRACEFUL_SHUTDOWN": "0.1"}


@pytest.fixture
def own(env: Environment) -> Environment:
    """A task queue that has no worker yet."""
    return dataclasses.replace(env, task_queue=f"{env.task_queue}-own")


@pytest.fixture
def other(own: Environment, tmp_path: Path) -> Environment:
    """The same task queue with an empty journal."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    return dataclasses.replace(own, folder=elsewhere)


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


@contextlib.asynccontextmanager
async def open_run(env: Environment) -> AsyncIterator[tuple[Handle, asyncio.Event]]:
    """An open run in the middle of its second turn, whose worker has ended."""
    second = asyncio.Event()
    async with worker.run_worker(env.client, env.catalog, {**env.worker_env, **QUICK}):
        handle = await begun(env, second)
    async with asyncio.timeout(20):
        while not [run async for run in env.client.list_workflows(f"TaskQueue = '{env.task_queue}'")]:
            await asyncio.sleep(0.1)
    yield handle, second
    second.set()


async def test_a_worker_with_another_journal_than_the_open_runs_began_with_refuses_to_start(
    own: Environment, other: Environment
) -> None:
    async with open_run(own) as (handle, second):
        with pytest.raises(SettingsError) as refused:
            async with worker.run_worker(own.client, own.catalog, other.worker_env):
                pass
        text = str(refused.value)
        assert f"at {other.journal_address}" in text
        assert f"the open run {handle.id} was started with the journal" in text
        assert f"at {own.journal_address}" in text
        second.set()
        async with worker.run_worker(own.client, own.catalog, own.worker_env):
            assert (await own.turn_result(handle)).failure is None
        async with worker.run_worker(own.client, own.catalog, other.worker_env):
            pass  # now that no run is open


async def test_a_worker_without_a_journal_ends_what_it_has_begun(own: Environment) -> None:
    settings = {"BATON_JOURNAL_URL": "mysql://localhost/baton", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}

    async def fail_to_start() -> None:
        with pytest.raises(JournalUnavailable):
            async with worker.run_worker(own.client, own.catalog, {**own.worker_env, **settings}):
                pass

    await fail_to_start()  # meanwhile the fixture's worker starts its tasks
    tasks = asyncio.all_tasks()
    await fail_to_start()
    assert asyncio.all_tasks() <= tasks


async def test_a_run_that_continued_as_new_still_names_its_journal(
    env_with_short_histories: Environment, tmp_path: Path
) -> None:
    own = dataclasses.replace(env_with_short_histories, task_queue=uuid.uuid4().hex)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    own.model._answer = lambda _: Reply(text="go on", delay=0.02)
    async with worker.run_worker(own.client, own.catalog, {**own.worker_env, **QUICK}):
        handle = await own.start_team([agent("one"), team("team", "one", maxTurns=5_000)])
        while (await handle.describe()).run_id == handle.first_execution_run_id:
            await asyncio.sleep(0.1)
    with pytest.raises(SettingsError, match=f"{handle.id} was started with the journal [0-9a-f]+ at"):
        async with worker.run_worker(own.client, own.catalog, {**own.worker_env, "BATON_HOME": str(elsewhere)}):
            pass
    await handle.terminate()


@pytest.mark.slow
async def test_a_journal_takes_the_place_of_one_that_is_lost_if_a_command_says_so(
    own: Environment, other: Environment
) -> None:
    async with open_run(own) as (handle, second):
        second.set()
        with pytest.raises(SettingsError) as refused:
            async with worker.run_worker(own.client, own.catalog, other.worker_env):
                pass
        command = str(refused.value).rpartition(": baton ")[2].split()
        done = await asyncio.to_thread(baton, *command, env=process_env(BATON_JOURNAL_URL=other.journal_address))
        assert done.returncode == 0, done.stderr
        async with worker.run_worker(own.client, own.catalog, other.worker_env):
            turn = await own.turn_result(handle)
    assert turn.failure is not None
    assert turn.failure.type == "JournalLost"


@pytest.mark.parametrize("missing", ["all rows", "the last row"])
async def test_a_run_waits_while_its_journal_lacks_rows_and_goes_on_when_they_are_back(
    own: Environment, missing: str
) -> None:
    async with open_run(own) as (handle, second):
        second.set()
        where = "" if missing == "all rows" else " where depth = (select max(depth) from baton_messages)"
        rows = await execute(own.journal_address, f"select * from baton_messages{where}")
        await execute(own.journal_address, f"delete from baton_messages{where}")  # as a backup of yesterday
        async with worker.run_worker(own.client, own.catalog, own.worker_env):
            assert await own.find_runs("BatonPhase = 'Waiting'", 1) == [handle.id]
            (outage,) = (await handle.query("status"))["outages"]
            assert outage["type"] == "JournalLost"
            assert "restore the journal's database from the backup that matches Temporal's" in outage["error"]
            with contextlib.closing(sqlite3.connect(own.journal)) as database, database:
                places = ", ".join("?" * len(rows[0]))
                database.executemany(f"insert into baton_messages values ({places})", rows)
            turn = await own.turn_result(handle)
    assert turn.failure is None
    assert texts(turn.messages)[0] == "answer 1"


@pytest.mark.parametrize("conversation", [None, "c"])
async def test_a_query_that_waits_for_rows_is_canceled_although_nothing_can_be_stored(
    own: Environment, conversation: str | None
) -> None:
    own.model._answer = lambda _: Reply(text="Too late.", delay=3)
    spec = {"conversationId": conversation} if conversation else {}
    async with worker.run_worker(own.client, own.catalog, {**own.worker_env, **QUICK}):
        handle = await own.start_query([agent("one")], "agent/one", **spec)
        await own.wait_for_calls(1)
    await execute(own.journal_address, "delete from baton_messages")
    async with worker.run_worker(own.client, own.catalog, own.worker_env):
        await own.find_runs("BatonPhase = 'Waiting'", 1)
        await handle.execute_update("steer", {"text": "Are you there?"})
        await handle.signal("cancel")
        status = await asyncio.wait_for(own.status(handle), 30)
    assert status.phase == "Canceled"


@pytest.mark.slow
async def test_a_run_waits_for_a_key_that_its_worker_lacks(own: Environment) -> None:
    async with open_run(own) as (handle, second):
        second.set()
        rows = await execute(own.journal_address, "select message, id from baton_messages")
        await execute(own.journal_address, "update baton_messages set message = 'sealed:other-key:AAAA'")
        async with worker.run_worker(own.client, own.catalog, own.worker_env):
            assert await own.find_runs("BatonPhase = 'Waiting'", 1) == [handle.id]
            (outage,) = (await handle.query("status"))["outages"]
            assert (outage["type"], "other-key" in outage["error"]) == ("JournalUnavailable", True)
            with contextlib.closing(sqlite3.connect(own.journal)) as database, database:
                database.executemany("update baton_messages set message = ? where id = ?", rows)
            turn = await own.turn_result(handle)
    assert turn.failure is None


async def test_a_run_whose_rows_do_not_come_back_in_time_fails(own: Environment) -> None:
    settings = {"BATON_MAX_OUTAGE": "5s"}
    second = asyncio.Event()
    async with worker.run_worker(own.client, own.catalog, {**own.worker_env, **QUICK, **settings}):
        handle = await begun(own, second)
    await execute(own.journal_address, "delete from baton_messages")
    second.set()
    async with worker.run_worker(own.client, own.catalog, {**own.worker_env, **settings}):
        turn = await own.turn_result(handle)
    assert turn.failure
    assert (turn.failure.family, turn.failure.type) == ("MemoryError", "JournalLost")


async def test_a_journal_that_is_moved_away_under_a_worker_is_noticed_and_waited_for(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    second = asyncio.Event()
    handle = await begun(env, second)
    moved = env.journal.rename(env.journal.with_name("moved.db"))
    second.set()
    while "was moved or replaced while it is open" not in caplog.text:
        await asyncio.sleep(0.05)
    assert str(env.journal) in caplog.text
    moved.rename(env.journal)
    assert texts((await env.turn_result(handle)).messages) == [f"answer {number}" for number in range(1, 5)]


async def test_a_journal_that_is_replaced_under_a_worker_is_noticed(journal_url: str) -> None:
    journal = await Journal.open(journal_url, "default")
    engine = journal.database.engine
    before = await JournalIdentity.read(engine)
    await before.check_unchanged(engine)
    await execute(journal_url, "update baton_identity set value = 'another' where name = 'id'")
    with pytest.raises(JournalUnavailable, match="was replaced by another"):
        await before.check_unchanged(engine)
    await journal.close()
