"""The conversations of the journal, on each database: added to once, in one order, whoever is killed."""

import asyncio
import sys
import tempfile
import uuid
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from baton.contracts.message import Head, Message, RowRange
from baton.contracts.plan import ConversationPlan
from baton.journal import schema
from baton.journal.engine import Work
from baton.journal.journal import Conversations, Copies, Journal
from baton.journal.prune import delete_runs, forget, runs_after
from baton.journal.rows import Row
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.resources.run_catalog import RunCatalog
from tests.harness.environment import agent
from tests.harness.postgres import execute
from tests.harness.processes import process_env

PLAN = ConversationPlan(id="c", namespace="default")


@pytest_asyncio.fixture(loop_scope="session")
async def journal(journal_url: str) -> AsyncIterator[Journal]:
    journal = await Journal.open(journal_url, "default")
    yield journal
    await journal.close()


class Exchange:
    """A query in the conversation: what was said before it, its question and its answer."""

    def __init__(self, journal: Journal, name: str) -> None:
        self._journal, self._name = journal, name
        self._conversations = Conversations(journal)
        self.before, self.after = Head(), Head()

    async def begin(self) -> None:
        """Says question and answer after what the conversation holds now."""
        self.before = await self._conversations.head(PLAN)
        said = [Message(role="user", content=f"{self._name}?"), Message(role="assistant", content=f"{self._name}!")]
        self.after = await self._journal.append(self.before, said, f"{self._name}/said")

    async def end(self) -> None:
        """Adds it to the conversation; another attempt does the same again."""
        span = RowRange(after=self.before, to=self.after)
        await self._conversations.add(PLAN, self.before, [span], f"{self._name}/end")


async def contents(journal: Journal) -> list[str]:
    head = await Conversations(journal).head(PLAN)
    return [row.message.content for row in await journal.read(head)]


async def test_a_conversation_that_nobody_else_uses_only_moves_its_pointer(journal: Journal) -> None:
    for name in ("a", "b"):
        exchange = Exchange(journal, name)
        await exchange.begin()
        await exchange.end()
        assert await Conversations(journal).head(PLAN) == exchange.after
    assert await contents(journal) == ["a?", "a!", "b?", "b!"]


