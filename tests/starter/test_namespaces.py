"""Two Temporal namespaces on one journal: what one of them deletes, lists or continues is never of the other."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from baton.contracts.message import Head, Message
from baton.contracts.plan import ConversationPlan
from baton.contracts.requests import Bookmark
from baton.journal.journal import Journal
from baton.starter.operations.conversations import (
    delete_conversation,
    list_conversations,
    read_contributions,
    read_conversation,
)
from baton.starter.operations.prune import prune_journal
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.temporal.search_attributes import register
from tests.harness.environment import Environment, Handle, agent, line
from tests.harness.postgres import execute

TALK = ConversationPlan(id="talk", namespace="default")
LONG = "x" * 1_100_000
"""A question that is stored outside histories."""


class Namespaces(NamedTuple):
    """The environments of two namespaces, with one journal; ``name`` is that of the test's runs in both."""

    here: Environment
    there: Environment
    name: str

    @property
    def each(self) -> tuple[Environment, Environment]:
        """Both environments."""
        return self.here, self.there


async def other_namespace(client: Client, server: EmbeddedServer) -> Client:
    """A client of another namespace of the server, which is new."""
    other = await Client.connect(
        server.address, namespace=f"other-{uuid.uuid4().hex[:8]}", data_converter=client.data_converter
    )
    request = RegisterNamespaceRequest(namespace=other.namespace)
    request.workflow_execution_retention_period.FromTimedelta(timedelta(days=1))
    await client.workflow_service.register_namespace(request)
    while True:
        try:  # the server knows a new namespace a moment later
            await register(other)
            return other
        except RPCError:
            await asyncio.sleep(0.1)


@pytest_asyncio.fixture(loop_scope="session")
async def both(client: Client, server: EmbeddedServer, tmp_path: Path, journal_url: str) -> AsyncIterator[Namespaces]:
    """Workers in two namespaces of one server, on each kind of journal."""
    other = await other_namespace(client, server)
    async with (
        Environment.running(client, tmp_path / "here", journal_url=journal_url) as here,
        Environment.running(other, tmp_path / "there", journal_url=journal_url) as there,
    ):
        yield Namespaces(here, there, name=f"asks-{uuid.uuid4().hex}")


async def ask(env: Environment, workflow_id: str, question: str, delay: float = 0, **spec: object) -> Handle:
    """Starts a query to one agent under an id of the test's choice; the answer repeats the namespace."""
    env.script(line("one", *[{"text": f"said in {env.client.namespace}", "delay": delay}] * 9))
    query = {"input": question, "targets": [{"type": "agent", "name": "one"}], **spec}
    handle = await env.client.start_workflow(
        "query",
        {"name": "q", "spec": query, "resources": [agent("one")]},
        id=workflow_id,
        task_queue=env.task_queue,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
    )
    env.started.append(handle)
    return handle


async def messages_of(env: Environment, *handles: Handle) -> list[int]:
    """How many messages of each run the journal has."""
    counts = []
    for handle in handles:
        where = f"where id like '{handle.first_execution_run_id}%'"
        [(count,)] = await execute(env.journal_url, f"select count(*) from baton_messages {where}")
        counts.append(int(str(count)))
    return counts


async def check_kept(env: Environment, before: tuple[list[int], int], *handles: Handle) -> None:
    """Checks that no message of these runs and no large value was deleted; open runs may have added some."""
    after = await messages_of(env, *handles)
    assert all(count >= earlier for count, earlier in zip(after, before[0], strict=True))
    assert await values_of(env) >= before[1]


async def values_of(env: Environment) -> int:
    """How many large values the namespace holds."""
    where = f"where temporal_namespace = '{env.client.namespace}'"
    [(count,)] = await execute(env.journal_url, f"select count(*) from baton_holds {where}")
    return int(str(count))


