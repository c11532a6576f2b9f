"""``baton prune``: deletes conversations that no run needs, and keeps everything that a run may still read."""

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import Connection, Select, select, text
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.converter import StorageDriverRetrieveContext, StorageDriverStoreContext, StorageDriverWorkflowInfo

from baton.contracts.errors import JournalLost
from baton.contracts.message import Head, Message
from baton.journal import schema
from baton.journal.database import Database
from baton.journal.engine import STATEMENT_TIMEOUT, connect
from baton.journal.external_storage import JournalStorageDriver
from baton.journal.journal import Journal
from baton.journal.prune import STARTED, select_last, select_runs
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.resources.run_catalog import RunCatalog
from baton.starter.errors import UsageError
from baton.starter.operations.journals import reencrypt_journal
from baton.starter.operations.prune import Pruned, prune_journal, read_age
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import with_external_storage
from baton.temporal.encryption import Key
from baton.temporal.external_storage import check_not_missing
from tests.harness.environment import Environment, agent, line, team, texts
from tests.harness.postgres import PostgresServer, execute, holding, waiting_transactions
from tests.harness.processes import baton, process_env
from tests.harness.resets import reset, reset_points

RUNNING = WorkflowExecutionStatus.RUNNING
TEAM = [agent("one"), agent("two"), team("inner", "two", strategy="sequential")]
TEAM += [team("team", "one", "inner", strategy="sequential")]


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path, journal_url: str) -> AsyncIterator[Environment]:
    """An environment on each kind of journal."""
    async with Environment.running(client, tmp_path, journal_url=journal_url) as running:
        yield running


def script(env: Environment, *held: str) -> None:
    """Scripts the agents; the answers of those whose names are given are held."""
    texts = {"one": "I begin.", "two": "I end."}
    env.script(*(line(name, {"text": text, "held": name in held}) for name, text in texts.items()))


async def ids(env: Environment) -> set[str]:
    """The runs that have rows in the journal."""
    rows = await execute(env.journal_url, "select distinct substr(id, 1, 36) from baton_messages")
    return {str(row[0]) for row in rows}


def made_before(days: int) -> str:
    """The id of a run that was started so many days ago."""
    at = int((time.time() - days * 86_400) * 1_000)
    return str(uuid.UUID(int=(at << 80) | (7 << 76) | (2 << 62) | uuid.uuid4().int >> 66))


async def write(url: str, *runs: str) -> None:
    """Writes a conversation of these runs, one after the other, with a catalog."""
    catalog = RunCatalog.of_files(load_documents([Document("x.yaml", agent(f"agent-of-{runs[0]}"), {})]).catalog)
    journal, said = await Journal.open(url, "default"), Message(role="user", content="Once upon a time")
    head = (await journal.begin(catalog, runs[0], Head(), said))[-1].head
    for run in runs[1:]:
        head = await journal.append(head, [said], f"{run}/1")
    await journal.close()
    await execute(
        url,
        f"insert into baton_bookmarks values ('default', '{uuid.uuid4()}', 'key', 'x', 0, '{head.id}', {head.depth})",
    )


async def prune(env: Environment, age: timedelta | None = None, *, dry: bool = False) -> Pruned:
    return await prune_journal(env.client, env.journal_url, age, dry=dry)


@pytest.mark.full
async def test_conversations_older_than_the_retention_are_deleted_with_all_their_rows(env: Environment) -> None:
    script(env)
    recent = await env.start_team(TEAM)
    await env.turn_result(recent)
    old, child, continued = made_before(60), made_before(59), str(uuid.uuid4())
    await write(env.journal_url, old, child, continued)
    await write(env.journal_url, made_before(20))
    before = await ids(env)
    assert await prune(env, dry=True) == Pruned(conversations=1, messages=3, remaining=2)
    assert await ids(env) == before
    await execute(env.journal_url, "insert into baton_catalogs values ('unused', '')")
    await execute(env.journal_url, "insert into baton_blobs values ('unused', '')")
    assert await prune(env) == Pruned(conversations=1, messages=3, remaining=2)
    assert before - await ids(env) == {old, child, continued}
    for table, left in {"catalogs": 2, "uses": 2, "bookmarks": 1, "blobs": 0}.items():
        assert await execute(env.journal_url, f"select count(*) from baton_{table}") == [(left,)]
    assert await prune(env) == Pruned(conversations=0, messages=0, remaining=2)


