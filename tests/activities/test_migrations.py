"""Tests of migrations on each database: run once by many workers, in one transaction, and refused when newer."""

import asyncio
import inspect
import shutil
import signal
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from baton.activities.runtime.settings import Settings
from baton.contracts.errors import JournalUnavailable
from baton.contracts.message import Head, Message
from baton.journal import schema
from baton.journal.database import Database
from baton.journal.engine import connect
from baton.journal.journal import Journal
from baton.journal.migrate import MIGRATIONS, VERSION, migrate
from baton.starter.operations import doctor
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.postgres import PostgresServer, end_holding, execute, holding
from tests.harness.processes import process_env

NEXT = VERSION + 1

ADDS = """
import sqlalchemy as sa
def upgrade(op):
    op.create_table("baton_invented", sa.Column("name", sa.String(255)), sa.Column("number", sa.Integer))
    op.add_column("baton_messages", sa.Column("invented", sa.Integer, nullable=True))
    op.execute("insert into baton_invented values ('s', 1)")
"""
"""A migration as the rules allow it; run twice, it would fail or leave two rows."""


def migrations(tmp_path: Path, code: str) -> Path:
    """A folder of all migrations and one more."""
    folder = tmp_path / "migrations"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(MIGRATIONS, folder)
    ids = f"revision = '{NEXT:04}'\ndown_revision = '{VERSION:04}'\n"
    (folder / f"version_{NEXT:04}.py").write_text(ids + inspect.cleandoc(code))
    return folder


async def migrated(url: str, folder: Path) -> None:
    """Does what a worker of the next version does first."""
    engine = connect(url)
    try:
        await migrate(engine, folder)
    finally:
        await engine.dispose()


PROGRAM = """
import asyncio, os, sys, pathlib, time
from baton.journal.engine import connect
from baton.journal.migrate import migrate
url, folder, together = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
(folder / f"begins-{os.getpid()}").touch()
while len([*folder.glob("begins-*")]) < together:
    time.sleep(0.01)
asyncio.run(migrate(connect(url), folder))
"""


async def process(url: str, folder: Path, together: int = 1) -> asyncio.subprocess.Process:
    """The same in a process of its own, which begins when so many have been started on the folder."""
    command = (sys.executable, "-c", PROGRAM, url, folder, f"{together}")
    return await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)


async def journal_with_a_message(url: str) -> Head:
    """Creates a journal of the current version with one message."""
    journal = await Journal.open(url, "default")
    head = await journal.append(Head(), replies("a"), "call")
    await journal.close()
    return head


async def versions(url: str) -> list[int]:
    """The versions that the journal has been brought to."""
    return [int(str(row[0])) for row in await execute(url, "select version from baton_schema order by version")]


async def contents(journal: Journal, head: Head) -> list[str]:
    return [row.message.content for row in await journal.read(head)]


def replies(text: str) -> list[Message]:
    return [Message(role="assistant", content=text)]


