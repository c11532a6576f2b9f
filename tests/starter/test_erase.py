"""``baton delete RUN``: erases a run with all of its data, and nothing that another run needs."""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import (
    Client,
    Interceptor,
    ListWorkflowsInput,
    OutboundInterceptor,
    WorkflowExecutionAsyncIterator,
)
from temporalio.service import RPCError, RPCStatusCode

from baton.contracts.errors import JournalUnavailable
from baton.contracts.message import Head, Message, RowRange
from baton.contracts.plan import ConversationPlan
from baton.contracts.scope import ACCOUNT, CALLER
from baton.journal import schema
from baton.journal.journal import Conversations, Journal
from baton.starter.errors import UsageError
from baton.starter.gateway.access import LOCAL
from baton.starter.operations.erase import Erased, erase_conversation, erase_expired, erase_runs, erase_user
from baton.starter.operations.prune import Ages
from baton.starter.runs.start import retry_run
from baton.starter.scripted_model import serve_in_thread
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import EXTERNAL_STORAGE_URL
from baton.temporal.converter import DATA_CONVERTER
from baton.testing import Reply
from tests.harness.environment import Environment, Handle, agent, line, team
from tests.harness.postgres import PostgresServer, execute, held_commits, waiting_transactions
from tests.harness.processes import baton, process_env
from tests.harness.resets import reset, reset_points
from tests.harness.s3_server import S3Server

MARK = "Paris-4711"
"""What the user says, which must be found nowhere afterwards."""

TEAM = [agent("one"), agent("two"), team("inner", "two", strategy="sequential")]
TEAM += [team("team", "one", "inner", strategy="sequential")]


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path, journal_url: str) -> AsyncIterator[Environment]:
    """An environment on each kind of journal."""
    async with Environment.running(client, tmp_path, journal_url=journal_url) as running:
        yield running


def script(env: Environment) -> None:
    env.script(line("one", f"I love {MARK}.", "Again."), line("two", f"{MARK} is large.", "Still."))


async def ended(env: Environment, *targets: str, size: int = 0, **spec: object) -> Handle:
    """A completed query."""
    handle = await env.start_query(TEAM, *targets, input=f"Tell me of {MARK}." + "x" * size, **spec)
    await env.status(handle)
    await env.find_runs(f"WorkflowId = '{handle.id}' AND ExecutionStatus != 'Running'", 1)
    return handle


async def erase(env: Environment, *runs: str, dry: bool = False) -> Erased:
    return await erase_runs(env.client, runs, dry=dry, environ=env.worker_env)


async def exists(env: Environment, run: str) -> bool:
    """Whether Temporal has a run."""
    try:
        await env.client.get_workflow_handle(run).describe()
    except RPCError as error:
        assert error.status == RPCStatusCode.NOT_FOUND
        return False
    return True


async def unlisted(env: Environment, run: str) -> None:
    """Waits until the server lists neither a run nor its child runs: its list is a moment late."""
    async with asyncio.timeout(120):
        while [each async for each in env.client.list_workflows(f"WorkflowId STARTS_WITH '{run}'")]:
            await asyncio.sleep(0.05)


async def rows(env: Environment) -> Sequence[Sequence[object]]:
    """All rows of the journal's tables that belong to runs."""
    tables = ("messages", "uses", "catalogs", "calls", "holds", "blobs", "conversations")
    return [row for table in tables for row in await execute(env.journal_address, f"select * from baton_{table}")]


async def everything(env: Environment, but: str = "") -> str:
    """All rows of all tables of the journal, but one: a new table with the words of users is erased as well."""
    tables = schema.metadata.tables.keys() - {but}
    return repr([await execute(env.journal_address, f"select * from {table}") for table in tables])


@pytest.mark.full
async def test_a_run_is_erased_with_its_child_runs_its_rows_and_its_long_values(env: Environment) -> None:
    script(env)
    run = await ended(env, "team/team", size=600_000, ttl="720h")
    children = [each for each in await env.find_runs("WorkflowId STARTS_WITH 'query'", 2) if each != run.id]
    before = await rows(env)
    would = await erase(env, run.id, dry=True)
    assert (would.runs, await rows(env)) == ([run.id], before)
    assert await erase(env, run.id) == would
    assert would.messages >= 3 and would.executions >= 3
    assert not [each for each in (run.id, *children) if await exists(env, each)]
    assert await rows(env) == []
    assert MARK not in await everything(env)
    left = await everything(env, but=schema.audit.name)  # it has the id of the run, and who has deleted it
    assert not [each for each in (run.id, run.first_execution_run_id, *children) if str(each) in left]
    await unlisted(env, run.id)
    if env.journal.exists():
        assert MARK.encode() not in env.journal_bytes
    with pytest.raises(UsageError, match="there is no run and no kind"):
        await erase(env, run.id)


