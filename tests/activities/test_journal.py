"""Tests of the journal on each database: rows are written once, read from a head, and never silently missed."""

import asyncio
import contextlib
import random
import resource
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection, event
from sqlalchemy import Engine as SQLAlchemyEngine
from sqlalchemy import text as sql

from baton.contracts.errors import JournalLost, JournalUnavailable
from baton.contracts.message import Head, Message, RowRange, ToolCall
from baton.contracts.requests import Bookmark
from baton.journal import schema
from baton.journal.journal import Journal
from baton.journal.migrate import VERSION
from baton.journal.rows import catalog_id
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.resources.run_catalog import RunCatalog
from tests.harness.environment import agent
from tests.harness.postgres import execute


@pytest_asyncio.fixture(loop_scope="session")
async def journal(journal_url: str) -> AsyncIterator[Journal]:
    journal = await Journal.open(journal_url, "default")
    yield journal
    await journal.close()


def replies(*texts: str) -> list[Message]:
    return [Message(role="assistant", content=text) for text in texts]


async def contents(journal: Journal, head: Head) -> list[str]:
    return [row.message.content for row in await journal.read(head)]


@pytest.mark.full
async def test_what_is_appended_is_read_in_its_order(journal: Journal) -> None:
    first = await journal.append(Head(), replies("a", "b"), "call-1")
    second = await journal.append(first, replies("c"), "call-2")
    assert (second.id, second.depth) == ("call-2/0", 3)
    assert await contents(journal, second) == ["a", "b", "c"]
    assert await contents(journal, first) == ["a", "b"]
    assert await contents(journal, Head()) == []


async def test_a_transcript_is_shared_under_the_exact_id_of_its_run(journal: Journal) -> None:
    for number, owner in enumerate(("Report@1", "report@1", "re_ort/2")):
        head = await journal.append(Head(), replies(owner), f"call-{number}")
        mark = Bookmark(session=f"session-{number}", key="shared", owner=owner, begun=0)
        await journal.set_bookmark(mark, head, new=True)
    for session, said in (("report", ["report@1"]), ("Report", ["Report@1"]), ("rep_rt", []), ("re_ort", ["re_ort/2"])):
        assert [row.message.content for row in await journal.read_shared(session, "shared")] == said


async def test_the_same_call_writes_nothing_new(journal: Journal) -> None:
    heads = [await journal.append(Head(), replies("a", "b"), "call") for _ in range(3)]
    assert heads[0] == heads[2]
    assert await contents(journal, heads[2]) == ["a", "b"]


async def test_the_first_answer_to_a_call_stands(journal: Journal, journal_url: str) -> None:
    other = await Journal.open(journal_url, "default")
    rows = await asyncio.gather(
        *(j.append_once(Head(), replies(text)[0], "call/reply") for j, text in ((journal, "x"), (other, "y")))
    )
    assert rows[0].message == rows[1].message
    await other.close()


async def test_branches_share_what_came_before_them(journal: Journal) -> None:
    trunk = await journal.append(Head(), replies("a"), "trunk")
    left = await journal.append(trunk, replies("b", "c"), "left")
    right = await journal.append(trunk, replies("d"), "right")
    assert await contents(journal, left) == ["a", "b", "c"]
    assert await contents(journal, right) == ["a", "d"]


async def test_what_branches_have_written_is_grafted_in_the_order_given(journal: Journal) -> None:
    trunk = await journal.append(Head(), replies("a"), "trunk")
    left = await journal.append(trunk, replies("b", "c"), "left")
    right = await journal.append(trunk, replies("d"), "right")
    spans = [RowRange(after=trunk, to=right), RowRange(after=trunk, to=left)]
    joined = await journal.append(trunk, [*spans, *replies("e")], "join")
    assert await contents(journal, joined) == ["a", "d", "b", "c", "e"]
    assert joined.depth == 5


async def test_a_span_that_begins_at_the_head_is_not_copied(journal: Journal, journal_url: str) -> None:
    trunk = await journal.append(Head(), replies("a"), "trunk")
    branch = await journal.append(trunk, replies("b"), "branch")
    assert await journal.append(trunk, [RowRange(after=trunk, to=branch)], "join") == branch
    assert await execute(journal_url, "select count(*) from baton_messages") == [(2,)]


async def test_a_worker_that_just_started_reads_what_others_have_written(journal: Journal, journal_url: str) -> None:
    head = Head()
    for number in range(50):
        head = await journal.append(head, replies(f"{number}"), f"call-{number}")
    fresh = await Journal.open(journal_url, "default")
    assert await contents(fresh, head) == [f"{number}" for number in range(50)]
    await fresh.close()


