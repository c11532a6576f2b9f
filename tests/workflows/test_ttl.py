"""``ttl``: everything that a query has left is deleted after it, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from tests.harness.environment import Environment, Handle, Json, agent, call, line, team, texts
from tests.harness.postgres import execute
from tests.harness.resets import reset, reset_points

TEAM = [agent("one"), agent("two"), team("inner", "two", strategy="sequential")]
TEAM += [team("team", "one", "inner", strategy="sequential")]
TABLES = ("messages", "uses", "catalogs", "accounts", "charges", "blobs", "holds")


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path, journal_url: str) -> AsyncIterator[Environment]:
    """An environment on each kind of journal."""
    async with Environment.running(client, tmp_path, journal_url=journal_url) as running:
        yield running


def script(env: Environment) -> None:
    env.script(line("one", *["I begin."] * 9), line("two", *["I end."] * 9))


async def expiry(env: Environment, handle: Handle) -> Handle | None:
    """The run that waits for the ttl of a query, which has ended."""
    events = (await env.client.get_workflow_handle(handle.id, run_id=handle.result_run_id).fetch_history()).events
    for event in events:
        child = event.child_workflow_execution_started_event_attributes
        if child.workflow_type.name == "expire":
            return env.client.get_workflow_handle(child.workflow_execution.workflow_id)
    return None


async def expired(env: Environment, handle: Handle) -> Json:
    """The result of the run that has deleted a query: found by Temporal's list, as the query's history is deleted."""
    while True:
        async for run in env.client.list_workflows(f"WorkflowType = 'expire' AND ParentWorkflowId = '{handle.id}'"):
            result: Json = await env.client.get_workflow_handle(run.id).result()
            return result
        await asyncio.sleep(0.05)


async def is_there(env: Environment, workflow_id: str, run_id: str | None = None) -> bool:
    try:
        await env.client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        assert error.status == RPCStatusCode.NOT_FOUND
        return False
    return True


async def wait_until_gone(env: Environment, *workflow_ids: str) -> None:
    """Temporal deletes a moment after it was asked to."""
    while any([await is_there(env, each) for each in workflow_ids]):
        await asyncio.sleep(0.05)


async def rows(env: Environment, run: str) -> int:
    """How many rows of the journal a run has written."""
    [(count,)] = await execute(env.journal_url, f"select count(*) from baton_messages where id like '{run}%'")
    return int(str(count))


@pytest.mark.full
async def test_status_history_and_journal_of_a_query_and_of_all_below_it_are_deleted(env: Environment) -> None:
    script(env)
    handle = await env.start_query(TEAM, "team/team", ttl="1ms", budget={"modelCalls": 9}, input="x" * 1_100_000)
    assert texts((await env.status(handle)).responses[0].messages) == ["I begin.", "I end."]
    deleted = await expired(env, handle)
    assert deleted == {"runs": 3, "journalKept": False}
    team_run = f"{handle.id}/target-1/team"
    await wait_until_gone(env, handle.id, team_run, f"{team_run}/turn-2/inner")
    left = {each: await execute(env.journal_url, f"select count(*) from baton_{each}") for each in TABLES[:5]}
    assert left == {each: [(0,)] for each in TABLES[:5]}


async def test_until_then_the_status_can_be_read_and_without_a_ttl_nothing_is_deleted(env: Environment) -> None:
    script(env)
    kept = await env.start_query(TEAM, "agent/one")
    waiting = await env.start_query(TEAM, "agent/one", ttl="1h")
    for each in (kept, waiting):
        await env.status(each)
        assert (await each.query("status"))["phase"] == "Completed"
        assert await rows(env, str(each.first_execution_run_id)) == 2
    assert await expiry(env, kept) is None
    waits = await expiry(env, waiting)
    assert waits is not None
    await waits.cancel()  # whoever cancels it keeps the query
    with pytest.raises(WorkflowFailureError):
        await waits.result()
    assert await is_there(env, waiting.id)


@pytest.mark.full
@pytest.mark.parametrize("ending", ["failed", "canceled", "refused"])
async def test_also_a_query_that_does_not_complete_is_deleted(env: Environment, ending: str) -> None:
    reply = {"status": 400, "text": "no"} if ending == "failed" else {"text": "I begin.", "held": True}
    env.script(line("one", reply))
    targets = ("agent/one",) if ending != "refused" else ("agent/unknown",)
    handle = await env.start_query(TEAM, *targets, ttl="1ms")
    if ending == "canceled":
        await env.wait_for_calls(1)
        await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    env.model.release()
    if ending == "refused":  # nothing is known of its ttl, and the journal has nothing of it
        assert await rows(env, str(handle.first_execution_run_id)) == 0
        return
    await expired(env, handle)
    await wait_until_gone(env, handle.id)
    assert await rows(env, str(handle.first_execution_run_id)) == 0


async def test_the_messages_of_a_conversation_stay_and_later_queries_read_them(env: Environment) -> None:
    script(env)
    first = await env.start_query(TEAM, "agent/one", conversationId="c", ttl="1ms")
    await env.status(first)
    assert (await expired(env, first))["journalKept"] is True
    await wait_until_gone(env, first.id)
    await env.status(await env.start_query(TEAM, "agent/two", conversationId="c"))
    assert [each["content"] for each in env.model.requests[-1].body["messages"]][1:] == ["Why?", "I begin.", "Why?"]


@pytest.mark.full
async def test_a_younger_run_of_the_same_id_and_one_that_was_reset_lose_nothing(env: Environment) -> None:
    script(env)
    first = await env.start_query(TEAM, "team/team", ttl="3s")
    await env.status(first)
    spec = {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}
    given = {"name": "q", "spec": spec, "resources": TEAM}
    env.script(line("one", {"text": "Again.", "held": True}), line("two", "The end."))
    younger = await env.client.start_workflow("query", given, id=first.id, task_queue=env.task_queue)
    await expired(env, first)
    env.model.release()
    assert texts((await env.status(younger)).responses[0].messages) == ["Again.", "The end."]
    while await is_there(env, first.id, first.first_execution_run_id):
        await asyncio.sleep(0.05)
    assert await rows(env, str(first.first_execution_run_id)) == 0
    assert await is_there(env, younger.id, younger.first_execution_run_id)


@pytest.mark.full
async def test_a_reset_run_keeps_the_rows_that_it_goes_on_from(env: Environment) -> None:
    script(env)
    first = await env.start_query(TEAM, "agent/one", "agent/two", ttl="4s")
    await env.status(first)
    env.script(line("one", {"text": "Again.", "held": True}), line("two", {"text": "Once more.", "held": True}))
    second = await reset(env, first, (await reset_points(first))[0])
    await expired(env, first)
    env.model.release()
    assert [each.message for each in (await env.status(second)).responses] == ["Again.", "Once more."]


@pytest.mark.full
async def test_a_reset_run_that_has_written_no_row_yet_keeps_the_rows_that_it_goes_on_from(env: Environment) -> None:
    env.script(line("one", call("noop"), "I begin."))
    first = await env.start_query([agent("one", "noop")], "agent/one", ttl="3s")
    await env.status(first)
    env.script(line("one", {"text": "Again.", "held": True}))
    second = await reset(env, first, (await reset_points(first))[2])  # before its last call of a model
    before = await rows(env, str(first.first_execution_run_id))
    assert (await expired(env, first))["journalKept"] is True
    env.model.release()
    assert await rows(env, str(first.first_execution_run_id)) == before
    assert [each.message for each in (await env.status(second)).responses] == ["Again."]


async def test_nobody_else_can_have_a_run_deleted(env: Environment) -> None:
    script(env)
    victim = await env.start_query(TEAM, "agent/one")
    await env.status(victim)
    given = {"seconds": 0, "workflowId": victim.id, "runId": victim.first_execution_run_id}
    with pytest.raises(WorkflowFailureError) as failed:
        await (await env.start("expire", given)).result()
    assert "only a query starts this workflow" in str(failed.value.cause)
    assert await is_there(env, victim.id)
