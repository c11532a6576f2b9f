"""Tests of the journal on PostgreSQL: addresses, refusals, and servers that are restarted or killed."""

import asyncio
import re
import signal
import traceback
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import Connection, make_url, text
from temporalio.client import Client

from baton.contracts.errors import JournalUnavailable
from baton.contracts.message import Head, Message
from baton.journal.accounts import Account, Accounts, Amount, Reached, reserve
from baton.journal.database import Database
from baton.journal.engine import LONG_STATEMENT, connect
from baton.journal.erasures import Named, note_erasure, unfinished_erasures
from baton.journal.journal import Journal
from baton.journal.prune import delete_runs, delete_values
from baton.journal.quotas import Admissions, KnownRun, RunLimit
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.resources.run_catalog import RunCatalog
from baton.testing import Reply, Request
from tests.harness.environment import Environment, agent, line, team, texts
from tests.harness.postgres import (
    PASSWORD,
    PostgresServer,
    end_holding,
    execute,
    held_commits,
    holding,
    waiting_transactions,
)
from tests.harness.shared_account import FrozenWorker, charge, charged


@pytest_asyncio.fixture(loop_scope="session")
async def url(postgres: PostgresServer) -> str:
    return await postgres.database()


@pytest_asyncio.fixture(loop_scope="session")
async def journal(url: str) -> AsyncIterator[Journal]:
    journal = await Journal.open(url, "default")
    yield journal
    await journal.close()


def replies(text: str) -> list[Message]:
    return [Message(role="assistant", content=text)]


async def contents(journal: Journal, head: Head) -> list[str]:
    return [row.message.content for row in await journal.read(head)]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
async def test_an_address_is_taken_as_people_write_it(url: str, scheme: str) -> None:
    plain = url.replace("postgresql", scheme, 1)
    for written in (plain, f"{plain}?sslmode=disable", f"{plain}?sslmode=prefer&application_name=baton"):
        await (await Journal.open(written, "default")).close()


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "the password is wrong": ({"password": f"{PASSWORD}!"}, "password authentication failed"),
    "there is no such database": ({"database": "nowhere"}, 'database "nowhere" does not exist'),
    "there is no such host": ({"host": "nowhere.invalid"}, "can't be reached: "),
    "nobody listens": ({"port": 1}, "can't be reached: "),
    "TLS is asked for and not there": ({"query": {"sslmode": "require"}}, "rejected SSL"),
    "there is no such mode": ({"query": {"sslmode": "often"}}, "`sslmode` parameter must be one of"),
    "there is no such parameter": ({"query": {"nonsense": "1"}}, 'parameter "nonsense"'),
}