@pytest.mark.full
async def test_a_conversation_that_queries_go_on_with_is_kept_until_it_is_deleted(env: Environment) -> None:
    script(env)
    asked = [await env.start_query(TEAM, "agent/one", conversationId="c") for _ in range(2)]
    for each in asked:
        await env.status(each)
    script(env)
    over = await env.start_team(TEAM)
    await env.turn_result(over)
    while over.first_execution_run_id in await ids(env):  # the server lists it as closed a moment later
        await prune(env, timedelta(0))
    env.script(line("one", "again"))
    await env.status(await env.start_query(TEAM, "agent/one", conversationId="c"))
    assert len(env.model.requests[-1].body["messages"]) == 6
    await execute(env.journal_url, "delete from baton_conversations")
    while await ids(env):
        await prune(env, timedelta(0))


async def test_the_rows_of_a_run_are_found_by_an_index(journal_url: str) -> None:
    await write(journal_url, *(str(uuid.uuid4()) for _ in range(3)))
    row = schema.run_of(schema.messages.c.id)
    below = schema.run_of(schema.messages.c.parent)
    statements = [select(column).where(schema.run_of(column).in_(["a", "b"])) for column in schema.RUN_COLUMNS]
    statements += [select_runs("default", column) for column in STARTED]
    statements.append(select_last(["a", "b"]))
    statements.append(select(row).where(below.in_(["a", "b"]), below != row))
    statements.append(select(row, below).where(below != row, below > ""))
    statements += [select(uses).where(uses.c.sha == "a") for uses in schema.SHARED]
    statements.append(select(schema.charges).where(schema.run_of(schema.charges.c.account) == "a"))
    engine = connect(journal_url)
    plans = [await engine.run(partial(plan_of, statement=statement)) for statement in statements]
    await engine.dispose()
    assert [plan for plan in plans if not re.search("_(run|after|sha|account)\\b", plan)] == []
    assert sum("baton_messages_after" in plan for plan in plans) == 2


def plan_of(connection: Connection, statement: Select[Any]) -> str:
    """How a database carries out a statement."""
    is_sqlite = connection.dialect.name == "sqlite"
    if not is_sqlite:  # it reads a table of a few rows as a whole
        connection.execute(text("set enable_seqscan = off"))
    explain = "explain query plan" if is_sqlite else "explain"
    compiled = statement.compile(connection, compile_kwargs={"literal_binds": True})
    return str(connection.execute(text(f"{explain} {compiled}")).all())


@pytest.mark.full
async def test_an_open_run_keeps_its_conversation_at_any_age(env: Environment) -> None:
    script(env)
    over = await env.start_team(TEAM)
    await env.turn_result(over)
    script(env, "two")
    env.model.requests.clear()
    running = await env.start_query(TEAM, "team/team")
    await env.wait_for_calls(2)
    await env.find_runs("ExecutionStatus = 'Running' AND WorkflowType = 'query'", 1)
    while over.first_execution_run_id in await ids(env):  # the server lists it as closed a moment later
        await prune(env, timedelta(0))
    env.model.release()
    ended = await env.status(running)
    assert texts(ended.responses[0].messages) == ["I begin.", "I end."]
    catalogs = await execute(env.journal_url, "select count(*) from baton_catalogs")
    assert catalogs == [(1,)]


@pytest.mark.full
async def test_a_reset_run_keeps_the_messages_of_the_run_before_it(env: Environment) -> None:
    script(env)
    first = await env.start_team(TEAM)
    await env.turn_result(first)
    script(env, "one", "two")
    env.model.requests.clear()
    second = await reset(env, first, (await reset_points(first))[1])
    await env.wait_for_calls(1)
    first_closed = f"RunId = '{first.first_execution_run_id}' AND ExecutionStatus != 'Running'"
    await env.find_runs(first_closed, 1)
    await env.find_runs(f"RunId = '{second.run_id}'", 1)
    assert (await prune(env, timedelta(0))).conversations == 0
    env.model.release()
    assert texts((await env.turn_result(second)).messages) == ["I begin.", "I end."]


