"""The audit log on each database: one unbroken chain of all writers, each act once, and every tampering is noticed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError

from baton.contracts.identity import Actor
from baton.contracts.protocol import SIGNALS
from baton.contracts.scope import CALLER
from baton.journal.audit import AuditEntry, AuditLog
from baton.journal.database import Database
from baton.starter.operations.audit import AuditFilter, audit_rows, row_json, row_ocsf, verify_audit
from baton.starter.operations.manifests import open_store
from baton.starter.runs.start import retry_run
from baton.testing import Reply
from tests.activities.test_manifest_store import apply, loaded
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest
from tests.harness.gateway import GatewayServer, key_file
from tests.harness.postgres import execute
from tests.harness.resets import reset, reset_points
from tests.replay.scenarios import audited_to_its_end, run_scenario
from tests.starter.test_protocol import DEFINITIONS

ANN = Actor("ann", "gateway", verified=True)
KEY = "k" * 32


def entry(number: int, actor: Actor = ANN) -> AuditEntry:
    return AuditEntry.by(actor, ["test", str(number)], "pause", ("run", "default", f"run-{number}"), at=number * 1_000)


@pytest_asyncio.fixture(loop_scope="session")
async def log(journal_url: str) -> AsyncIterator[AuditLog]:
    database = await Database.connect(journal_url, "default", upgrade=True)
    yield AuditLog(database)
    await database.close()


ALL = AuditFilter()


async def rows(url: str, chosen: AuditFilter = ALL) -> list[Json]:
    return [row_json(row) async for row in audit_rows(chosen, {"BATON_JOURNAL_URL": url})]


async def problems(url: str, head: str | None = None) -> list[str]:
    return (await verify_audit(head, {"BATON_JOURNAL_URL": url})).problems


async def test_writers_at_once_make_one_chain_that_has_each_act_once(log: AuditLog, journal_url: str) -> None:
    async with contextlib.AsyncExitStack() as opened:
        logs = [log]
        for _ in range(3):
            database = await Database.connect(journal_url, "default", upgrade=True)
            opened.push_async_callback(database.close)
            logs.append(AuditLog(database))
        batches = [[entry(number), entry(number + 1)] for number in range(0, 20, 2)]
        await asyncio.gather(*(each.append(batch) for each in logs for batch in batches))
    found = await rows(journal_url)
    assert sorted(row["name"] for row in found) == sorted(f"run-{number}" for number in range(20))
    assert [row["number"] for row in found] == [*range(1, 21)]
    verified = await verify_audit(None, {"BATON_JOURNAL_URL": journal_url})
    assert verified == (20, found[-1]["hash"], [])


@pytest.mark.parametrize(
    ("tampering", "said"),
    [
        ("update baton_audit set who = 'bob' where number = 2", "the row 2 was changed"),
        ("delete from baton_audit where number = 2", "the rows 2 to 2 are missing"),
        ("delete from baton_audit where number = 3", "the log has no row with the hash"),
    ],
)
async def test_a_row_that_is_changed_or_removed_breaks_the_chain(
    log: AuditLog, journal_url: str, tampering: str, said: str
) -> None:
    await log.append([entry(1), entry(2), entry(3)])
    head = (await rows(journal_url))[-1]["hash"]
    assert await problems(journal_url, head) == []
    await execute(journal_url, tampering)
    found = await problems(journal_url, head)
    assert any(said in problem for problem in found), found


async def test_rows_are_found_by_who_what_and_when(log: AuditLog, journal_url: str) -> None:
    bob = Actor("bob\0", "temporal", client="x" * 300)
    await log.append([entry(1), entry(2, bob), replace(entry(3), kind="Team", name="duo", action="update")])
    for chosen, numbers in (
        (AuditFilter(who="bob"), [2]),
        (AuditFilter(name="team/duo"), [3]),
        (AuditFilter(kind="team"), [3]),
        (AuditFilter(kind="run", since=1_500, until=3_000), [2]),
        (AuditFilter(action="pause"), [1, 2]),
    ):
        assert [row["number"] for row in await rows(journal_url, chosen)] == numbers


async def test_the_store_writes_who_has_changed_what_with_the_change(journal_url: str) -> None:
    environ = {"BATON_JOURNAL_URL": journal_url}
    database = await Database.connect(journal_url, "default", upgrade=True)
    await database.close()
    async with open_store(environ, ANN) as store:
        await apply(store, agent("one"), agent("two"))
        await apply(store, agent("one"), agent("two", description="new"))
        await store.delete([("Agent", "default", "one")])
        assert [each.author for each in await store.versions(("Agent", "default", "two"))] == ["ann", "ann"]
        await store.apply(loaded(agent("three")), dry=True)
    found = await rows(journal_url, AuditFilter(kind="Agent"))
    assert [(row["action"], row["name"], row["detail"]) for row in found] == [
        ("create", "one", "version 1"),
        ("create", "two", "version 1"),
        ("update", "two", "version 2"),
        ("delete", "one", "version 2"),
    ]
    assert {(row["who"], row["verified"], row["via"]) for row in found} == {("ann", True, "gateway")}
    assert await problems(journal_url) == []


@pytest.mark.full
async def test_a_run_writes_who_has_started_steered_and_decided_and_how_it_ended(
    env: Environment, tmp_path: Path
) -> None:
    path, keys = key_file(tmp_path, {"ann": {"allRuns": True}})
    tool = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {}})
    audited = replace(env, variables={"BATON_IDENTITY_KEY": KEY, "BATON_AUDIT": "1"})
    async with audited.with_manifests([agent("buyer", "order"), agent("shop"), tool]) as served:
        served.script(line("buyer", call("order", input="12 desks"), "Ordered."), line("shop", "Confirmed."))
        async with GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)) as gateway:
            body = {"target": "agent/buyer", "input": "Buy a secret thing!"}
            run = str((await gateway.post("/runs", body, 201, key=keys["ann"]))["id"])
            while not (waiting := (await gateway.get("/inbox", key=keys["ann"]))["waiting"]):
                await asyncio.sleep(0.02)
            handle: Handle = served.client.get_workflow_handle(run)
            await handle.signal("pause", {"name": "eve"})
            await gateway.post(f"/runs/{run}/resume", {}, key=keys["ann"])
            call_id = waiting[0]["decision"]["id"]
            await gateway.post(f"/runs/{run}/approve", {"call": call_id, "reason": "Fine."}, key=keys["ann"])
            await gateway.finished(run, key=keys["ann"])
    found = await rows(served.journal_address, AuditFilter(name=run))
    assert [(row["action"], row["who"], row["verified"], row["via"]) for row in found] == [
        ("start", "ann", True, "gateway"),
        ("pause", "eve", False, "temporal"),
        ("resume", "ann", True, "gateway"),
        ("approve", "ann", True, "gateway"),
        ("end", "baton", False, "temporal"),
    ]
    assert (found[3]["detail"], found[4]["detail"]) == (call_id, "Completed")
    assert await problems(served.journal_address) == []
    text = json.dumps(found)
    assert "secret" not in text
    assert "Fine." not in text
    async for row in audit_rows(AuditFilter(name=run), {"BATON_JOURNAL_URL": served.journal_address}):
        event = row_ocsf(row)
        assert (event["class_uid"], event["type_uid"]) == (6003, 600_300 + int(str(event["activity_id"])))


@pytest.mark.full
async def test_what_a_client_sends_while_an_audited_run_closes_is_in_the_log(env: Environment, client: Client) -> None:
    async with Environment.running(client, env.folder, variables={"BATON_AUDIT": "1"}) as audited:
        run = await run_scenario(audited, audited_to_its_end)
        found = await rows(audited.journal_address, AuditFilter(name=run.id))
    assert [row["action"] for row in found] == ["start", "end", "session"]
    assert await problems(audited.journal_address) == []


@pytest.mark.parametrize("at", ["2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", None])
async def test_who_sends_an_identity_that_means_nothing_is_named_as_any_client(
    env: Environment, at: str | None
) -> None:
    audited = replace(env, variables={"BATON_IDENTITY_KEY": KEY, "BATON_AUDIT": "1"})
    async with audited.with_manifests([agent("one")]) as served:
        served.answer = lambda _: Reply(text="Done.", held=True)
        run = await served.start("agent", {"agent": "one", "input": "Why?"})
        await served.wait_for_calls(1)
        await run.signal("pause", {"name": "eve", "identity": {"name": "ann", "at": at, "signature": "0"}})
        await run.signal("resume", {"name": "bob"})
        served.model.release()
        await run.result()
    found = await rows(served.journal_address, AuditFilter(name=run.id))
    assert [(row["action"], row["who"], row["verified"]) for row in found[1:]] == [
        ("pause", "eve", False),
        ("resume", "bob", False),
        ("end", "baton", False),
    ]


async def test_the_values_of_a_session_are_not_in_the_log_whatever_their_names(env: Environment) -> None:
    audited = replace(env, variables={"BATON_AUDIT": "1"})
    async with audited.with_manifests([agent("one")]) as served:
        served.answer = lambda _: Reply(text="Done.", held=True)
        run = await served.start("agent", {"agent": "one", "input": "Why?"})
        await served.wait_for_calls(1)
        await run.execute_update("session", {"name": "Mrs Smith", "by": "Mrs Smith", "to": "Mrs Smith"})
        served.model.release()
        await run.result()
    found = await rows(served.journal_address, AuditFilter(name=run.id))
    assert [row["action"] for row in found] == ["start", "session", "end"]
    assert found[1]["who"] == found[0]["who"]
    assert "Smith" not in json.dumps(found)


async def test_after_a_reset_what_was_done_before_it_is_in_the_log_once(env: Environment) -> None:
    audited = replace(env, variables={"BATON_AUDIT": "1"})
    async with audited.with_manifests([agent("one")]) as served:
        served.answer = lambda _: Reply(text="Done.", held=True)
        run = await served.start("agent", {"agent": "one", "input": "Why?"})
        await served.wait_for_calls(1)
        await run.signal("pause", {"name": "eve"})
        await run.signal("resume", {"name": "bob"})
        served.model.release()
        await run.result()
        run = served.client.get_workflow_handle(run.id, run_id=(await run.describe()).run_id)
        points = await reset_points(run)
        served.answer = lambda _: Reply(text="Done.")
        await (await reset(served, run, points[-2])).result()
    found = await rows(served.journal_address, AuditFilter(name=run.id))
    assert [row["action"] for row in found] == ["start", "pause", "resume", "end", "end"]
    assert await problems(served.journal_address) == []


async def test_a_retry_is_done_by_whoever_retries_and_not_by_who_has_started_the_run(env: Environment) -> None:
    audited = replace(env, variables={"BATON_AUDIT": "1"})
    async with audited.with_manifests([agent("one")]) as served:
        refusals = [Reply(status=401, code="invalid_api_key")]
        served.answer = lambda _: refusals.pop() if refusals else Reply(text="Done.")
        failed: Handle = await served.client.start_workflow(
            "agent",
            {"agent": "one", "input": "Why?"},
            id="retried",
            task_queue=served.task_queue,
            memo={CALLER: "ann"},
        )
        with contextlib.suppress(WorkflowFailureError):
            await failed.result()
        await (await retry_run(served.client, served.client.get_workflow_handle(failed.id))).result()
    found = await rows(served.journal_address, AuditFilter(name=failed.id))
    assert [row["action"] for row in found] == ["start", "end", "retry", "end"]
    assert (found[0]["who"], found[2]["who"]) == ("ann", served.client.identity)


async def test_a_signal_of_baton_itself_has_nothing_written(env: Environment) -> None:
    tool = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {}})
    audited = replace(env, variables={"BATON_AUDIT": "1"})
    async with audited.with_manifests([agent("buyer", "order"), agent("shop"), tool]) as served:
        served.script(line("buyer", call("order", input="12 desks"), "Ordered."))
        run = await served.start("agent", {"agent": "buyer", "input": "Buy!"})
        await served.wait_until_idle(run)
        internal = [each for each in DEFINITIONS["agent"].signals.values() if each.name and each.name not in SIGNALS]
        for signal in internal:
            await run.signal(str(signal.name))
        await served.wait_until_idle(run)
        events = (await run.fetch_history()).events
        scheduled = [event.activity_task_scheduled_event_attributes for event in events]
        assert [each.activity_type.name for each in scheduled].count("audit") == 1
        await run.terminate()


async def test_a_run_writes_nothing_unless_the_log_is_kept(env: Environment) -> None:
    env.script(line("one", "a"))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    await handle.result()
    assert await rows(env.journal_address) == []


def test_a_manifest_in_another_namespace_is_named_with_it() -> None:
    keys = {
        ("Agent", "default", "critic"): "agent/critic",
        ("Agent", "hr", "critic"): "agent/hr/critic",
        ("run", "other", "order-7"): "run/order-7",
        ("key", "", "2026-01"): "key/2026-01",
    }
    for key, subject in keys.items():
        made = AuditEntry.by(ANN, ["test"], "create", key)
        assert made.subject == subject
        assert AuditFilter(name=subject).matches(made)