@pytest.mark.full
@pytest.mark.parametrize("why", REFUSALS)
async def test_a_server_that_refuses_is_reported_at_once_and_without_the_password(
    url: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, text = REFUSALS[why]
    with pytest.raises(JournalUnavailable, match=re.escape(text)) as refused:
        await Journal.open(make_url(url).set(**wrong).render_as_string(hide_password=False), "default")
    assert PASSWORD not in "".join(traceback.format_exception(refused.value)) + caplog.text


@pytest.mark.parametrize("broken", ["postgresql://baton:pg@host:secret@h/db", "postgresql:/baton:secret@h/db"])
def test_an_address_that_is_none_is_not_repeated(broken: str) -> None:
    with pytest.raises(JournalUnavailable, match="BATON_JOURNAL_URL is not") as refused:
        asyncio.run(Journal.open(broken, "default"))
    assert "secret" not in "".join(traceback.format_exception(refused.value))


async def test_a_database_that_cant_hold_every_character_is_refused(postgres: PostgresServer) -> None:
    name = f"latin_{uuid.uuid4().hex}"
    await execute(postgres.url("postgres"), f"create database {name} encoding 'LATIN1' template template0")
    with pytest.raises(JournalUnavailable, match="has no equivalent in encoding"):
        await Journal.open(postgres.url(name), "default")


@pytest.mark.full
async def test_a_user_who_may_not_create_tables_gets_an_error_and_works_on_existing_ones(
    postgres: PostgresServer, url: str
) -> None:
    role = f"role_{uuid.uuid4().hex}"
    await execute(url, f"create role {role} login password '{role}'")
    theirs = make_url(url).set(username=role, password=role).render_as_string(hide_password=False)
    with pytest.raises(JournalUnavailable, match="permission denied for schema public"):
        await Journal.open(theirs, "default")
    await (await Journal.open(url, "default")).close()
    await execute(url, f"grant select, insert, update, delete on all tables in schema public to {role}")
    journal = await Journal.open(theirs, "default")
    head = await journal.append(Head(), replies("a"), "call")
    assert await contents(journal, head) == ["a"]
    await journal.close()


@pytest.mark.full
async def test_a_server_that_has_been_restarted_is_not_even_noticed(
    postgres: PostgresServer, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    head = await journal.append(Head(), replies("a"), "call-1")
    with postgres.away():
        pass
    head = await journal.append(head, replies("b"), "call-2")
    assert await contents(journal, head) == ["a", "b"]
    assert "waiting for the journal" not in caplog.text


@pytest.mark.full
async def test_a_server_that_is_away_is_waited_for(
    postgres: PostgresServer, journal: Journal, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = await journal.append(Head(), replies("a"), "call-1")
    with postgres.away():
        writing = asyncio.create_task(journal.append(head, replies("b"), "call-2"))
        while "waiting for the journal" not in caplog.text and not writing.done():
            await asyncio.sleep(0.02)
        assert not writing.done()
    fresh = await Journal.open(url, "default")
    assert await contents(fresh, await writing) == ["a", "b"]
    await fresh.close()
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("longest", "before", "said"),
    [
        (0.2, "select 1", "has not answered a statement within 0.2 s"),
        (LONG_STATEMENT, "set statement_timeout = 200", "due to statement timeout"),
        (None, "set statement_timeout = 200", "due to statement timeout"),
    ],
    ids=["by the command", "by the server", "in a worker"],
)
async def test_a_long_statement_of_a_command_is_an_error_and_that_of_a_worker_is_repeated(
    url: str, longest: float | None, before: str, said: str
) -> None:
    def sleep(connection: Connection) -> None:
        connection.execute(text(before))
        connection.execute(text("select pg_sleep(20)"))

    engine = connect(url, longest=longest)
    for run in (engine.run, engine.run_in_transaction):
        with pytest.raises(JournalUnavailable, match=f"the journal takes too long: .*{said}") as failed:
            await run(sleep)
        assert failed.value.non_retryable == (longest is not None)
    await engine.dispose()


@pytest.mark.full
async def test_a_statement_survives_the_death_of_the_server_that_carries_it_out(
    postgres: PostgresServer, journal: Journal, url: str
) -> None:
    async with holding(url, "lock table baton_messages"):
        writing = [asyncio.create_task(journal.append(Head(), replies(f"{n}"), f"call-{n}")) for n in range(20)]
        while await execute(url, "select count(*) from pg_locks where not granted") != [(10,)]:
            await asyncio.sleep(0.01)
        with postgres.away(signal.SIGKILL):
            pass
    heads = await asyncio.gather(*writing)
    assert [await contents(journal, head) for head in heads] == [[f"{n}"] for n in range(20)]


@pytest.mark.full
async def test_a_worker_that_freezes_in_a_transaction_stops_no_other_one_and_repeats_it(
    journal: Journal, url: str
) -> None:
    database = journal.database
    async with FrozenWorker.charging(url, "run/frozen") as frozen:
        async with asyncio.timeout(60):
            await database.transact(partial(charge, call="run/other"))
        assert await charged(database) == ["run/other"]
        await frozen.go_on()
    assert await charged(database) == ["run/frozen", "run/other"]


@pytest.mark.full
async def test_calls_that_wait_for_a_locked_account_leave_connections_to_others(journal: Journal, url: str) -> None:
    """Their worker goes on renewing its leases, and makes calls that are charged to no account."""
    database = journal.database
    await database.transact(partial(charge, call="run/first"))
    names = [f"run/{number}" for number in range(12)]
    async with holding(url, "perform 1 from baton_accounts for update"):
        calls = [asyncio.create_task(database.transact(partial(charge, call=name))) for name in names]
        while await execute(url, "select count(*) < 5 from pg_locks where not granted") == [(True,)]:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            await journal.leases.renew()
            head = await journal.append(Head(), replies("a"), "call")
        assert await contents(journal, head) == ["a"]
        assert not any(call.done() for call in calls)
        await end_holding(url)
    await asyncio.gather(*calls)
    assert await charged(database) == sorted(["run/first", *names])


CATALOG = RunCatalog.of_files(load_documents([Document("x.yaml", agent("one"), {})]).catalog)


@pytest.mark.full
async def test_a_deletion_that_is_interrupted_leaves_no_catalog_and_no_large_value(journal: Journal, url: str) -> None:
    database = journal.database
    run = f"{uuid.uuid4()}"
    await journal.pin(CATALOG, run)
    await database.put_blob(b"long", "family")
    later = datetime.now(UTC) + timedelta(minutes=1)

    async def delete() -> None:
        await delete_runs(database.engine, {run})
        await delete_values(database.engine, "default", {"family"}, later)

    for table in ("baton_catalogs", "baton_blobs"):
        async with holding(url, f"lock table {table} in share mode"):
            deleting = asyncio.create_task(delete())
            while await execute(url, "select count(*) from pg_locks where not granted") == [(0,)]:
                await asyncio.sleep(0.01)
            deleting.cancel()
            await asyncio.wait([deleting])
            await end_holding(url)
    await delete()
    for table in ("uses", "catalogs", "holds", "blobs"):
        assert await execute(url, f"select count(*) from baton_{table}") == [(0,)]


@pytest.mark.full
async def test_what_is_stored_again_while_it_is_deleted_is_kept(journal: Journal, url: str) -> None:
    database = journal.database
    old, new = f"{uuid.uuid4()}", f"{uuid.uuid4()}"
    await journal.pin(CATALOG, old)
    sha = await database.put_blob(b"long", "old")
    later = datetime.now(UTC) + timedelta(minutes=1)
    await execute(
        url,
        "create function wait() returns trigger language plpgsql "
        "as $$ begin perform pg_advisory_xact_lock_shared(1); return old; end $$",
    )
    for table in ("baton_catalogs", "baton_blobs"):
        await execute(url, f"create trigger waiting before delete on {table} for each row execute function wait()")
    async with holding(url, "perform pg_advisory_xact_lock(1)"):
        deleting = [
            asyncio.create_task(delete_runs(database.engine, {old})),
            asyncio.create_task(delete_values(database.engine, "default", {"old"}, later)),
        ]
        while await execute(url, "select count(*) from pg_locks where not granted") != [(2,)]:
            await asyncio.sleep(0.01)
        storing = [
            asyncio.create_task(journal.pin(CATALOG, new)),
            asyncio.create_task(database.put_blob(b"long", "new")),
        ]
        for use in (f"baton_uses where run = '{new}'", "baton_holds where family = 'new'"):
            while await execute(url, f"select count(*) from {use}") != [(1,)]:
                await asyncio.sleep(0.01)
        await end_holding(url)
    await asyncio.gather(*deleting, *storing)
    assert await execute(url, f"select run from baton_uses where run in ('{old}', '{new}')") == [(new,)]
    assert await execute(url, "select sha from baton_catalogs") == [(journal.catalog_name(CATALOG),)]
    assert await database.get_blob(sha) == b"long"


async def test_runs_that_begin_with_the_same_catalog_do_not_wait_for_each_other(journal: Journal, url: str) -> None:
    await journal.pin(CATALOG, f"{uuid.uuid4()}")
    sha = await journal.database.put_blob(b"long", "first")
    async with holding(url, "perform 1 from baton_catalogs, baton_blobs for key share"):  # as another run that begins
        async with asyncio.timeout(20):
            await journal.pin(CATALOG, f"{uuid.uuid4()}")
            assert await journal.database.put_blob(b"long", "second") == sha
        await end_holding(url)


@pytest.mark.full
async def test_a_run_that_begins_to_wait_as_another_one_ends_is_named_as_the_next(journal: Journal, url: str) -> None:
    """Whichever transaction is the first: either the run finds the free place, or the one that ends finds the run."""
    admissions, limit = Admissions(journal.database), RunLimit("Quota/default/limits", "support", 1)
    first, second = (KnownRun(f"{uuid.uuid4()}", name) for name in "ab")
    assert await admissions.admit([limit], first) is None
    same = f"insert into baton_quota_runs values ('{limit.id}', '{second.run}', '', '', 0, '', '')"
    async with holding(url, same):  # stops the second run between its look at the limit and its place in the queue
        asking = asyncio.create_task(admissions.admit([limit], second))
        while await execute(url, "select count(*) from pg_locks where not granted") != [(1,)]:
            await asyncio.sleep(0.01)
        releasing = asyncio.create_task(admissions.release([first.run]))
        while await execute(url, "select count(*) from pg_locks where not granted") == [(1,)] and not releasing.done():
            await asyncio.sleep(0.01)
        await end_holding(url)
    assert await asking is not None
    assert await releasing == [second]


@pytest.mark.full
async def test_two_deletions_at_once_delete_what_only_both_together_have_used(journal: Journal, url: str) -> None:
    database = journal.database
    runs = [f"{uuid.uuid4()}" for _ in range(2)]
    for run in runs:
        await journal.pin(CATALOG, run)
        await database.put_blob(b"long", run)
    later = datetime.now(UTC) + timedelta(minutes=1)
    async with held_commits(url, "delete on baton_uses", "delete on baton_holds"):
        deleting: list[asyncio.Task[object]] = [
            asyncio.create_task(delete_runs(database.engine, {run})) for run in runs
        ]
        deleting += [asyncio.create_task(delete_values(database.engine, "default", {run}, later)) for run in runs]
        while await waiting_transactions(url) != 4:
            await asyncio.sleep(0.01)
    await asyncio.gather(*deleting)
    for table in ("uses", "catalogs", "holds", "blobs"):
        assert await execute(url, f"select count(*) from baton_{table}") == [(0,)]


@pytest.mark.full
async def test_two_processes_note_the_same_erasure_at_once(journal: Journal, url: str) -> None:
    engine = journal.database.engine
    named = Named("run", "", "one")
    note = partial(note_erasure, namespace="default", named=[named], runs={"a", "b"})
    async with held_commits(url, "insert on baton_erasures"):
        noting = [asyncio.create_task(engine.run_in_transaction(note)) for _ in range(2)]
        while await waiting_transactions(url) != 2:
            await asyncio.sleep(0.01)
    await asyncio.gather(*noting)
    unfinished = partial(unfinished_erasures, namespace="default", kinds=["run"])
    assert await engine.run(unfinished) == {named: {"a", "b"}}


async def set_clock(url: str, hours: int) -> None:
    """Sets the clock of a database forward."""
    await execute(
        url,
        "create or replace function public.clock_timestamp() returns timestamptz volatile language sql "
        f"as $$ select pg_catalog.clock_timestamp() + interval '{hours} hours' $$",
    )


async def test_the_duration_of_a_budget_passes_by_the_clock_of_the_database(url: str) -> None:
    """The clocks of workers may differ."""
    await execute(url, f"alter database {make_url(url).database} set search_path = public, pg_catalog")
    await set_clock(url, hours=0)
    database = await Database.connect(url, "default", upgrade=True)

    async def charge_call(call: str) -> Reached | None:
        account = Account("run/limited", limits=(), seconds=3_600)
        return await database.transact(lambda connection: reserve(connection, call, [account], Amount(model_calls=1)))

    assert await charge_call("run/1") is None
    await set_clock(url, hours=2)
    refused = await charge_call("run/2")
    assert refused
    assert refused.limit == "duration"
    await Accounts(database).grant("run/limited", 0, Amount(), seconds=3_600)
    assert await charge_call("run/3") is None
    await set_clock(url, hours=4)
    assert await charge_call("run/4")
    await database.close()


@pytest.mark.full
async def test_a_server_that_is_ending_or_starting_counts_as_one_that_is_away(
    postgres: PostgresServer, url: str
) -> None:
    async with holding(url, "perform 1"):
        postgres.signal(signal.SIGTERM)
        try:
            with pytest.raises(JournalUnavailable, match="the database system is shutting down"):
                while True:
                    await (await Journal.open(url, "default")).close()
        finally:
            with postgres.away():
                pass


@pytest.mark.full
async def test_a_run_survives_the_death_of_its_journals_server(
    postgres: PostgresServer, client: Client, url: str, tmp_path: Path
) -> None:
    def answer(request: Request) -> Reply:
        number = sum(message["role"] == "assistant" for message in request["messages"]) + 1
        return Reply(text=f"answer {number}", delay=0.1)

    async with Environment.running(client, tmp_path, journal_url=url) as env:
        env.answer = answer
        manifests = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=6, onMaxTurns="complete")]
        handle = await env.start_team(manifests)
        for count in (3, 7):
            await env.wait_for_calls(count)
            with postgres.away(signal.SIGKILL):
                await asyncio.sleep(0.3)
        turn = await env.turn_result(handle)
    assert texts(turn.messages) == [f"answer {number}" for number in range(1, 13)]
    assert len(env.model.requests) == 12, "no answer was asked for twice"
    assert await execute(url, "select count(*) from baton_messages") == [(13,)]


@pytest.mark.full
async def test_a_conversation_is_kept_if_the_journal_is_away_when_a_query_ends(
    postgres: PostgresServer, client: Client, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Environment.running(client, tmp_path, journal_url=url) as env:
        env.script(line("one", {"text": "yes", "delay": 0.5}, "of course"))
        handle = await env.start_query([agent("one")], "agent/one", input="Why?", sessionId="s")
        await env.wait_for_calls(1)
        with postgres.away(signal.SIGKILL):
            while "waiting for the journal" not in caplog.text:
                await asyncio.sleep(0.02)
        status = await env.status(handle)
        assert (status.phase, status.message, status.notices) == ("Completed", "yes", None)
        await env.status(await env.start_query([agent("one")], "agent/one", input="Really?", sessionId="s"))
        read = [message["content"] for message in env.model.requests[-1].body["messages"][1:]]
    assert read == ["Why?", "yes", "Really?"]
    assert len(env.model.requests) == 2, "no answer was asked for twice"