@pytest.mark.filterwarnings(r"ignore:.*expression-based index")
async def test_the_migrations_make_the_tables_that_the_code_uses(journal_url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        return [*compare_metadata(MigrationContext.configure(connection), schema.metadata)]

    engine = connect(journal_url)
    await migrate(engine)
    assert await engine.run(differences) == []
    await engine.dispose()


def test_each_migration_is_one_file_that_follows_the_one_before_it() -> None:
    found = ScriptDirectory(MIGRATIONS, version_locations=[MIGRATIONS]).walk_revisions()
    assert [(each.revision, Path(each.path).stem) for each in found] == [
        (f"{number:04}", f"version_{number:04}") for number in range(VERSION, 0, -1)
    ]


async def test_a_migration_keeps_the_rows(journal_url: str, tmp_path: Path) -> None:
    """The next version's migration runs alone, and the rows of the version before it stay."""
    await journal_with_a_message(journal_url)
    assert await versions(journal_url) == [*range(1, VERSION + 1)]
    await migrated(journal_url, migrations(tmp_path, ADDS))
    assert await versions(journal_url) == [*range(1, NEXT + 1)]
    assert await execute(journal_url, "select id, parent, depth, invented from baton_messages") == [
        ("call/0", "", 1, None)
    ]


async def test_a_worker_of_the_version_before_goes_on_while_and_after_the_tables_are_migrated(
    journal_url: str, tmp_path: Path
) -> None:
    folder = migrations(tmp_path, ADDS)
    journal, head, written = await Journal.open(journal_url, "default"), Head(), 0
    migrating = asyncio.create_task(migrated(journal_url, folder))
    while not migrating.done() or written < 10:
        head = await journal.append(head, replies(f"{written}"), f"call-{written}")
        written += 1
    await migrating
    assert await contents(journal, head) == [f"{number}" for number in range(written)]
    await journal.close()
    assert await execute(journal_url, "select * from baton_invented") == [("s", 1)]


@pytest.mark.full
async def test_workers_and_clients_refuse_a_journal_that_a_newer_worker_has_migrated(
    journal_url: str, tmp_path: Path, server: EmbeddedServer
) -> None:
    await migrated(journal_url, migrations(tmp_path, ADDS))
    refusal = (
        f"the journal's tables have version {NEXT}, but this release supports them up to version {VERSION}: "
        f"run a release that supports version {NEXT}, or restore the journal's backup"
    )
    with pytest.raises(JournalUnavailable, match=refusal):
        await Journal.open(journal_url, "default")
    with pytest.raises(JournalUnavailable, match=refusal):
        await Database.connect(journal_url, "default", upgrade=False)
    env = process_env(TEMPORAL_ADDRESS=server.address, BATON_JOURNAL_URL=journal_url, BATON_HOME=str(tmp_path))
    command = [sys.executable, "-m", "baton.worker"]
    worker = await asyncio.create_subprocess_exec(*command, env=env, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    _, error = await worker.communicate()
    assert (worker.returncode, error.decode()) == (1, f"JournalUnavailable: {refusal}\n")


async def test_the_doctor_names_the_version_of_a_newer_journal_and_what_to_do(journal_url: str, tmp_path: Path) -> None:
    await migrated(journal_url, migrations(tmp_path, ADDS))
    [found] = [each async for each in doctor.journal(Settings.of({"BATON_JOURNAL_URL": journal_url}))]
    assert not found.ok
    assert found.text.endswith(f"has version {NEXT}")
    assert found.hint == f"this release supports versions up to {VERSION}: run one that supports version {NEXT}"


async def test_a_client_makes_the_tables_where_there_are_none_and_leaves_older_ones(
    journal_url: str, tmp_path: Path
) -> None:
    async def open_as_client(folder: Path) -> list[int]:
        engine = connect(journal_url)
        await migrate(engine, folder, upgrade=False)
        await engine.dispose()
        return await versions(journal_url)

    assert await open_as_client(MIGRATIONS) == [*range(1, NEXT)]
    assert await open_as_client(migrations(tmp_path, ADDS)) == [*range(1, NEXT)]
    async with Database.open(journal_url, "default") as database:
        assert await database.get_blob(await database.put_blob(b"long", "family")) == b"long"


@pytest.mark.full
async def test_of_many_processes_that_start_at_once_one_migrates(journal_url: str, tmp_path: Path) -> None:
    await (await Journal.open(journal_url, "default")).close()
    await execute(journal_url, "insert into baton_holds values ('default', 'family', 'sha', 0)")
    counts = """
        def upgrade(op):
            op.execute("update baton_holds set at = at + 1")
    """
    folder = migrations(tmp_path, counts)
    started = [await process(journal_url, folder, together=4) for _ in range(4)]
    ended = [(each.returncode, error) for each, (_, error) in [(each, await each.communicate()) for each in started]]
    assert ended == [(0, b"")] * 4
    assert await execute(journal_url, "select at from baton_holds") == [(1,)]
    assert await versions(journal_url) == [*range(1, NEXT + 1)]


@pytest.mark.full
async def test_many_processes_that_start_on_an_empty_database_make_its_tables_once(
    journal_url: str, tmp_path: Path
) -> None:
    folder = migrations(tmp_path, ADDS)
    started = [await process(journal_url, folder) for _ in range(4)]
    assert [(await each.communicate())[1] for each in started] == [b""] * 4
    assert await execute(journal_url, "select * from baton_invented") == [("s", 1)]


@pytest.mark.full
async def test_a_migration_that_is_killed_leaves_nothing_and_is_made_by_the_next_worker(
    journal_url: str, tmp_path: Path
) -> None:
    await journal_with_a_message(journal_url)
    reached = tmp_path / "reached"
    halting = f"    import pathlib, time; pathlib.Path({str(reached)!r}).touch(); time.sleep(60)\n"
    killed = await process(journal_url, migrations(tmp_path, ADDS + halting))
    while not await asyncio.to_thread(reached.exists):
        assert killed.returncode is None, await killed.communicate()
        await asyncio.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    assert await versions(journal_url) == [*range(1, VERSION + 1)]
    with pytest.raises(JournalUnavailable, match="baton_invented"):
        await execute(journal_url, "select * from baton_invented")
    await migrated(journal_url, migrations(tmp_path, ADDS))
    assert await versions(journal_url) == [*range(1, NEXT + 1)]
    assert await execute(journal_url, "select * from baton_invented") == [("s", 1)]


async def test_a_migration_that_fails_says_why_and_changes_nothing(journal_url: str, tmp_path: Path) -> None:
    head = await journal_with_a_message(journal_url)
    folder = migrations(tmp_path, ADDS + "    op.execute('insert into nowhere values (1)')\n")
    with pytest.raises(JournalUnavailable, match="nowhere"):
        await migrated(journal_url, folder)
    assert await versions(journal_url) == [*range(1, VERSION + 1)]
    journal = await Journal.open(journal_url, "default")
    assert await contents(journal, head) == ["a"]
    await journal.close()
    with pytest.raises(JournalUnavailable, match="baton_invented"):
        await execute(journal_url, "select * from baton_invented")


async def test_two_journals_are_migrated_at_once_in_one_process(tmp_path: Path) -> None:
    folder = migrations(tmp_path, ADDS)
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two", "three")]
    await asyncio.gather(*(migrated(url, folder) for url in urls))
    assert [await execute(url, "select * from baton_invented") for url in urls] == [[("s", 1)]] * 3


def released(tmp_path: Path, newest: int) -> Path:
    """A folder of the migrations up to a version."""
    folder = tmp_path / "released"
    folder.mkdir()
    for number in range(1, newest + 1):
        shutil.copy(MIGRATIONS / f"version_{number:04}.py", folder)
    return folder


INDEXES = "select count(*) from pg_index where indisvalid and indexrelid::regclass::text in " + (
    "('baton_charges_account', 'baton_uses_sha', 'baton_holds_sha')"
)
INTERRUPTED = "select count(*) from pg_index where not indisvalid"
BUILDS = "pg_stat_activity where query ilike 'create index%' and state = 'active'"


@pytest.mark.full
async def test_writers_of_a_running_fleet_go_on_while_indexes_are_built(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Several workers start at once, and a transaction that has written lasts longer than the others wait."""
    url = await postgres.database()
    await migrated(url, released(tmp_path, 1))
    charge = "insert into baton_charges values ('{}', 'account', true, 1, 1, 1, 1)"
    async with holding(url, charge.format("first")):
        starting = [asyncio.create_task(migrated(url, MIGRATIONS)) for _ in range(3)]
        while await execute(url, f"select count(*) from {BUILDS}") == [(0,)]:
            await asyncio.sleep(0.02)
        async with asyncio.timeout(20):
            await execute(url, charge.format("second"))
        assert not any(start.done() for start in starting)
        assert await versions(url) == [1]
        await end_holding(url)
    await asyncio.gather(*starting)
    assert await versions(url) == [*range(1, NEXT)]
    assert await execute(url, INDEXES) == [(3,)]


@pytest.mark.full
async def test_an_index_whose_build_was_interrupted_is_built_again(postgres: PostgresServer, tmp_path: Path) -> None:
    url = await postgres.database()
    await migrated(url, released(tmp_path, 1))
    async with holding(url, "insert into baton_uses values ('run', 'sha')"):
        killed = await process(url, Path(shutil.copytree(MIGRATIONS, tmp_path / "newest")))
        while await execute(url, INTERRUPTED) != [(1,)]:  # the index is there, and waits for the transaction
            assert killed.returncode is None, (await killed.communicate())[1].decode()
            await asyncio.sleep(0.02)
        killed.kill()
        await killed.wait()
        await execute(url, f"select pg_terminate_backend(pid) from {BUILDS}")
        await end_holding(url)
    assert await execute(url, INTERRUPTED) == [(1,)]
    assert await versions(url) == [1]
    await migrated(url, MIGRATIONS)
    assert await versions(url) == [*range(1, NEXT)]
    assert await execute(url, INDEXES) == [(3,)]