@pytest.mark.full
async def test_long_values_are_deleted_with_the_last_workflow_that_stored_them(env: Environment) -> None:
    driver = JournalStorageDriver(lambda: Database.open(env.journal_address, "default"))
    script(env, "one")
    question = {"team": "team", "input": "x" * 1_100_000, "resources": TEAM}
    ours = with_external_storage(env.client, driver)
    running = await ours.start_workflow("sequential", question, id=f"{env.task_queue}/1", task_queue=env.task_queue)
    [shared] = ours.data_converter.payload_converter.to_payloads([question])
    gone = StorageDriverStoreContext(StorageDriverWorkflowInfo(id=f"gone-{env.task_queue}/turn-1/a", namespace=""))
    claims = await driver.store(gone, [shared, Payload(data=b"its own")])
    await env.find_runs(f"WorkflowId = '{running.id}'", 1)
    while len(await execute(env.journal_url, "select distinct family from baton_holds")) > 1:
        await prune(env, timedelta(0))  # values of the same second stay
    assert [shared] == await driver.retrieve(StorageDriverRetrieveContext(), claims[:1])
    with pytest.raises(JournalLost):
        check_not_missing(await driver.retrieve(StorageDriverRetrieveContext(), claims[1:]))
    env.model.release()
    assert texts((await env.turn_result(running)).messages) == ["I begin.", "I end."]


