"""Quotas of tenants: what their runs may use together, and runs that wait for a quota or for each other."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from baton.contracts.control_messages import ASK_AGAIN
from baton.contracts.status import Status
from baton.journal import schema
from baton.journal.journal import Journal
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.operations.manifests import Store
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Environment, Handle, Json, agent, call, manifest


def quota(name: str = "limits", **spec: Any) -> Json:
    return manifest("Quota", name, spec)


@contextlib.asynccontextmanager
async def with_quota(env: Environment, *more: Json, **spec: Any) -> AsyncIterator[Environment]:
    """A worker whose own manifests have a Quota for the namespace of the runs, and an agent."""
    async with env.with_manifests([agent("a"), quota(**spec), *more]) as other:
        yield other


async def ask(env: Environment, question: str = "Why?", namespace: str = "default", **spec: Any) -> Handle:
    asked = {"input": question, "target": {"type": "agent", "name": "a"}, **spec}
    return await env.start("query", {"namespace": namespace, "spec": asked})


async def until(handle: Handle, condition: Callable[[Status], bool]) -> Status:
    while True:
        status = Status.model_validate(await handle.query("status"))
        if condition(status):
            return status
        await asyncio.sleep(0.02)


def waits(status: Status) -> bool:
    return status.phase == "Waiting"


def has_asked(attempts: int, status: Status) -> bool:
    return any(outage.attempts > attempts for outage in status.outages or ())


async def test_a_run_fails_if_the_quota_of_its_tenant_says_so(env: Environment) -> None:
    async with with_quota(env, perDay={"modelCalls": 2}, onExceeded="fail") as tenant:
        for _ in range(2):
            assert (await tenant.status(await ask(tenant))).phase == "Completed"
        status = await tenant.status(await ask(tenant))
    assert status.phase == "Failed"
    assert status.failure
    assert (status.failure.family, status.failure.type) == ("BudgetError", "QuotaReached")
    assert status.failure.message.startswith(
        "the quota default/limits of the tenant default is used up: 2 of 2 modelCalls a day, and the next call needs "
        "up to 1; it resets at "
    )
    assert status.failure.message.endswith(" 00:00 UTC")
    assert len(env.model.requests) == 2


async def test_a_run_waits_for_the_next_day_and_says_why_and_goes_on_when_its_quota_is_raised(
    env: Environment,
) -> None:
    async with env.with_manifests([agent("a")]) as tenant, store_of(tenant) as store:
        await apply(store, quota(perDay={"modelCalls": 1}))
        assert (await tenant.status(await ask(tenant))).phase == "Completed"
        second = await ask(tenant)
        status = await until(second, waits)
        assert status.outages
        assert status.outages[0].type == "QuotaReached"
        assert "is used up: 1 of 1 modelCalls a day" in status.outages[0].error
        assert len(tenant.model.requests) == 1
        await apply(store, quota(perDay={"modelCalls": 2}))
        await second.signal(ASK_AGAIN)
        assert (await tenant.status(second)).phase == "Completed"


@pytest.mark.slow
async def test_many_calls_that_wait_go_on_within_a_minute_after_their_quota_is_raised(env: Environment) -> None:
    """They ask by themselves only after a quarter of an hour or more."""
    calls = [ScriptedToolCall(name="noop", arguments={"message": str(number)}) for number in range(20)]
    replies = iter([Reply(calls=calls), Reply(text="Done.")])
    async with env.with_manifests([agent("a", "noop", parallelToolCalls=True)]) as tenant, store_of(tenant) as store:
        await apply(store, quota(perMonth={"toolCalls": 1}))
        tenant.answer = lambda _: next(replies)
        asked = await ask(tenant)
        await until(asked, lambda status: len(status.outages or ()) == len(calls) - 1)
        await apply(store, quota(perMonth={"toolCalls": 1_000}))
        async with asyncio.timeout(120):  # a worker that finds the journal busy looks again half a minute later
            assert (await tenant.status(asked)).phase == "Completed"


@contextlib.asynccontextmanager
async def store_of(env: Environment) -> AsyncIterator[Store]:
    journal = await Journal.open(f"sqlite:///{env.folder / 'journal.db'}", "default")
    try:
        yield Store(journal)
    finally:
        await journal.close()


async def apply(store: Store, *manifests: Json) -> None:
    await store.apply(load_documents([Document("quota.yaml", each, {}) for each in manifests]))


@pytest.mark.full
async def test_the_more_calls_of_a_run_wait_for_a_month_the_longer_each_of_them_waits(env: Environment) -> None:
    calls = 40
    reply = Reply(calls=[ScriptedToolCall(name="noop", arguments={"message": str(number)}) for number in range(calls)])
    manifests = [agent("a", "noop", parallelToolCalls=True), quota(perMonth={"toolCalls": 1})]
    async with env.with_manifests(manifests) as tenant:
        tenant.answer = lambda _: reply
        asked = await ask(tenant)
        status = await until(asked, lambda status: len(status.outages or ()) == calls - 1)
        await asked.signal(ASK_AGAIN)
        status = await until(asked, lambda status: all(each.attempts > 1 for each in status.outages or ()))
        assert len(status.outages or ()) == calls - 1
        now = datetime.now(UTC)
        soonest = min(each.until for each in status.outages or ())
        month_ends = (now.replace(day=1, hour=0, minute=0, second=0) + timedelta(days=32)).replace(day=1)
        waits = (month_ends - now) / (soonest - now)
        assert waits * (calls - 1) * 11 < 50_000
        await asked.signal("cancel")
        await tenant.status(asked)


async def test_a_quota_of_tool_calls_fails_the_run_and_is_no_result_of_the_tool(env: Environment) -> None:
    async with env.with_manifests([agent("a", "noop"), quota(perDay={"toolCalls": 1}, onExceeded="fail")]) as tenant:
        tenant.answer = lambda _: Reply.model_validate(call("noop", message="Hm."))
        status = await tenant.status(await ask(tenant))
    assert status.failure
    assert status.failure.type == "QuotaReached"
    assert "1 of 1 toolCalls a day" in status.failure.message


class Gate:
    """A model that answers the first question once the gate is open, and all others immediately."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self._is_open = threading.Event()

    def answer(self, request: Request) -> Reply:
        self.questions.append(request["messages"][-1]["content"])
        if len(self.questions) == 1:
            self._is_open.wait(60)
        return Reply(text="Yes.")

    async def reached(self) -> None:
        while not self.questions:
            await asyncio.sleep(0.01)

    def open(self) -> None:
        self._is_open.set()