async def test_an_open_run_is_not_erased(env: Environment) -> None:
    env.script(line("one", {"text": "I begin.", "delay": 60}))
    run = await env.start_query(TEAM, "agent/one")
    await env.wait_for_calls(1)
    with pytest.raises(UsageError, match="has not ended: end it first"):
        await erase(env, run.id)
    await run.signal("cancel")
    await env.status(run)


@pytest.mark.full
async def test_a_run_that_another_one_continues_is_only_erased_with_it(env: Environment) -> None:
    script(env)
    first, second = [await ended(env, "agent/one", conversationId="c") for _ in range(2)]
    other = await ended(env, "agent/two")
    with pytest.raises(UsageError, match=f"other runs share a conversation .*: {second.id}"):
        await erase(env, first.id)
    with pytest.raises(UsageError, match=f"other runs share a conversation .*: {first.id}"):
        await erase(env, second.id)
    assert await exists(env, first.id)
    assert (await erase(env, first.id, second.id)).runs == [first.id, second.id]
    assert await execute(env.journal_address, "select * from baton_conversations") == []
    script(env)
    await ended(env, "agent/one", conversationId="c")
    assert len(env.model.requests[-1].body["messages"]) == 2, "a new conversation"
    assert await exists(env, other.id)


class Unlisted(Interceptor, OutboundInterceptor):
    """A connection to which Temporal does not list a run yet."""

    def __init__(self, run: str) -> None:
        """The next interceptor is set with the client."""
        self._run = run

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        OutboundInterceptor.__init__(self, next)
        return self

    def list_workflows(self, input: ListWorkflowsInput) -> WorkflowExecutionAsyncIterator:  # noqa: A002
        hidden = dataclasses.replace(input, query=f"({input.query}) AND RunId != '{self._run}'")
        return super().list_workflows(hidden)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_run_that_temporal_does_not_list_yet_keeps_the_conversation_that_it_continues(
    env: Environment, server: EmbeddedServer, whole: bool
) -> None:
    env.script(line("one", "first"))
    first = await ended(env, "agent/one", conversationId="c")
    env.answer = lambda _: Reply(hang=True)
    second = await env.start_query(TEAM, "agent/one", conversationId="c")
    await env.wait_for_calls(2)
    unlisted = Unlisted(second.first_execution_run_id or "")
    client = await Client.connect(server.address, data_converter=DATA_CONVERTER, interceptors=[unlisted])
    with pytest.raises(UsageError, match=f"the run {second.first_execution_run_id} .* may not list it yet"):
        if whole:
            await erase_conversation(client, "c", dry=False, environ=env.worker_env)
        else:
            await erase_runs(client, [first.id], dry=False, environ=env.worker_env)
    await second.signal("cancel")
    env.script(line("one", "third"))
    await ended(env, "agent/one", conversationId="c")
    assert "first" in str(env.model.requests[-1].body["messages"])


async def test_a_conversation_is_erased_with_all_its_runs(env: Environment) -> None:
    script(env)
    runs = [await ended(env, "agent/one", conversationId="c") for _ in range(2)]
    other = await ended(env, "agent/two")
    erased = await erase_conversation(env.client, "c", dry=False, environ=env.worker_env)
    assert {*erased.runs} == {run.id for run in runs}
    assert not [run for run in runs if await exists(env, run.id)] and await exists(env, other.id)
    with pytest.raises(UsageError, match="there is no conversation 'c'"):
        await erase_conversation(env.client, "c", dry=False, environ=env.worker_env)
    assert await erasures(env) == sorted([("conversation", "default", "c"), *(run_key(env, run.id) for run in runs)])


def run_key(env: Environment, run: str) -> tuple[object, ...]:
    return "run", env.client.namespace, run