@pytest.mark.full
async def test_the_command_counts_with_dry_run_and_deletes_without_it(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    await write(url, made_before(60))
    await write(url, made_before(20))
    env = process_env(TEMPORAL_ADDRESS=server.address, BATON_JOURNAL_URL=url)

    def typed(*options: str) -> str:
        return baton("prune", *options, env=env).stderr

    assert "Would delete 1 conversations with 1 messages; 1 are still needed." in await asyncio.to_thread(
        typed, "--dry-run"
    )
    deleted = await asyncio.to_thread(typed, "--older-than", "10d")
    assert "Deleted 2 conversations with 2 messages; 0 are still needed." in deleted


@pytest.mark.parametrize("age", ["", "d", "30", "a month", "9" * 30 + "d", "999999999d", "-5d", "99999999999h"])
def test_text_that_is_not_an_age_is_refused(age: str) -> None:
    with pytest.raises(UsageError, match="write for example 30d or 12h"):
        read_age(age)


async def test_a_journal_that_two_servers_use_under_one_name_of_a_namespace_is_refused(
    client: Client, journal_url: str
) -> None:
    """Runs that are open on the other server can't be told from those that have ended."""
    await write(journal_url, old := made_before(days=60))
    await execute(journal_url, "insert into baton_identity values ('serves/another', 'default')")
    with pytest.raises(UsageError, match="by a namespace default of another Temporal server: nothing was deleted"):
        await prune_journal(client, journal_url, timedelta(days=1), dry=False)
    assert await execute(journal_url, f"select 1 from baton_messages where id like '{old}%'")


SUPPORT = {"support": timedelta(days=7), "*": timedelta(days=30)}


async def test_the_retention_of_a_namespace_of_manifests_counts_instead_of_the_age(
    journal_url: str, client: Client
) -> None:
    support, other, unknown = made_before(20), made_before(20), made_before(20)
    for run in (support, other, unknown):
        await write(journal_url, run)
    for run, namespace in ((support, "support"), (other, "sales")):
        await execute(journal_url, f"update baton_uses set namespace = '{namespace}' where run = '{run}'")
    both = made_before(20)
    await write(journal_url, both, added := made_before(19))
    for run, namespace in ((both, "support"), (added, "sales")):
        await execute(journal_url, f"insert into baton_uses values ('{run}', '{namespace}', '{namespace}', null)")
    pruned = await prune_journal(client, journal_url, None, dry=False, retention=SUPPORT)
    assert pruned == Pruned(conversations=1, messages=1, remaining=3)
    left = {str(row[0])[:36] for row in await execute(journal_url, "select id from baton_messages")}
    assert left == {other, unknown, both, added}


async def test_a_conversation_ends_with_the_retention_of_its_namespace(journal_url: str, client: Client) -> None:
    for namespace, days in (("support", 20), ("support", 2), ("sales", 20)):
        run = made_before(20)
        await write(journal_url, run)
        await execute(journal_url, f"update baton_uses set namespace = '{namespace}' where run = '{run}'")
        await remember(journal_url, f"{run}/1", days=days, namespace=namespace)
    kept = {"support": timedelta(days=7)}
    would = await prune_journal(client, journal_url, timedelta(days=10), dry=True, retention=kept)
    assert would == await prune_journal(client, journal_url, timedelta(days=10), dry=False, retention=kept)
    assert (would.conversations, would.remaining) == (1, 2)
    left = await execute(journal_url, "select namespace from baton_conversations order by namespace")
    assert [str(row[0]) for row in left] == ["sales", "support"]


async def remember(url: str, head: str, *, days: int, namespace: str = "default") -> None:
    """A conversation that ends with a row, and that the last query has continued so many days ago."""
    changed = int(time.time()) - days * 86_400
    values = f"'default', '{namespace}', '', '{uuid.uuid4()}', '{head}', 1, {changed}, {changed}"
    await execute(url, f"insert into baton_conversations values ({values})")


async def test_a_conversation_that_a_query_continues_during_a_prune_keeps_its_history(
    client: Client, postgres: PostgresServer
) -> None:
    """The query has written its question, and moves the head of the conversation only at its end."""
    url = await postgres.database()
    first, other, question = made_before(20), made_before(20), Message(role="user", content="Go on")
    for run in (first, other):
        await write(url, run)
        await remember(url, f"{run}/1", days=20)
    journal = await Journal.open(url, "default")
    async with holding(url, "lock table baton_holds"):
        pruning = asyncio.create_task(prune_journal(client, url, None, dry=False, retention={"*": timedelta(days=7)}))
        while await waiting_transactions(url) != 1:  # it has listed the conversations
            await asyncio.sleep(0.01)
        await journal.append(Head(id=f"{first}/1", depth=1), [question], str(uuid.uuid4()))
    assert await pruning == Pruned(conversations=1, messages=1, remaining=1)
    await journal.close()
    assert await execute(url, "select head from baton_conversations") == [(f"{first}/1",)]
    assert await execute(url, "select count(*) from baton_messages") == [(2,)]


async def test_what_a_start_has_stored_that_was_killed_before_its_question_is_deleted(
    client: Client, journal_url: str
) -> None:
    """A young run keeps it, and so does a run of another Temporal namespace: both may be open."""
    old, young, elsewhere = made_before(60), made_before(1), made_before(60)
    catalog = RunCatalog.of_files(load_documents([Document("x.yaml", agent("one"), {})]).catalog)
    for run, namespace in ((old, client.namespace), (young, client.namespace), (elsewhere, "another")):
        journal = await Journal.open(journal_url, namespace)
        await journal.attach(run, [run.encode()])
        await journal.pin(catalog, run)
        await journal.close()
    await write(journal_url, made_before(60))
    pruned = await prune_journal(client, journal_url, timedelta(days=30), dry=False)
    assert pruned == Pruned(conversations=2, messages=1, remaining=1)
    for column, table in (("id", "attachments"), ("run", "uses")):
        left = await execute(journal_url, f"select substr({column}, 1, 36) from baton_{table}")
        assert {run for (run,) in left} == {young, elsewhere}
    assert await execute(journal_url, "select count(*) from baton_catalogs") == [(1,)]


async def test_a_run_that_has_only_pinned_its_manifests_is_found(client: Client, journal_url: str) -> None:
    catalog = RunCatalog.of_files(load_documents([Document("x.yaml", agent("one"), {})]).catalog)
    journal = await Journal.open(journal_url, client.namespace)
    await journal.pin(catalog, made_before(60))
    await journal.close()
    pruned = await prune_journal(client, journal_url, timedelta(days=30), dry=False)
    assert pruned == Pruned(conversations=1, messages=0, remaining=0)
    assert await execute(journal_url, "select count(*) from baton_catalogs") == [(0,)]


@pytest.mark.full
async def test_a_statement_of_a_command_may_take_longer_than_that_of_a_worker(
    client: Client, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that is locked is as slow as a large one."""
    url, key = await postgres.database(), Key.generate("new")
    await write(url, made_before(60))
    environ = {"BATON_JOURNAL_URL": url, "BATON_ENCRYPTION_KEYS": str(key)}
    async with holding(url, "lock table baton_messages"):
        encrypting = asyncio.create_task(reencrypt_journal(environ))
        pruning = asyncio.create_task(prune_journal(client, url, timedelta(days=90), dry=False))
        while await waiting_transactions(url) != 2:
            await asyncio.sleep(0.1)
        await asyncio.sleep(STATEMENT_TIMEOUT + 1)
        assert not encrypting.done() and not pruning.done()
    _, done = await encrypting
    assert done.counts["messages"] == 1
    assert await pruning == Pruned(conversations=0, messages=0, remaining=1)
    assert "waiting for the journal" not in caplog.text