@pytest.mark.full
async def test_runs_over_the_limit_wait_in_their_order_and_begin_when_others_end(env: Environment) -> None:
    gate = Gate()
    async with with_quota(env, maxConcurrentRuns=1) as tenant:
        tenant.answer = gate.answer
        first = await ask(tenant, "1")
        await gate.reached()
        others: list[Handle] = []
        for number in range(2, 5):
            others.append(await ask(tenant, f"{number}"))
            status = await until(others[-1], waits)
            assert status.outages
            text = "the quota default/limits of the tenant default allows 1 open run at once: 1 is open, and "
            assert status.outages[0].error.startswith(text)
        gate.open()
        statuses = [await tenant.status(handle) for handle in (first, *others)]
    assert [status.phase for status in statuses] == 4 * ["Completed"]
    assert gate.questions == ["1", "2", "3", "4"]


@pytest.mark.full
async def test_a_run_that_is_terminated_or_canceled_keeps_no_place(env: Environment) -> None:
    gate = Gate()
    async with with_quota(env, maxConcurrentRuns=1) as tenant:
        tenant.answer = gate.answer
        first = await ask(tenant)
        await gate.reached()
        canceled = await ask(tenant)
        await until(canceled, waits)
        last = await ask(tenant)
        await until(last, waits)
        await canceled.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await canceled.result()
        assert Status.model_validate(await canceled.query("status")).phase == "Canceled"
        await first.terminate()
        gate.open()
        ended = asyncio.create_task(tenant.status(last))
        while not ended.done():  # the runs that keep it waiting are checked every few seconds
            with contextlib.suppress(RPCError):  # it has just ended
                await last.signal(ASK_AGAIN)
            await asyncio.wait([ended], timeout=0.5)
        assert ended.result().phase == "Completed"