async def test_all_of_a_message_is_kept(journal: Journal, journal_url: str) -> None:
    call = ToolCall(id="1", name="noop", arguments='{"x": "é\\u0000"}')
    message = Message(role="assistant", content="ü\n\x00…🎼", name="one", tool_calls=(call,))
    row = await journal.append_once(Head(), message, "call/reply")
    fresh = await Journal.open(journal_url, "default")
    assert [each.message for each in await fresh.read(row.head)] == [message]
    await fresh.close()


async def test_a_missing_part_of_a_conversation_is_never_passed_over(journal: Journal, journal_url: str) -> None:
    head = await journal.append(Head(), replies("a", "b", "c"), "call")
    await execute(journal_url, "delete from baton_messages where id = 'call/1'")
    fresh = await Journal.open(journal_url, "default")
    with pytest.raises(JournalLost, match="restore the journal's database"):
        await fresh.read(head)
    with pytest.raises(JournalLost):
        await fresh.append(Head(id="nobody/0", depth=1), replies("x"), "call-2")
    await fresh.close()


async def test_a_catalog_is_pinned_under_its_id(journal: Journal, journal_url: str) -> None:
    catalog = RunCatalog.of_files(load_documents([Document("f", agent("one", prompt="a\x00é"), {})]).catalog)
    rows = await journal.begin(catalog, "run", Head(), *replies("Why?"))
    assert rows == await journal.begin(catalog, "run", Head(), *replies("Why?"))
    fresh = await Journal.open(journal_url, "default")
    assert (await fresh.catalog(catalog_id(catalog))).get("Agent", "default", "one") == catalog.manifests[0]
    with pytest.raises(JournalLost):
        await fresh.catalog("0" * 64)
    await fresh.close()


@pytest.mark.parametrize("earlier", [(), ("a", "b")])
async def test_a_question_stays_where_its_first_attempt_has_put_it(journal: Journal, earlier: Sequence[str]) -> None:
    catalog = RunCatalog.of_files(load_documents([Document("f", agent("one"), {})]).catalog)
    rows = await journal.begin(catalog, "run", Head(), *replies("Why?"), earlier=replies(*earlier))
    other = await journal.append(Head(), replies("of", "another", "query"), "other")
    assert await journal.begin(catalog, "run", other, *replies("Why?"), earlier=replies(*earlier)) == rows
    assert [row.message.content for row in rows] == [*earlier, "Why?"]
    assert rows[0].before == Head()


async def test_a_catalog_that_an_older_version_has_pinned_under_its_sha_is_found(
    journal: Journal, journal_url: str
) -> None:
    catalog = RunCatalog.of_files(load_documents([Document("f", agent("one"), {})]).catalog)
    await journal.begin(catalog, "run", Head(), *replies("Why?"))
    await execute(journal_url, f"update baton_catalogs set sha = '{catalog.sha}'")
    fresh = await Journal.open(journal_url, "default")
    assert await fresh.catalog(catalog.sha) == catalog
    await fresh.close()


async def test_tables_of_another_version_are_refused(journal_url: str) -> None:
    await (await Journal.open(journal_url, "default")).close()
    await execute(journal_url, f"insert into baton_schema values ({VERSION + 1})")
    with pytest.raises(JournalUnavailable, match=f"version {VERSION + 1}, but this release supports .* {VERSION}: run"):
        await Journal.open(journal_url, "default")


async def test_a_journal_that_cant_be_reached_says_so(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="can't be reached"):
        await Journal.open(f"sqlite:///{tmp_path}/no/such/folder/journal.db", "default")
    with pytest.raises(JournalUnavailable, match="oracle is not supported"):
        await Journal.open("oracle://somewhere", "default")


async def test_a_statement_that_the_database_refuses_fails_at_once(journal: Journal, journal_url: str) -> None:
    await journal.append(Head(), replies("a"), "call-1")
    await execute(journal_url, "drop table baton_messages")
    with pytest.raises(JournalUnavailable, match=r"the journal rejects a statement: .*baton_messages") as refused:
        await asyncio.wait_for(journal.append(Head(), replies("b"), "call-2"), 30)
    assert refused.value.non_retryable


HERE = {"temporal_namespace": "default"}


@pytest.mark.parametrize("wrong", [None, [1]])
async def test_a_value_that_the_database_refuses_fails_at_once(journal: Journal, wrong: object) -> None:
    row = {**HERE, "session": "s", "key": "k", "owner": "o", "begun": wrong, "head": None, "depth": 1}
    with pytest.raises(JournalUnavailable, match="the journal rejects a statement: "):
        await asyncio.wait_for(journal.database.insert((schema.bookmarks, [row])), 30)