async def erasures(env: Environment) -> list[tuple[object, ...]]:
    """What was erased by the audit log."""
    columns = "kind, namespace, name"
    where = "action = 'delete' and outcome = 'success'"
    return sorted(await execute(env.journal_address, f"select {columns} from baton_audit where {where}"))


@pytest.mark.full
async def test_a_conversation_whose_runs_temporal_has_forgotten_is_erased_with_an_entry_in_the_audit_log(
    env: Environment, server: EmbeddedServer
) -> None:
    journal = await Journal.open(env.journal_address, env.client.namespace)
    run = f"{uuid.uuid4()}"
    head = await journal.append(Head(), [Message(role="user", content=MARK)], f"{run}/1")
    plan = ConversationPlan(id="c", namespace="default")
    await Conversations(journal).add(plan, Head(), [RowRange(after=Head(), to=head)], f"{run}/2")
    await journal.database.put_blob(MARK.encode(), "a family that nobody knows any more")
    await journal.close()
    command_env = process_env(**{**env.worker_env, "TEMPORAL_ADDRESS": server.address})
    done = await asyncio.to_thread(baton, "delete", "--conversation", "c", env=command_env)
    assert done.returncode == 0
    assert "Temporal has forgotten 1 of the runs" in done.stderr and "long values" in done.stderr
    assert await erasures(env) == [("conversation", "default", "c")]


@pytest.mark.full
@pytest.mark.parametrize("named", ["conversation", "user"])
async def test_an_erasure_that_nobody_finishes_is_in_the_audit_log_once(env: Environment, named: str) -> None:
    script(env)
    user = f"ann-{uuid.uuid4().hex[:8]}"
    run = await started_by(env, user, conversationId="c")
    await execute(env.journal_address, "alter table baton_uses rename to baton_away")
    for _ in range(2):
        with pytest.raises(JournalUnavailable):
            if named == "user":
                await erase_user(env.client, user, dry=False, environ=env.worker_env)
            else:
                await erase_conversation(env.client, "c", dry=False, environ=env.worker_env)
    await execute(env.journal_address, "alter table baton_away rename to baton_uses")
    thing = ("user", "", f"default/default/{user}") if named == "user" else ("conversation", "default", "c")
    assert await erasures(env) == sorted([thing, run_key(env, run.id)])


async def started_by(env: Environment, name: str, account: str = "default/default", **spec: object) -> Handle:
    """A completed run of a caller of the gateway."""
    asked = {"input": MARK, "targets": [{"type": "agent", "name": "one"}], **spec}
    query = {"name": "q", "spec": asked, "resources": TEAM}
    run = await env.start("query", query, memo={CALLER: name, ACCOUNT: account})
    await env.status(run)
    await env.find_runs(f"WorkflowId = '{run.id}' AND ExecutionStatus != 'Running'", 1)
    return run


async def test_all_runs_of_a_user_are_erased(env: Environment) -> None:
    script(env)
    user = f"ann-{uuid.uuid4().hex[:8]}"
    own = await started_by(env, user)
    other = await started_by(env, LOCAL.name)
    erased = await erase_user(env.client, user, dry=False, environ=env.worker_env)
    assert (erased.runs, await exists(env, own.id), await exists(env, other.id)) == ([own.id], False, True)


async def test_a_user_is_a_name_with_its_account(env: Environment) -> None:
    env.answer = lambda request: Reply(text="Yes.")
    user = f"ann-{uuid.uuid4().hex[:8]}"
    first, second = [await started_by(env, user, f"{team}/default") for team in ("team-a", "team-b")]
    odd = await started_by(env, f"team-c/default/{user}")

    async def erased(name: str) -> Sequence[str]:
        return (await erase_user(env.client, name, dry=False, environ=env.worker_env)).runs

    with pytest.raises(UsageError, match=f"as team-a/default/{user} or team-b/default/{user}$"):
        await erased(user)
    with pytest.raises(UsageError, match=f"as default/default/team-c/default/{user}$"):
        await erased(f"team-c/default/{user}")
    assert await erased(f"team-a/default/{user}") == [first.id]
    assert await exists(env, second.id)
    await unlisted(env, first.id)  # until then, the name could mean both
    assert await erased(user) == [second.id]
    assert await erased(f"default/default/team-c/default/{user}") == [odd.id]


