"""Backups of Temporal and of the journal that are restored: runs go on, or say which rows they lack."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.service import RPCError

from baton.starter.operations.lost_rows import LostRows, runs_without_rows
from baton.testing import Reply, Request
from tests.harness.environment import Handle, agent, manifest
from tests.harness.killable import KillableEnvironment, reply_count
from tests.harness.postgres import PostgresServer
from tests.harness.processes import baton, process_env

ONE_AND_A_PERSON = [{"name": "one"}, {"name": "ann", "type": "human"}]
TEAM = {"strategy": "round-robin", "maxTurns": 2, "onMaxTurns": "complete", "members": ONE_AND_A_PERSON}
MANIFESTS = [agent("one"), manifest("Team", "team", TEAM)]


@pytest_asyncio.fixture(loop_scope="session")
async def journal(postgres: PostgresServer) -> str:
    """The URL of a journal on PostgreSQL."""
    return await postgres.database()


@pytest_asyncio.fixture(loop_scope="session")
async def killable(tmp_path: Path, journal: str) -> AsyncIterator[KillableEnvironment]:
    """A server and a worker with that journal."""

    def answer(request: Request) -> Reply:
        return Reply(text=f"answer {reply_count(request) + 1}")

    async with KillableEnvironment.running(tmp_path, answer, BATON_JOURNAL_URL=journal) as killable:
        yield killable


def environment(killable: KillableEnvironment, journal: str) -> dict[str, str]:
    """That of a command with the worker's settings."""
    return process_env(TEMPORAL_ADDRESS=killable.server.address, BATON_JOURNAL_URL=journal)


def files(folder: Path) -> list[Path]:
    """The files of Temporal's database in a folder."""
    return [file for file in folder.glob("temporal.db*") if file.is_file()]


async def stop(killable: KillableEnvironment) -> None:
    """Stops the worker and the server."""
    killable.worker.kill()
    await killable.kill_server()


async def waits(killable: KillableEnvironment, run: Handle, answers: int) -> None:
    """Waits until a run waits for its person after so many answers of the model."""
    while True:
        with contextlib.suppress(RPCError):  # a busy machine takes a while to start the worker
            status = await run.query("status")
            said = [message for message in status.get("messages", ()) if message.get("name") == "one"]
            if len(said) == answers and status.get("pendingDecisions"):
                return
        await asyncio.sleep(0.05)


async def reply(run: Handle, text: str) -> None:
    await run.execute_update("reply", {"text": text})


async def backed_up(
    killable: KillableEnvironment, postgres: PostgresServer, journal: str, folder: Path
) -> tuple[Handle, bytes]:
    """A run that waits for its person a second time, and backups of when it first did so."""
    run = await killable.start("round-robin", {"team": "team", "input": "Why?", "resources": MANIFESTS})
    await waits(killable, run, 1)
    await stop(killable)
    await asyncio.to_thread(folder.mkdir)
    for file in files(killable.server.folder):
        shutil.copy(file, folder)
    dump = postgres.dump(journal)  # last
    await killable.server.start()
    killable.worker.start()
    await reply(run, "I see.")
    await waits(killable, run, 2)
    return run, dump


def restore_temporal(killable: KillableEnvironment, folder: Path) -> None:
    for file in files(killable.server.folder):
        file.unlink()
    for file in files(folder):
        shutil.copy(file, killable.server.folder)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["temporal", "both"])
async def test_runs_go_on_from_a_backup_of_temporal_and_its_answers_are_not_paid_for_again(
    killable: KillableEnvironment, postgres: PostgresServer, journal: str, tmp_path: Path, what: str
) -> None:
    run, dump = await backed_up(killable, postgres, journal, tmp_path / "backup")
    asked = len(killable.model.requests)
    await stop(killable)
    restore_temporal(killable, tmp_path / "backup")
    if what == "both":
        postgres.restore(journal, dump)
    await killable.server.start()
    assert await runs_without_rows(killable.client, environment(killable, journal)) == LostRows(checked=1, runs=[])
    killable.worker.start()
    await waits(killable, run, 1)
    await reply(run, "I see.")
    await waits(killable, run, 2)
    assert len(killable.model.requests) == asked + (what == "both"), "the journal has the answer, or it is asked again"
    await reply(run, "Thank you.")
    assert (await run.result())["message"] == "Thank you."


@pytest.mark.slow
async def test_a_run_that_is_newer_than_the_journal_is_named_waits_and_goes_on_with_a_newer_backup(
    killable: KillableEnvironment, postgres: PostgresServer, journal: str, tmp_path: Path
) -> None:
    run, dump = await backed_up(killable, postgres, journal, tmp_path / "backup")
    killable.worker.kill()
    newer = postgres.dump(journal)
    postgres.restore(journal, dump)
    checked = await asyncio.to_thread(baton, "check-journal", env=environment(killable, journal))
    assert (checked.stdout, checked.returncode) == (f"{run.id}\n", 1)
    assert "The journal lacks rows of 1 of 1 open runs" in checked.stderr
    killable.worker.start()
    await reply(run, "Thank you.")
    async with asyncio.timeout(200):
        while not (outages := (await run.query("status")).get("outages")):
            await asyncio.sleep(0.1)
    assert outages[0]["type"] == "JournalLost"
    assert "restore the journal's database from the backup that matches Temporal's" in outages[0]["error"]
    killable.worker.kill()
    postgres.restore(journal, newer)
    checked = await asyncio.to_thread(baton, "check-journal", env=environment(killable, journal))
    assert (checked.stdout, checked.returncode) == ("", 0)
    assert "The journal has the rows of all 1 open runs." in checked.stderr
    killable.worker.start()
    assert (await run.result())["message"] == "Thank you."