async def test_a_locked_database_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, head = tmp_path / "journal.db", Head()
    journal = await Journal.open(f"sqlite:///{file}", "default")
    await journal.database.run(sql("pragma busy_timeout = 100"))
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("begin immediate")
        writing = asyncio.create_task(journal.append(head, replies("a"), "call"))
        while "waiting for the journal" not in caplog.text and not writing.done():
            await asyncio.sleep(0.02)
        assert not writing.done()
        other.execute("commit")
        assert (await writing).depth == 1
    await journal.close()


def commits(journal: Path) -> int:
    """How many commits SQLite's log of a journal holds: those frames that name the size of the database."""
    log = Path(f"{journal}-wal").read_bytes()
    page, step = int.from_bytes(log[8:12]), 24 + int.from_bytes(log[8:12])
    assert page
    return sum(log[start + 4 : start + 8] != bytes(4) for start in range(32, len(log) - step + 1, step))


async def test_what_is_written_to_sqlite_at_once_waits_for_the_disk_once(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    journal = await Journal.open(f"sqlite:///{file}", "default")
    before = commits(file)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("begin immediate")
        writing = [asyncio.create_task(journal.append(Head(), replies("a"), f"call-{n}")) for n in range(50)]
        await asyncio.sleep(0.2)
        other.execute("commit")
        assert {head.depth for head in await asyncio.gather(*writing)} == {1}
    assert 1 <= commits(file) - before <= 3
    await journal.close()


FULL, NORMAL = 2, 1
"""How SQLite syncs: each commit, or none until the next one that is synced."""


def syncing(connection: Connection) -> int:
    return int(connection.exec_driver_sql("pragma synchronous").scalar_one())


async def test_only_what_may_be_lost_in_a_power_failure_is_not_synced(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    journal = await Journal.open(f"sqlite:///{file}", "default")
    database = journal.database
    assert await database.write(syncing, atomic=False) == FULL
    assert await database.write(syncing, atomic=False, durable=False) == NORMAL
    assert await database.write(syncing, atomic=True, durable=False) == FULL  # budgets and tenants are charged so
    with pytest.raises(JournalUnavailable):
        await database.write(lambda one: one.exec_driver_sql("no statement"), atomic=False, durable=False)
    assert await database.engine.run(syncing) == FULL
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("begin immediate")
        waiting = asyncio.create_task(database.write(syncing, atomic=False))
        await asyncio.sleep(0.2)
        group = [
            asyncio.create_task(database.write(syncing, atomic=False, durable=durable))
            for durable in (False, True, False)
        ]
        await asyncio.sleep(0.2)
        other.execute("commit")
        assert await asyncio.gather(waiting, *group) == [FULL] * 4  # one that must be durable is, in any company
    await journal.close()


async def test_the_lease_of_a_call_is_not_synced_but_its_sending_is(tmp_path: Path) -> None:
    journal = await Journal.open(f"sqlite:///{tmp_path / 'journal.db'}", "default")
    seen = list[tuple[str, int]]()

    @event.listens_for(SQLAlchemyEngine, "before_cursor_execute")
    def note(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "baton_calls" in statement:
            cursor = connection.connection.cursor()
            seen.append((statement.split()[0], cursor.execute("pragma synchronous").fetchone()[0]))

    try:
        async with journal.leases.hold("call") as lease:
            await lease.send_once("pay")
            await journal.answer(lease, Head(), replies("paid")[0])
    finally:
        event.remove(SQLAlchemyEngine, "before_cursor_execute", note)
        await journal.close()
    assert seen == [("INSERT", NORMAL), ("UPDATE", FULL), ("UPDATE", FULL)]


@contextlib.contextmanager
def no_room(file: Path, more: int) -> Iterator[None]:
    """Lets no file of this process grow beyond a file's size and some more bytes, which to SQLite is a failing disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_what_is_written_to_sqlite_at_once_waits_for_a_disk_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "journal.db"
    journal, texts = await Journal.open(f"sqlite:///{file}", "default"), ["a", "b", "c" * 6_000_000, "d"]
    rows = [{**HERE, "id": each[0], "parent": "", "depth": 1, "message": each} for each in texts]
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other, no_room(Path(f"{file}-wal"), 99_999):
        other.execute("begin immediate")  # the first waits for its end, the others for the first
        writing = [asyncio.create_task(journal.database.insert((schema.messages, [row]))) for row in rows]
        await asyncio.sleep(0.2)
        other.execute("commit")
        while "waiting for the journal" not in caplog.text and not any(each.done() for each in writing[1:]):
            await asyncio.sleep(0.01)
    await asyncio.gather(*writing)
    assert "waiting for the journal: the journal can't be reached: disk I/O error" in caplog.text
    with contextlib.closing(sqlite3.connect(file)) as other:
        assert other.execute("select message from baton_messages order by id").fetchall() == [(each,) for each in texts]
    await journal.close()


async def test_of_what_is_written_at_once_only_what_is_refused_fails(journal: Journal) -> None:
    wrong = {**HERE, "session": "s", "key": "k", "owner": "o", "begun": None, "head": None, "depth": 1}
    ended = await asyncio.gather(
        *(journal.append(Head(), replies(f"a{n}"), f"before-{n}") for n in range(10)),
        journal.database.insert((schema.bookmarks, [wrong])),
        *(journal.append(Head(), replies(f"b{n}"), f"after-{n}") for n in range(10)),
        return_exceptions=True,
    )
    assert [type(each) for each in ended] == [*([Head] * 10), JournalUnavailable, *([Head] * 10)]
    written = [head for head in ended if isinstance(head, Head)]
    assert [await contents(journal, head) for head in written] == [[f"{x}{n}"] for x in "ab" for n in range(10)]


async def test_two_workers_write_to_one_journal_at_once(journal_url: str) -> None:
    journals = [await Journal.open(journal_url, "default") for _ in range(4)]

    async def write(journal: Journal, name: str) -> Head:
        head = Head()
        for number in range(25):
            head = await journal.append(head, replies(f"{name} {number}"), f"{name}-{number}")
        return head

    heads = await asyncio.gather(*(write(journal, f"j{n}") for n, journal in enumerate(journals)))
    for number, head in enumerate(heads):
        assert await contents(journals[0], head) == [f"j{number} {n}" for n in range(25)]
    for journal in journals:
        await journal.close()


async def test_workers_that_start_at_once_make_the_tables_once(journal_url: str) -> None:
    journals = await asyncio.gather(*(Journal.open(journal_url, "default") for _ in range(8)))
    head = await journals[0].append(Head(), replies("a"), "call")
    assert await contents(journals[7], head) == ["a"]
    assert await execute(journal_url, "select max(version) from baton_schema") == [(VERSION,)]
    for journal in journals:
        await journal.close()


@pytest.mark.full
async def test_a_conversation_of_thousands_of_rows_is_read_in_a_moment(journal: Journal, journal_url: str) -> None:
    texts = [f"{number}" for number in range(2_000)]
    head = Head()
    for start in range(0, 2_000, 100):
        head = await journal.append(head, replies(*texts[start : start + 100]), f"call-{start}")
    fresh = await Journal.open(journal_url, "default")
    begun = time.perf_counter()
    assert await contents(fresh, head) == texts
    assert time.perf_counter() - begun < 20
    await fresh.close()


@pytest.mark.parametrize("text", ["\x00", "\U0010ffff\ufffe\u2028\x7f\x85\x1b", "\\u0000 \\", "\ufeff🏴\u202e"])
async def test_any_text_is_kept_as_it_is(journal: Journal, journal_url: str, text: str) -> None:
    call = ToolCall(id=text, name=text, arguments=text)
    message = Message(role="assistant", content=text, name=text, tool_calls=(call,), model=text)
    row = await journal.append_once(Head(), message, "call/reply")
    fresh = await Journal.open(journal_url, "default")
    assert [each.message for each in await fresh.read(row.head)] == [message]
    await fresh.close()


async def test_half_of_a_character_is_kept_as_a_sign_that_it_was_broken(journal: Journal, journal_url: str) -> None:
    message = Message(role="assistant", content="a\ud83d b\ud83d\ude00")
    row = await journal.append_once(Head(), message, "call/reply")
    fresh = await Journal.open(journal_url, "default")
    assert await contents(fresh, row.head) == ["a\ufffd b😀"]
    await fresh.close()


@pytest.mark.full
async def test_writers_that_are_given_up_leave_no_lock_behind(journal: Journal, journal_url: str) -> None:
    other, chance = await Journal.open(journal_url, "default"), random.Random(1)
    for turn in range(30):
        writes = [asyncio.create_task(journal.append_once(Head(), replies("x")[0], f"{turn}/{n}")) for n in range(20)]
        await asyncio.sleep(chance.random() / 50)
        for write in writes:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        async with asyncio.timeout(30):
            await other.append(Head(), replies("mine"), f"other{turn}")
    await other.close()