@pytest.mark.slow
async def test_the_command_erases_runs_and_says_what_it_has_erased(env: Environment, server: EmbeddedServer) -> None:
    script(env)
    run = await ended(env, "agent/one")
    command_env = process_env(**{**env.worker_env, "TEMPORAL_ADDRESS": server.address})
    shown = await asyncio.to_thread(baton, "delete", run.id, "--dry-run", env=command_env)
    assert shown.stdout == f"{run.id} would be erased\n" and await exists(env, run.id)
    done = await asyncio.to_thread(baton, "delete", run.id, env=command_env)
    assert (done.stdout, done.returncode) == (f"{run.id} erased\n", 0)
    assert "Erased 2 messages in the journal and 1 executions in Temporal." in done.stderr
    refused = await asyncio.to_thread(baton, "delete", run.id, "--conversation", "c", env=command_env)
    assert refused.returncode != 0 and "one of these at a time" in refused.stderr


def of_namespace(name: str) -> list[dict[str, Any]]:
    """The agents in a namespace of manifests."""
    return [{**each, "metadata": {**each["metadata"], "namespace": name}} for each in (agent("one"), agent("two"))]


async def ended_in(env: Environment, namespace: str, target: str, **spec: object) -> Handle:
    """A completed query in a namespace of manifests."""
    targets = [{"type": "agent", "name": target}]
    given = {"name": "q", "namespace": namespace, "spec": {"input": MARK, "targets": targets, **spec}}
    run = await env.start("query", {**given, "resources": of_namespace(namespace)})
    await env.status(run)
    await env.find_runs(f"WorkflowId = '{run.id}' AND ExecutionStatus != 'Running'", 1)
    return run


@pytest.mark.slow
async def test_runs_are_erased_when_the_retention_of_their_namespace_has_ended(env: Environment) -> None:
    script(env)
    ages = Ages(by_namespace={"support": timedelta(0)}, others=timedelta(days=30))
    alone = await ended_in(env, "support", "one")
    kept = await ended_in(env, "sales", "two", conversationId="c")
    talk = [await ended_in(env, "support", "two", conversationId="c") for _ in range(2)]
    broken = await env.start("query", {"name": "none", "namespace": "support"}, memo={"namespace": "support"})
    await env.status(broken)
    await env.find_runs(f"WorkflowId = '{broken.id}' AND ExecutionStatus != 'Running'", 1)
    expected = {alone.id, broken.id, *(each.id for each in talk)}
    would = await erase_expired(env.client, ages, dry=True, environ=env.worker_env)
    assert expected <= {*would.runs} and kept.id not in would.runs
    assert await exists(env, alone.id)
    done = await erase_expired(env.client, ages, dry=False, environ=env.worker_env)
    assert {*done.runs} == {*would.runs}
    assert not [each for each in expected if await exists(env, each)] and await exists(env, kept.id)
    namespaces = await execute(env.journal_address, "select distinct namespace from baton_uses")
    assert [row[0] for row in namespaces] == ["sales"]
    conversations = await execute(env.journal_address, "select namespace from baton_conversations")
    assert [row[0] for row in conversations] == ["sales"]


@pytest.mark.full
async def test_a_run_whose_conversation_goes_on_is_kept_after_its_retention(env: Environment) -> None:
    env.script(line("one", "Yes.", {"text": "I begin.", "delay": 60}))
    ages = Ages(by_namespace={"support": timedelta(0)}, others=timedelta(days=30))
    first = await ended_in(env, "support", "one", conversationId="c")
    targets = [{"type": "agent", "name": "one"}]
    spec = {"input": MARK, "targets": targets, "conversationId": "c"}
    given = {"name": "q", "namespace": "support", "spec": spec, "resources": of_namespace("support")}
    going_on = await env.start("query", given)
    await env.wait_for_calls(2)
    await env.find_runs(f"WorkflowId = '{going_on.id}'", 1)
    assert first.id not in (await erase_expired(env.client, ages, dry=False, environ=env.worker_env)).runs
    assert await exists(env, first.id)
    await going_on.signal("cancel")
    await env.status(going_on)


async def started_again(env: Environment, earlier: Handle, target: str, **spec: object) -> Handle:
    """A query with the id of an earlier one, in the namespace support."""
    query = {
        "name": "q",
        "namespace": "support",
        "spec": {"input": MARK, "targets": [{"type": "agent", "name": target}], **spec},
        "resources": of_namespace("support"),
    }
    run = await env.client.start_workflow("query", query, id=earlier.id, task_queue=env.task_queue)
    env.started.append(run)
    return run