@pytest.mark.full
@pytest.mark.parametrize("end", ["cancel", "terminate"])
async def test_the_minutes_that_waiting_calls_have_booked_are_free_again_when_their_runs_end(
    env: Environment, end: str
) -> None:
    """No run tells that it has ended while there is no limit of open runs: its workers find out."""
    async with with_quota(env, callsPerMinute={"*": 1}) as tenant, store_of(tenant) as store:
        assert (await tenant.status(await ask(tenant))).phase == "Completed"
        waiting = [await ask(tenant) for _ in range(4)]
        for run in waiting:
            await until(run, waits)
        for run in waiting:
            await (run.cancel() if end == "cancel" else run.terminate())
        table = schema.quota_accounts.c
        later = select(func.sum(table.model_calls)).where(table.began > time.time() + 60)
        async with asyncio.timeout(120):
            while (await store.journal.database.run(later))[0][0]:
                await asyncio.sleep(0.5)


@pytest.mark.full
async def test_the_waits_of_a_run_for_its_turn_do_not_become_longer(env: Environment) -> None:
    """A call that waited longer than until the minute in which it has a place would lose that again and again."""
    gate = Gate()
    async with with_quota(env, maxConcurrentRuns=1) as tenant:
        tenant.answer = gate.answer
        await ask(tenant)
        await gate.reached()
        second = await ask(tenant)
        status = await until(second, waits)
        for attempts in range(1, 9):
            await second.signal(ASK_AGAIN)
            status = await until(second, partial(has_asked, attempts))
        assert status.outages
        assert status.outages[0].until - datetime.now(UTC) < timedelta(seconds=30)
        gate.open()
        assert (await tenant.status(second)).phase == "Completed"


@pytest.mark.full
async def test_the_time_in_which_a_query_waits_for_others_does_not_count_for_its_timeout(env: Environment) -> None:
    for seconds in (0.5, 10):  # a busy machine may need more than the first for the answer alone
        gate = Gate()
        async with with_quota(env, maxConcurrentRuns=1) as tenant:
            tenant.answer = gate.answer
            first = await ask(tenant)
            await gate.reached()
            second = await ask(tenant, timeout=f"{seconds}s")
            await until(second, waits)
            await asyncio.sleep(seconds + 0.1)
            gate.open()
            assert (await tenant.status(first)).phase == "Completed"
            phase = (await tenant.status(second)).phase
        if phase == "Completed":
            break
    assert phase == "Completed"


@pytest.mark.full
async def test_a_team_of_another_namespace_has_a_quota_of_its_own(env: Environment) -> None:
    for_each = manifest("Quota", "each", {"eachNamespace": True, "perDay": {"modelCalls": 1}, "onExceeded": "fail"})
    own = manifest("Quota", "own", {"perDay": {"modelCalls": 2}, "onExceeded": "fail"})
    own["metadata"]["namespace"] = "rich"
    agents = [agent("a"), *(agent("a") for _ in range(2))]
    for one, namespace in zip(agents, ("default", "poor", "rich"), strict=True):
        one["metadata"]["namespace"] = namespace
    async with env.with_manifests([*agents, for_each, own]) as tenant:
        made = {"default": 0, "poor": 0, "rich": 0}
        for namespace in made:
            for _ in range(3):
                made[namespace] += (await tenant.status(await ask(tenant, namespace=namespace))).phase == "Completed"
    assert made == {"default": 1, "poor": 1, "rich": 2}


async def test_a_client_can_not_bring_a_quota(env: Environment) -> None:
    status = await env.status(await env.start_query([agent("a"), quota(perDay={"tokens": 5})], "agent/a"))
    assert status.failure
    assert status.failure.type == "InvalidInput"
    assert "inline manifests can't contain Quotas (Quota/default/limits)" in status.failure.message