@pytest.mark.full
async def test_conversations_of_one_name_are_separate_and_deleted_one_by_one(both: Namespaces) -> None:
    journal = {"BATON_JOURNAL_URL": both.here.journal_url}
    for env in both.each:
        for question in ("first?", "second?"):
            await env.status(await ask(env, both.name, question, conversationId=TALK.id))
        asked = [message["content"] for message in env.model.requests[-1].body["messages"]]
        assert asked == ["You are one.", "first?", f"said in {env.client.namespace}", "second?"]
        listed = await list_conversations(env.client.namespace, 20, journal)
        assert [(record.id, record.depth) for record in listed] == [(TALK.id, 4)]
    here, there = (env.client.namespace for env in both.each)
    assert await delete_conversation(here, TALK, journal)
    assert await read_conversation(here, TALK, 20, journal) is None
    kept = await read_conversation(there, TALK, 20, journal)
    assert [message.content for message in kept or ()] == ["first?", f"said in {there}", "second?", f"said in {there}"]


@pytest.mark.full
async def test_pruning_one_namespace_leaves_open_and_ended_runs_of_the_other(both: Namespaces) -> None:
    """The runs of both have the same workflow ids and the same question, which is stored as one large value."""
    ended = [await ask(env, both.name, LONG, cancel=False) for env in both.each]
    for env, handle in zip(both.each, ended, strict=True):
        await env.status(handle)
    gone, kept = ended
    open_there = await ask(both.there, f"{both.name}-open", LONG, delay=3)
    await both.there.wait_for_calls(2)
    before = await messages_of(both.there, kept, open_there), await values_of(both.there)
    assert min(*before[0], before[1]) > 0
    # The server lists the run as closed a moment later, and values of the same second stay.
    while (await messages_of(both.here, gone))[0] or await values_of(both.here):
        pruned = await prune_journal(both.here.client, both.here.journal_url, timedelta(0), dry=False)
        assert pruned.conversations + pruned.remaining <= 1
    await check_kept(both.there, before, kept, open_there)
    assert (await both.there.status(open_there)).phase == "Completed"
    while any(await messages_of(both.there, kept, open_there)) or await values_of(both.there):
        await prune_journal(both.there.client, both.there.journal_url, timedelta(0), dry=False)
    assert await execute(both.here.journal_url, "select count(*) from baton_blobs") == [(0,)]


@pytest.mark.full
async def test_the_ttl_of_a_query_deletes_nothing_of_the_equally_named_query_of_the_other(both: Namespaces) -> None:
    kept = await ask(both.there, both.name, LONG, conversationId=TALK.id)
    await both.there.status(kept)
    open_there = await ask(both.there, f"{both.name}-open", LONG, delay=3, conversationId=TALK.id)
    await both.there.wait_for_calls(2)
    before = await messages_of(both.there, kept, open_there), await values_of(both.there)
    await both.here.status(gone := await ask(both.here, both.name, LONG, ttl="2s"))  # values of the same second stay
    while (await messages_of(both.here, gone))[0] or await values_of(both.here):
        await asyncio.sleep(0.05)
    await check_kept(both.there, before, kept, open_there)
    assert (await both.there.status(open_there)).phase == "Completed"


async def test_rows_and_transcripts_of_another_namespace_count_as_missing(journal_url: str) -> None:
    """A head or a session's key from the other namespace leads to nothing, so that no run continues its rows."""
    here = await Journal.open(journal_url, "here")
    there = await Journal.open(journal_url, "there")
    run = uuid.uuid4()
    head = await here.append(Head(), [Message(role="user", content="secret")], f"{run}/1")
    await here.set_bookmark(Bookmark(session="s", key="k", owner="here", begun=0), head, new=True)
    await there.set_bookmark(Bookmark(session="s", key="k", owner="there", begun=0), Head(), new=True)
    assert [row.message.content for row in await here.read_bookmark("s", "k")] == ["secret"]
    assert not await there.read_bookmark("s", "k")
    assert await read_contributions("elsewhere", "s", "k", {"BATON_JOURNAL_URL": journal_url}) == ()
    assert await there.find(head.id) is None
    await here.close()
    await there.close()