async def closed(env: Environment, run: Handle) -> None:
    """Waits for the end of a run, and until the server lists it as closed."""
    await env.status(run)
    await env.find_runs(f"RunId = '{run.first_execution_run_id}' AND ExecutionStatus != 'Running'", 1)


async def is_known(env: Environment, run: Handle) -> bool:
    """Whether Temporal has this execution, not only another one with its workflow id."""
    try:
        await env.client.get_workflow_handle(run.id, run_id=run.first_execution_run_id).describe()
    except RPCError as error:
        assert error.status == RPCStatusCode.NOT_FOUND
        return False
    return True


SUPPORT_IS_OVER = Ages(by_namespace={"support": timedelta(0)}, others=timedelta(days=30))


@pytest.mark.full
async def test_a_run_is_kept_as_long_as_a_younger_run_with_its_id_and_conversation(env: Environment) -> None:
    env.answer = lambda request: Reply(text="Yes.")
    first = await ended_in(env, "support", "one", conversationId="c")
    second = await started_again(env, first, "one", conversationId="c")
    await closed(env, second)
    younger = second.first_execution_run_id
    await execute(env.journal_address, f"update baton_uses set namespace = 'sales' where run = '{younger}'")
    before = await rows(env)
    for dry in (True, False):
        erased = await erase_expired(env.client, SUPPORT_IS_OVER, dry=dry, environ=env.worker_env)
        assert first.id not in erased.runs
    assert await is_known(env, first) and await is_known(env, second)
    assert await rows(env) == before
    await execute(env.journal_address, f"update baton_uses set namespace = 'support' where run = '{younger}'")
    assert first.id in (await erase_expired(env.client, SUPPORT_IS_OVER, dry=False, environ=env.worker_env)).runs
    assert not await is_known(env, first) and not await is_known(env, second)


@pytest.mark.full
async def test_a_failed_run_is_kept_as_long_as_its_retry_is_open(env: Environment) -> None:
    env.script(line("one", {"text": "I begin.", "delay": 60, "before": [{"status": 401}]}))
    failed = await ended_in(env, "support", "one")
    retry = await retry_run(env.client, failed)
    env.started.append(retry)
    await env.wait_for_calls(2)
    before = await rows(env)
    assert failed.id not in (await erase_expired(env.client, SUPPORT_IS_OVER, dry=False, environ=env.worker_env)).runs
    assert await is_known(env, failed) and await rows(env) == before
    await retry.signal("cancel")
    await env.status(retry)


@pytest.mark.full
async def test_a_run_is_kept_as_long_as_an_open_run_with_its_id_may_need_it(env: Environment) -> None:
    """As a reset one, which has no rows of its own before its next call."""
    env.answer = lambda request: Reply(text="Yes.", delay=60 if len(env.model.requests) > 2 else 0)
    first = await env.start_team(TEAM)
    await env.turn_result(first)
    await env.find_runs(f"WorkflowId = '{first.id}' AND ExecutionStatus != 'Running'", 1)
    await execute(env.journal_address, "update baton_uses set namespace = 'support'")
    again = await reset(env, first, (await reset_points(first))[1])
    await env.wait_for_calls(3)
    before = await rows(env)
    assert first.id not in (await erase_expired(env.client, SUPPORT_IS_OVER, dry=False, environ=env.worker_env)).runs
    assert await is_known(env, first) and await rows(env) == before
    await again.signal("cancel")
    await env.turn_result(again)


@pytest.mark.full
async def test_a_conversation_is_erased_without_a_run_of_another_one_that_has_the_same_id(env: Environment) -> None:
    env.answer = lambda request: Reply(text="Yes.")
    first = await ended_in(env, "support", "one", conversationId="c")
    second = await started_again(env, first, "one", conversationId="d")
    await closed(env, second)
    erased = await erase_conversation(env.client, "c", dry=False, environ=env.worker_env)
    assert (erased.runs, erased.executions) == ([first.id], 1)
    assert not await is_known(env, first) and await is_known(env, second)
    left = await execute(env.journal_address, "select id from baton_conversations")
    assert [row[0] for row in left] == ["d"]