async def test_exchanges_at_once_from_several_workers_are_all_kept_whole(journal: Journal, journal_url: str) -> None:
    others = [await Journal.open(journal_url, "default") for _ in range(3)]
    exchanges = [Exchange(each, f"{number}") for number, each in enumerate([journal, *others] * 4)]
    await asyncio.gather(*(each.begin() for each in exchanges))
    await asyncio.gather(*(each.end() for each in exchanges), *(each.end() for each in exchanges[:4]))
    said = await contents(journal)
    for each in others:
        await each.close()
    assert sorted(said[::2]) == sorted(f"{number}?" for number in range(16))
    assert [each[:-1] for each in said[::2]] == [each[:-1] for each in said[1::2]]


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["begin", "end", "again"])), max_size=24)


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_whatever_the_order_of_queries_and_attempts_each_is_kept_once(steps: list[tuple[int, str]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            journal = await Journal.open(f"sqlite:///{Path(folder) / 'journal.db'}", "default")
            running: dict[int, Exchange] = {}
            ended: list[Exchange] = []
            seen: list[str] = []
            for number, (index, step) in enumerate(steps):
                if step == "begin" and index not in running:
                    running[index] = Exchange(journal, f"{number}")
                    await running[index].begin()
                elif step == "end" and index in running:
                    ended.append(running.pop(index))
                    await ended[-1].end()
                elif step == "again" and ended:
                    await ended[index % len(ended)].end()
                said = await contents(journal)
                assert said[: len(seen)] == seen, "what one query has read stays at its place"
                seen = said
            assert seen == [text for each in ended for text in (f"{each._name}?", f"{each._name}!")]
            await journal.close()

    asyncio.run(run())


async def test_a_conversation_that_was_deleted_meanwhile_begins_again(journal: Journal) -> None:
    first, second = Exchange(journal, "a"), Exchange(journal, "b")
    await first.begin()
    await first.end()
    await second.begin()
    await Conversations(journal).delete(PLAN)
    await second.end()
    await second.end()
    assert await contents(journal) == ["b?", "b!"]


def said(count: int) -> list[Message]:
    return [Message(role="user", content=f"message {number}") for number in range(count)]


async def asked(journal: Journal, count: int, run: uuid.UUID) -> list[str]:
    """The conversation of a query that asks after so many messages of a Memory's service."""
    question = Message(role="user", content=f"asked by {run}")
    row = await Copies(journal).add_question(PLAN, said(count), question, f"{run}/1")
    return [row.message.content for row in await journal.read(row.head)]


async def test_queries_at_once_share_a_copy_and_each_has_its_own_question(journal: Journal, journal_url: str) -> None:
    others = [await Journal.open(journal_url, "default") for _ in range(3)]
    runs = [uuid.uuid4() for _ in range(4)]
    copied = [message.content for message in said(50)]
    for count in (48, 50):
        queries = zip([journal, *others], runs, strict=True)
        read = await asyncio.gather(*(asked(each, count, run) for each, run in queries))
        assert read == [[*copied[:count], f"asked by {run}"] for run in runs]
    [last] = await journal.database.run(select(schema.copies.c.depth))
    assert last.depth == 50
    for each in others:
        await each.close()


async def test_a_copy_whose_rows_are_being_deleted_is_not_continued(journal: Journal) -> None:
    """Either the deletion sees the rows of the query that continues a copy, or the query copies everything."""
    old, new = uuid.uuid4(), uuid.uuid4()
    engine = journal.database.engine
    await asked(journal, 3, old)
    following = partial(runs_after, namespace="default", runs={f"{old}"})
    assert await forget(engine, "default", {f"{old}"})
    assert not await engine.run(following)
    copied = [message.content for message in said(3)]
    assert await asked(journal, 3, new) == [*copied, f"asked by {new}"]
    assert not await engine.run(following)
    await delete_runs(engine, {f"{old}"})
    assert await asked(journal, 3, latest := uuid.uuid4()) == [*copied, f"asked by {latest}"]
    assert not await forget(engine, "default", {f"{new}"})
    assert await engine.run(partial(following, runs={f"{new}"})) == {f"{latest}"}


async def test_what_another_run_continues_is_not_forgotten(journal: Journal) -> None:
    engine = journal.database.engine
    await asked(journal, 3, run := uuid.uuid4())
    [copy] = await journal.database.run(select(schema.copies))
    await journal.database.insert((schema.conversations, [copy._asdict()]))
    await journal.append(Head(id=copy.head, depth=copy.depth), said(1), f"{uuid.uuid4()}/1")
    assert not await forget(engine, "default", {f"{run}"})
    for table in (schema.conversations, schema.copies):
        assert await journal.database.run(select(table)) == [copy]


KILLED_IN_PRUNE = """
import asyncio, sys
from baton.journal import prune
from baton.journal.engine import connect

looked, look = 0, prune.runs_after

def stop(*arguments, **named):
    global looked
    looked += 1
    if looked == int(sys.argv[3]):
        print("here", flush=True)
        sys.stdin.read()
    return look(*arguments, **named)

prune.runs_after = stop
asyncio.run(prune.forget(connect(sys.argv[1]), "default", {sys.argv[2]}))
print("ended", flush=True)
"""


def catalog_of_files() -> RunCatalog:
    return RunCatalog.of_files(load_documents([Document("x.yaml", agent("one"), {})]).catalog)


async def begun(journal: Journal, run: uuid.UUID, held: Callable[[], Awaitable[None]] | None = None) -> list[str]:
    """What a query reads that begins in the conversation; ``held`` is awaited once it has read the head."""
    question = Message(role="user", content=f"asked by {run}")
    pauses = [held] if held else []

    async def write(head: Head, check: Work[None] | None) -> list[Row]:
        while pauses:
            await pauses.pop()()
        return await journal.begin(catalog_of_files(), f"{run}", head, question, then=check)

    rows = await Conversations(journal).begin(PLAN, write)
    return [row.message.content for row in await journal.read(rows[-1].head)]


async def remember(journal: Journal, run: uuid.UUID) -> None:
    """Ends a query that has begun in the conversation."""
    row = await journal.row(f"{run}/1")
    await Conversations(journal).add(PLAN, row.before, [RowRange(after=row.before, to=row.head)], f"{run}/end")


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_query_whose_conversation_is_forgotten_before_its_question_begins_anew(
    journal: Journal, journal_url: str, is_deleted: bool
) -> None:
    pruning = await Journal.open(journal_url, "default")
    engine, old, new = pruning.database.engine, uuid.uuid4(), uuid.uuid4()
    await begun(journal, old)
    await remember(journal, old)

    async def prune() -> None:
        assert await forget(engine, "default", {f"{old}"})
        if is_deleted:
            await delete_runs(engine, {f"{old}"})

    assert await begun(journal, new, prune) == [f"asked by {new}"]
    await remember(journal, new)
    await delete_runs(engine, {f"{old}"})
    assert await contents(pruning) == [f"asked by {new}"]
    await pruning.close()


async def test_a_query_whose_conversation_goes_on_before_its_question_reads_that_too(journal: Journal) -> None:
    first, second, new = Exchange(journal, "a"), Exchange(journal, "b"), uuid.uuid4()
    await first.begin()
    await first.end()
    await second.begin()
    assert await begun(journal, new, second.end) == ["a?", "a!", "b?", "b!", f"asked by {new}"]


async def test_a_query_whose_conversation_is_pruned_while_it_ends_is_kept(
    journal: Journal, journal_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruning = await Journal.open(journal_url, "default")
    old, new = uuid.uuid4(), uuid.uuid4()
    await begun(journal, new)
    await begun(pruning, old)
    await remember(pruning, old)
    append = journal.append

    async def prune_and_append(*arguments: Any) -> Head:
        monkeypatch.undo()
        assert await forget(pruning.database.engine, "default", {f"{old}"})
        await delete_runs(pruning.database.engine, {f"{old}"})
        journal._rows.clear()  # as in another worker
        return await append(*arguments)

    monkeypatch.setattr(journal, "append", prune_and_append)
    await remember(journal, new)
    assert await contents(journal) == [f"asked by {new}"]
    await pruning.close()


@pytest.mark.parametrize("look", [1, 2])
async def test_a_query_that_begins_while_a_prune_is_killed_reads_all_or_begins_anew(
    journal: Journal, journal_url: str, look: int
) -> None:
    """The prune is killed when it looks for such queries, if it looks so often; else it ends."""
    old, new = uuid.uuid4(), uuid.uuid4()
    await begun(journal, old)
    await remember(journal, old)
    is_forgotten = False

    async def prune() -> None:
        nonlocal is_forgotten
        command = [sys.executable, "-c", KILLED_IN_PRUNE, journal_url, f"{old}", f"{look}"]
        pruning = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=process_env())
        assert pruning.stdout
        is_forgotten = await pruning.stdout.readline() == b"ended\n"
        if not is_forgotten:
            pruning.kill()
        await pruning.wait()

    read = await begun(journal, new, prune)
    await remember(journal, new)
    assert read == await contents(journal)
    assert read == [*([] if is_forgotten else [f"asked by {old}"]), f"asked by {new}"]


async def test_a_copy_whose_rows_are_lost_begins_anew(journal_url: str) -> None:
    for deleted in ("", "delete from baton_messages where depth = 2"):
        journal = await Journal.open(journal_url, "default")
        if deleted:
            await execute(journal_url, deleted)
        copied = [message.content for message in said(3)]
        assert await asked(journal, 3, run := uuid.uuid4()) == [*copied, f"asked by {run}"]
        await journal.close()