@pytest.mark.full
async def test_the_objects_of_an_id_in_the_bucket_are_erased_with_its_last_run(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.answer = lambda request: Reply(text="Yes.")
    first = await ended_in(env, "support", "one", conversationId="c")
    second = await started_again(env, first, "one", conversationId="d")
    await closed(env, second)
    bucket = S3Server()
    stored = f"long/v0/ns/default/wt/query/wi/{first.id}/ri/null/d/sha256/abc"
    bucket.objects[stored] = b"x"
    environ = {**env.worker_env, EXTERNAL_STORAGE_URL: "s3://long"}
    with serve_in_thread(bucket.app) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "baton")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
        await erase_conversation(env.client, "c", dry=False, environ=environ)
        assert [*bucket.objects] == [stored]
        await erase_conversation(env.client, "d", dry=False, environ=environ)
        assert not bucket.objects


@pytest.mark.slow
async def test_a_conversation_is_erased_in_one_namespace_alone(env: Environment, server: EmbeddedServer) -> None:
    env.answer = lambda request: Reply(text="Yes.")
    support, sales = [await ended_in(env, each, "one", conversationId="c") for each in ("support", "sales")]
    command_env = process_env(**{**env.worker_env, "TEMPORAL_ADDRESS": server.address})

    async def delete(*options: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(baton, "delete", *options, env=command_env)
        return done.returncode, done.stdout, done.stderr

    code, _, said = await delete("--conversation", "c")
    assert code != 0 and "several namespaces have a conversation 'c': name one of them with -n: sales, support" in said
    code, _, said = await delete("--conversation", "c", "-n", "none")
    assert code != 0 and "there is no conversation 'c' in the namespace none" in said
    for options in ((sales.id,), ("--user", "ann")):
        code, _, said = await delete(*options, "-n", "support")
        assert code != 0 and "-n is for manifests and --conversation" in said
    assert await exists(env, support.id) and await exists(env, sales.id)
    assert (await delete("--conversation", "c", "-n", "support"))[:2] == (0, f"{support.id} erased\n")
    assert not await exists(env, support.id) and await exists(env, sales.id)
    left = await execute(env.journal_address, "select namespace from baton_conversations")
    assert [row[0] for row in left] == ["sales"]
    assert (await delete("--conversation", "c"))[:2] == (0, f"{sales.id} erased\n")


@pytest.mark.full
async def test_an_erasure_that_leaves_a_long_value_says_so_and_is_finished_by_the_same_command(
    env: Environment,
) -> None:
    """A release that took the time of a value from the machine that wrote it left it if that clock was ahead."""
    script(env)
    run = await ended(env, "agent/one", size=1_100_000)
    await execute(env.journal_address, "update baton_holds set at = at + 3600")
    with pytest.raises(UsageError, match=f"not all long values: some of {run.id} .*: erase again"):
        await erase(env, run.id)
    assert await exists(env, run.id)
    await execute(env.journal_address, "update baton_holds set at = at - 3600")
    await erase(env, run.id)
    assert await rows(env) == []


@pytest.mark.full
async def test_an_erasure_that_is_interrupted_in_temporal_is_in_the_audit_log(env: Environment) -> None:
    script(env)
    run = await ended(env, "team/team")
    erasure = asyncio.create_task(erase(env, run.id))
    while await exists(env, run.id):
        await asyncio.sleep(0)
    erasure.cancel()
    [outcome] = await asyncio.gather(erasure, return_exceptions=True)
    if not isinstance(outcome, Erased):
        with contextlib.suppress(UsageError):  # all was erased before the cancellation took effect
            await erase(env, run.id)
    with pytest.raises(UsageError, match="there is no run and no kind"):
        await erase(env, run.id)
    logged = await execute(env.journal_address, "select action, kind, name from baton_audit")
    # A child run that the server had not deleted yet when the erasure went on has an entry of its own.
    assert [row for row in logged if not str(row[2]).startswith(f"{run.id}/")] == [("delete", "run", run.id)]
    if env.journal.exists():
        assert MARK.encode() not in env.journal_bytes


@pytest.mark.full
@pytest.mark.parametrize("named", ["runs", "conversation", "user"])
async def test_an_erasure_that_fails_at_any_step_is_finished_by_the_same_command(env: Environment, named: str) -> None:
    env.answer = lambda request: Reply(text=f"{MARK} is large.")
    user = f"ann-{uuid.uuid4().hex[:8]}"
    runs = [await started_by(env, user, conversationId="c") for _ in range(3)]
    other = await ended(env, "agent/two", conversationId="d")

    async def erase_again() -> Erased:
        if named == "conversation":
            return await erase_conversation(env.client, "c", dry=False, environ=env.worker_env)
        if named == "user":
            return await erase_user(env.client, user, dry=False, environ=env.worker_env)
        return await erase(env, *(run.id for run in runs))

    for table in ("audit", "uses", "holds"):  # in the order in which they are needed
        await execute(env.journal_address, f"alter table baton_{table} rename to baton_away")
        with pytest.raises(JournalUnavailable):
            await erase_again()
        await execute(env.journal_address, f"alter table baton_away rename to baton_{table}")
    erasure = asyncio.create_task(erase_again())
    while not erasure.done() and all([await exists(env, run.id) for run in runs]):
        await asyncio.sleep(0)
    erasure.cancel()
    [outcome] = await asyncio.gather(erasure, return_exceptions=True)
    if not isinstance(outcome, Erased):
        with contextlib.suppress(UsageError):  # all was erased before the cancellation took effect
            await erase_again()
    async with asyncio.timeout(120):  # what the interrupted erasure has deleted is gone a moment later
        while [run for run in runs if await exists(env, run.id)]:
            await asyncio.sleep(0.05)
    assert await exists(env, other.id)
    assert [row[0] for row in await execute(env.journal_address, "select id from baton_conversations")] == ["d"]
    left = await everything(env, but=schema.audit.name)
    assert not [run for run in runs if run.id in left or str(run.first_execution_run_id) in left]
    with pytest.raises(UsageError, match=r"there is no|has no run"):
        while True:  # Temporal lists a deleted run for another moment
            await erase_again()


@pytest.mark.full
async def test_a_conversation_that_a_query_continues_while_it_is_forgotten_stays(
    client: Client, tmp_path: Path, postgres: PostgresServer
) -> None:
    url = await postgres.database()
    async with Environment.running(client, tmp_path, journal_url=url) as env:
        env.script(line("one", "first", {"text": "second", "held": True}, "third"))
        asked = [await ended(env, "agent/one", conversationId="c")]
        async with held_commits(url, "insert on baton_messages"):
            asked.append(await env.start_query(TEAM, "agent/one", conversationId="c"))
            while await waiting_transactions(url) != 1:  # it has written its question
                await asyncio.sleep(0.01)
            erasing = asyncio.create_task(erase(env, asked[0].id))
            while await waiting_transactions(url) != 2:
                await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="a query has continued the conversation meanwhile"):
            await erasing
        logged = await execute(url, "select outcome from baton_audit where action = 'delete' order by number")
        assert logged[-1] == ("failure",), "what was not erased is not in the log as erased"
        env.model.release()
        status = await env.status(asked[1])
        assert status.phase == "Completed"
        assert len(env.model.requests[-1].body["messages"]) == 4
        asked.append(await ended(env, "agent/one", conversationId="c"))
        assert len(env.model.requests[-1].body["messages"]) == 6
        assert await execute(url, "select count(*) from baton_erasures") == [(0,)]
        await erase(env, *(each.id for each in asked))
        assert MARK not in await everything(env)


async def test_a_query_of_a_conversation_that_is_being_forgotten_begins_it_anew(
    client: Client, tmp_path: Path, postgres: PostgresServer
) -> None:
    url = await postgres.database()
    async with Environment.running(client, tmp_path, journal_url=url) as env:
        env.script(line("one", "first", "second", "third"))
        old = await ended(env, "agent/one", conversationId="c")
        async with held_commits(url, "delete on baton_conversations"):
            erasing = asyncio.create_task(erase(env, old.id))
            while await waiting_transactions(url) != 1:
                await asyncio.sleep(0.01)
            asked = await env.start_query(TEAM, "agent/one", conversationId="c")
            while await waiting_transactions(url) != 2:  # it has read the head, and would write its question after it
                await asyncio.sleep(0.01)
        assert (await erasing).runs == [old.id]
        assert (await env.status(asked)).phase == "Completed"
        assert len(env.model.requests[-1].body["messages"]) == 2
        await ended(env, "agent/one", conversationId="c")
        assert len(env.model.requests[-1].body["messages"]) == 4
