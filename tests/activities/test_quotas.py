"""Accounts of Quotas: whatever runs at once, no limit of a period is exceeded, and nobody waits for ever."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select
from temporalio.client import Client
from temporalio.service import RetryConfig

from baton.activities.context.lookup import OwnManifests
from baton.activities.context.metering import Meters
from baton.activities.tenants import QuotaChanges, ask_again_after
from baton.journal import schema
from baton.journal.accounts import Account, Amount, Reached, reserve, settle
from baton.journal.database import Database
from baton.journal.engine import Work
from baton.journal.journal import Journal
from baton.journal.manifest_store import ManifestStore
from baton.journal.prune import delete_old_periods, delete_runs
from baton.journal.quotas import (
    Admissions,
    KnownRun,
    QuotaAccount,
    QuotaWait,
    QuotaWaits,
    ReachedQuota,
    RunLimit,
    bounds,
    database_time,
)
from baton.resources.catalog import Catalog
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.tcp_proxy import TcpProxy

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp()
MIDNIGHT = datetime(2026, 11, 27, tzinfo=UTC).timestamp()


class Ledger:
    """The accounts of Quotas, each change in a transaction of its own, at times that the test chooses."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def reserve(
        self,
        call: str,
        quotas: Sequence[QuotaAccount],
        amount: Amount,
        now: float,
        accounts: Sequence[Account] = (),
        epoch: int = 1,
    ) -> Reached | None:
        def execute(connection: Connection) -> Reached | None:
            return reserve(connection, f"{call}/{epoch}", accounts, amount, quotas=quotas, booking=f"{call}/0", now=now)

        return await self.database.transact(execute)

    async def settle(
        self, call: str, quotas: Sequence[QuotaAccount], amount: Amount | None, now: float, epoch: int = 1
    ) -> None:
        def execute(connection: Connection) -> None:
            settle(connection, f"{call}/{epoch}", (), amount, quotas=quotas, now=now)

        await self.database.transact(execute)

    async def rows(self, quota: str) -> list[Any]:
        """The rows of a Quota with their usage, without those that are only locked."""
        table = schema.quota_accounts
        return [*await self.database.run(select(table).where(table.c.quota == quota, table.c.ends > 0))]


def quota_id() -> str:
    return f"Quota/default/{uuid.uuid4()}"


def per_day(quota: str, tenant: str = "support", **limits: int) -> QuotaAccount:
    return QuotaAccount(quota, tenant, "day", tuple(limits.items()))


def per_minute(quota: str, calls: int, model: str = "gpt") -> QuotaAccount:
    return QuotaAccount(quota, "support", "minute", (("model_calls", calls),), model=model)


ONE = Amount(10, model_calls=1)


@pytest.mark.parametrize(
    ("period", "time", "began", "ends"),
    [
        ("minute", "2026-11-26T12:00:59", "2026-11-26T12:00:00", "2026-11-26T12:01:00"),
        ("day", "2026-11-26T23:59:59", "2026-11-26T00:00:00", "2026-11-27T00:00:00"),
        ("month", "2026-12-31T23:59:59", "2026-12-01T00:00:00", "2027-01-01T00:00:00"),
        ("month", "2028-02-29T00:00:00", "2028-02-01T00:00:00", "2028-03-01T00:00:00"),
    ],
)
def test_periods_are_those_of_the_calendar_in_utc(period: Any, time: str, began: str, ends: str) -> None:
    def seconds(text: str) -> float:
        return datetime.fromisoformat(f"{text}+00:00").timestamp()

    assert bounds(period, seconds(time)) == (seconds(began), seconds(ends))


async def test_the_time_is_that_of_the_database(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    now = await database.transact(database_time)
    assert abs(now - datetime.now(UTC).timestamp()) < 60
    await database.close()


async def test_a_call_over_the_limit_of_a_day_waits_for_the_next_one_which_begins_anew(journal_url: str) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    day = [per_day(quota, model_calls=2)]
    run = f"{uuid.uuid4()}"
    for number in range(2):
        assert await ledger.reserve(f"{run}/{number}", day, ONE, NOON) is None
    reached = await ledger.reserve(f"{run}/2", day, ONE, NOON)
    assert isinstance(reached, ReachedQuota)
    assert (reached.limit, reached.used, reached.most, reached.ends) == ("model_calls", 2, 2, MIDNIGHT)
    assert reached.wait == MIDNIGHT - NOON
    assert await ledger.reserve(f"{run}/2", day, ONE, MIDNIGHT, epoch=2) is None
    assert sorted((row.began, row.model_calls) for row in await ledger.rows(quota)) == [
        (MIDNIGHT - 86_400, 2),
        (MIDNIGHT, 1),
    ]
    await ledger.database.close()


def test_a_run_that_has_waited_for_long_asks_for_its_place_less_often() -> None:
    """Each time adds some ten events to its history, of 50,000."""
    waited, asked = timedelta(), 0
    while waited < timedelta(days=30):
        waited += timedelta(seconds=ask_again_after(waited, 0))
        asked += 1
    assert asked < 4_000
    assert ask_again_after(timedelta(minutes=10), 0) == 20
    assert ask_again_after(timedelta(minutes=10), 5) == 300


async def test_a_call_that_waits_names_the_quota_in_which_it_has_no_place(journal_url: str) -> None:
    ledger = Ledger(await Database.connect(journal_url, "default", upgrade=True))
    accounts = [per_minute(quota_id(), 100), per_minute(quota_id(), 1)]
    assert await ledger.reserve(f"{uuid.uuid4()}/0", accounts, ONE, NOON) is None
    for number in range(2):
        reached = await ledger.reserve(f"{uuid.uuid4()}/{number}", accounts, ONE, NOON)
        assert isinstance(reached, ReachedQuota)
        assert (reached.account, reached.most) == (accounts[1], 1)
    await ledger.database.close()


async def test_a_call_that_needs_more_than_the_whole_limit_does_not_wait(journal_url: str) -> None:
    ledger = Ledger(await Database.connect(journal_url, "default", upgrade=True))
    reached = await ledger.reserve(f"{uuid.uuid4()}/0", [per_day(quota_id(), tokens=9)], ONE, NOON)
    assert isinstance(reached, ReachedQuota)
    assert reached.wait is None
    await ledger.database.close()


async def test_an_answer_is_settled_on_the_day_on_which_its_call_was_charged(journal_url: str) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    day = [per_day(quota, tokens=100)]
    call = f"{uuid.uuid4()}/0"
    await ledger.reserve(call, day, ONE, NOON)
    await ledger.settle(call, day, Amount(70, model_calls=1), MIDNIGHT)
    assert [(row.tokens, row.model_calls) for row in await ledger.rows(quota)] == [(70, 1)]
    await ledger.database.close()


async def test_a_call_that_was_not_sent_costs_a_tenant_nothing(journal_url: str) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    day = [per_day(quota, tokens=10)]
    call = f"{uuid.uuid4()}/0"
    await ledger.reserve(call, day, ONE, NOON)
    await ledger.settle(call, day, None, NOON)
    assert [(row.tokens, row.model_calls) for row in await ledger.rows(quota)] == [(0, 0)]
    assert await ledger.reserve(call, day, ONE, NOON, epoch=2) is None
    await ledger.database.close()


async def test_a_call_that_a_budget_refuses_uses_no_quota(journal_url: str) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    run = f"{uuid.uuid4()}"
    budget = [Account(f"{run}/1", (("model_calls", 1),))]
    day = [per_day(quota, model_calls=5)]
    assert await ledger.reserve(f"{run}/a", day, ONE, NOON, budget) is None
    assert await ledger.reserve(f"{run}/b", day, ONE, NOON, budget) is not None
    assert [row.model_calls for row in await ledger.rows(quota)] == [1]
    await ledger.database.close()


async def test_calls_over_the_limit_of_a_minute_get_later_minutes_in_their_order(journal_url: str) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    minute, run = [per_minute(quota, 2)], f"{uuid.uuid4()}"
    waits: list[float | None] = []
    for number in range(7):
        reached = await ledger.reserve(f"{run}/{number}", minute, ONE, NOON + 10)
        assert reached is None or isinstance(reached, ReachedQuota)
        waits.append(reached.wait if reached else 0)
    assert waits == [0, 0, 50, 50, 110, 110, 170]
    newcomer = await ledger.reserve(f"{run}/new", minute, ONE, NOON + 60)
    assert isinstance(newcomer, ReachedQuota), "the minute belongs to those that have waited for it"
    assert await ledger.reserve(f"{run}/2", minute, ONE, NOON + 61, epoch=2) is None
    assert await ledger.reserve(f"{run}/3", minute, ONE, NOON + 62, epoch=2) is None
    assert [row.model_calls for row in sorted(await ledger.rows(quota), key=lambda row: row.began)] == [2, 2, 2, 2]
    await ledger.database.close()


async def test_a_call_that_comes_too_late_for_its_minute_gets_another_one(journal_url: str) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    minute, run = [per_minute(quota, 1)], f"{uuid.uuid4()}"
    assert await ledger.reserve(f"{run}/a", minute, ONE, NOON) is None
    assert await ledger.reserve(f"{run}/b", minute, ONE, NOON) is not None
    assert await ledger.reserve(f"{run}/c", minute, ONE, NOON + 125) is None
    assert await ledger.reserve(f"{run}/b", minute, ONE, NOON + 126, epoch=2) is not None
    assert await ledger.reserve(f"{run}/b", minute, ONE, NOON + 180, epoch=3) is None
    await ledger.database.close()


async def test_a_call_under_two_limits_gets_a_minute_with_room_under_both(journal_url: str) -> None:
    ledger, one, two = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id(), quota_id()
    run = f"{uuid.uuid4()}"
    both = [per_minute(one, 1), per_minute(two, 2)]
    assert await ledger.reserve(f"{run}/a", both, ONE, NOON) is None
    reached = await ledger.reserve(f"{run}/b", both, ONE, NOON)
    assert isinstance(reached, ReachedQuota)
    assert reached.wait == 60
    assert await ledger.reserve(f"{run}/c", both[1:], ONE, NOON) is None, "the other limit has a place in this minute"
    await ledger.database.close()


async def booked_calls(ledger: Ledger, quota: str) -> dict[float, int]:
    """The calls that are counted in each minute, by its begin."""
    return {row.began: row.model_calls for row in await ledger.rows(quota)}


async def minute_from_now(ledger: Ledger, seconds: float) -> float:
    """The begin of a minute so many seconds from the time of the database."""
    return bounds("minute", await ledger.database.engine.run(database_time) + seconds)[0]


@pytest.mark.parametrize("end", ["release", "deletion"])
async def test_minutes_that_ended_runs_have_booked_are_given_back_once(journal_url: str, end: str) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    minute, runs = [per_minute(quota, 1), per_minute(quota, 5, model="other")], [f"{uuid.uuid4()}" for _ in range(4)]
    now = await minute_from_now(ledger, 3_600)
    for run in runs:
        await ledger.reserve(f"{run}/a", minute, ONE, now)
    waits = QuotaWaits(ledger.database, "queue")
    if end == "release":
        await asyncio.gather(*(waits.release(runs[1:3]) for _ in range(3)))
    else:
        await asyncio.gather(*(delete_runs(ledger.database.engine, runs[1:3]) for _ in range(3)))
    assert [row.model_calls for row in sorted(await ledger.rows(quota), key=lambda row: row.began)] == [
        *(1, 1),
        *(0, 0),
        *(0, 0),
        *(1, 1),
    ]
    reached = await ledger.reserve(f"{uuid.uuid4()}/new", minute, ONE, now)
    assert isinstance(reached, ReachedQuota)
    assert reached.wait == 60, "the first of these minutes is free again"
    await ledger.database.close()


async def test_a_minute_that_has_begun_stays_counted_when_its_run_ends(journal_url: str) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    minute, runs = [per_minute(quota, 1)], [f"{uuid.uuid4()}" for _ in range(2)]
    now = await minute_from_now(ledger, -3_600)
    for run in runs:
        await ledger.reserve(f"{run}/a", minute, ONE, now)
    await QuotaWaits(ledger.database, "queue").release(runs)
    await delete_runs(ledger.database.engine, runs)
    assert await booked_calls(ledger, quota) == {now: 1, now + 60: 1}
    await ledger.database.close()


async def test_a_call_that_gets_another_minute_than_the_one_it_has_booked_gives_that_back(journal_url: str) -> None:
    ledger, quota, more = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id(), quota_id()
    run = f"{uuid.uuid4()}"
    for call in "abc":
        await ledger.reserve(f"{run}/{call}", [per_minute(quota, 1)], ONE, NOON)
    assert await booked_calls(ledger, quota) == {NOON: 1, NOON + 60: 1, NOON + 120: 1}
    assert await ledger.reserve(f"{run}/c", [per_minute(quota, 2)], ONE, NOON, epoch=2) is None, "it was raised"
    assert await booked_calls(ledger, quota) == {NOON: 2, NOON + 60: 1, NOON + 120: 0}
    both = [per_minute(quota, 1), per_minute(more, 1)]
    assert await ledger.reserve(f"{run}/b", both, ONE, NOON + 60, epoch=2) is None
    assert await booked_calls(ledger, quota) == {NOON: 2, NOON + 60: 1, NOON + 120: 0}, "its place is counted once"
    assert await booked_calls(ledger, more) == {NOON + 60: 1}
    await ledger.database.close()


@pytest.mark.parametrize("refuses", ["budget", "day"])
async def test_a_call_that_is_refused_after_it_has_booked_a_minute_gives_that_back(
    journal_url: str, refuses: str
) -> None:
    ledger, quota = Ledger(await Database.connect(journal_url, "default", upgrade=True)), quota_id()
    run, minute, day = f"{uuid.uuid4()}", per_minute(quota, 1), per_day(quota_id(), model_calls=2)
    quotas, budget = (
        ([minute, day], []) if refuses == "day" else ([minute], [Account(f"{run}/1", (("model_calls", 2),))])
    )
    others = [each for each in quotas if each is not minute]
    for call in "abc":
        await ledger.reserve(f"{run}/{call}", quotas, ONE, NOON, budget)
    assert await booked_calls(ledger, quota) == {NOON: 1, NOON + 60: 1, NOON + 120: 1}
    assert await ledger.reserve(f"{run}/d", others, ONE, NOON, budget) is None
    assert await ledger.reserve(f"{run}/c", quotas, ONE, NOON + 1, budget, epoch=2) is not None
    assert await booked_calls(ledger, quota) == {NOON: 1, NOON + 60: 1, NOON + 120: 0}
    await ledger.database.close()


Step = tuple[int, int, int, int]
"""A step: the seconds since the one before it, the tenant, the estimate and the use in tokens (0: it is not sent)."""

STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 20, 45, 3_600]), st.integers(0, 1), st.integers(1, 30), st.integers(0, 30)),
    min_size=8,
    max_size=25,
)


async def use_up(url: str, steps: list[Step]) -> None:
    """Makes calls of two tenants, five of them at once, and again at the time that they are told to come back."""
    ledger, run = Ledger(await Database.connect(url, "default", upgrade=True)), f"{uuid.uuid4()}"
    quotas = [quota_id() for _ in range(3)]
    sent = Counter[tuple[str, int]]()
    over = Counter[str]()
    now, waiting = NOON, list[tuple[float, int, Step, int]]()

    async def call(number: int, step: Step, epoch: int) -> None:
        _, tenant, estimate, use = step
        quota = quotas[tenant]
        under = [per_day(quota, tokens=40, model_calls=3), per_minute(quota, 2)]
        name = f"{run}/{number}"
        amount = Amount(estimate, model_calls=1)
        reached = await ledger.reserve(name, under, amount, now, epoch=epoch)
        if isinstance(reached, ReachedQuota):
            assert reached.wait is not None
            assert reached.wait > 0
            waiting.append((now + reached.wait, number, step, epoch + 1))
            return
        sent[quota, bounds("minute", now)[0]] += 1
        over[quota] += max(0, use - estimate)
        await ledger.settle(name, under, Amount(use, model_calls=1) if use else None, now, epoch=epoch)

    try:
        pending = [*enumerate(steps)]
        while pending or waiting:
            some, pending = pending[:5], pending[5:]
            if some:
                now += some[0][1][0]
            else:
                now = max(now, min(waiting)[0])
            due = [entry for entry in waiting if entry[0] <= now]
            waiting = [entry for entry in waiting if entry[0] > now]
            calls = [call(number, step, 1) for number, step in some]
            await asyncio.gather(*calls, *(call(number, step, epoch) for _, number, step, epoch in due))
            assert now < NOON + 40 * 86_400, "nobody waits for ever"
        for quota in quotas:
            for row in await ledger.rows(quota):
                assert row.model_calls <= (3 if row.period == "day" else 2)
                assert row.period != "day" or row.tokens <= 40 + over[quota], "only what was not known before is more"
        assert all(count <= 2 for count in sent.values()), "no minute had more calls than it may have"
    finally:
        await ledger.database.close()


@pytest.mark.slow
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=STEPS)
def test_no_quota_is_exceeded_and_every_call_is_made_some_day(journal_url: str, steps: list[Step]) -> None:
    asyncio.run(use_up(journal_url, steps))


def known(name: str) -> KnownRun:
    return KnownRun(f"{uuid.uuid4()}", name)


@pytest.mark.full
async def test_runs_are_admitted_in_the_order_in_which_they_have_asked(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions, limit = Admissions(database), RunLimit(quota_id(), "support", 2)
    runs = [known(f"{number}") for number in range(6)]
    asked = [await admissions.admit([limit], run) for run in runs]
    assert [waits and (waits.open, waits.before) for waits in asked] == [
        None,
        None,
        (2, 0),
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    assert await admissions.admit([limit], runs[0]) is None, "it is admitted already"
    assert await admissions.release([runs[1].run]) == [runs[2]]
    late = known("late")
    assert await admissions.admit([limit], late) is not None
    assert await admissions.admit([limit], runs[3]) is not None
    assert await admissions.admit([limit], runs[2]) is None
    assert await admissions.release([runs[0].run, runs[2].run]) == [runs[3], runs[4]]
    await admissions.forget([runs[0].run, runs[2].run])
    assert await admissions.release([runs[0].run]) == []
    await database.close()


async def test_a_waiting_run_that_is_released_makes_room_for_those_behind_it(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions, limit = Admissions(database), RunLimit(quota_id(), "support", 1)
    first, second, third = (known(name) for name in "abc")
    for run in (first, second, third):
        await admissions.admit([limit], run)
    await admissions.release([second.run])
    await admissions.release([first.run])
    assert await admissions.admit([limit], third) is None
    await database.close()


async def test_a_run_under_two_limits_is_admitted_under_both_or_none(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions = Admissions(database)
    namespace, account = RunLimit(quota_id(), "support", 2), RunLimit(quota_id(), "support/bot", 1)
    first, second, other = (known(name) for name in "abc")
    assert await admissions.admit([account, namespace], first) is None
    assert await admissions.admit([account, namespace], second) is not None
    assert await admissions.admit([namespace], other) is None, "who waits for one limit takes no place under another"
    assert await admissions.release([first.run]) == [second]
    assert await admissions.admit([account, namespace], second) is None
    await database.close()


async def test_a_waiting_run_is_admitted_once_its_quota_limits_no_runs_any_more(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions, limit = Admissions(database), RunLimit(quota_id(), "support", 1)
    first, second, third = (known(name) for name in "abc")
    for run in (first, second, third):
        await admissions.admit([limit], run)
    assert await admissions.admit([], second) is None
    await admissions.release([first.run])
    assert await admissions.admit([limit], third) is None, "the second run has left the queue"
    await database.close()


async def test_runs_of_an_account_that_is_full_do_not_delay_others_of_its_namespace(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions = Admissions(database)
    namespace, account = RunLimit(quota_id(), "support", 3), RunLimit(quota_id(), "support/bot", 1)
    opened = [known(f"{number}") for number in range(3)]
    assert await admissions.admit([account, namespace], opened[0]) is None
    for run in opened[1:]:
        assert await admissions.admit([namespace], run) is None
    of_account = [known(f"bot-{number}") for number in range(3)]
    for run in of_account:
        assert await admissions.admit([account, namespace], run) is not None
    other = known("other")
    assert await admissions.admit([namespace], other) is not None
    assert await admissions.release([opened[1].run]) == [other]
    assert await admissions.admit([namespace], other) is None
    await admissions.release([opened[0].run])
    asked = [await admissions.admit([account, namespace], run) is None for run in of_account]
    assert asked == [True, False, False]
    await database.close()


async def test_a_run_keeps_its_place_under_one_limit_while_it_waits_for_another(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions = Admissions(database)
    namespace, account = RunLimit(quota_id(), "support", 2), RunLimit(quota_id(), "support/bot", 1)
    first, second, third, other, last = (known(name) for name in "abcde")
    assert await admissions.admit([account, namespace], first) is None
    for run in (second, third):
        assert await admissions.admit([account, namespace], run) is not None
    assert await admissions.admit([namespace], other) is None
    assert await admissions.admit([namespace], last) is not None
    await admissions.release([first.run])
    assert await admissions.admit([namespace], last) is None
    assert await admissions.admit([account, namespace], second) is not None, "the namespace is full"
    await admissions.release([other.run])
    assert await admissions.admit([account, namespace], third) is not None, "the second run is before it"
    assert await admissions.admit([account, namespace], second) is None
    await database.close()


async def test_a_place_that_becomes_free_is_offered_to_a_run_that_waits_for_this_limit(journal_url: str) -> None:
    """A run that has a place under the limit, and waits for another one, would leave the free place unused."""
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions = Admissions(database)
    namespace, account = RunLimit(quota_id(), "support", 1), RunLimit(quota_id(), "support/bot", 2)
    other, first, second, third = (known(name) for name in "abcd")
    assert await admissions.admit([namespace], other) is None
    for run in (first, second, third):
        assert await admissions.admit([account, namespace], run) is not None
    assert third in await admissions.release([second.run])
    await database.close()


async def test_a_release_that_is_made_again_before_the_next_runs_are_woken_names_them_again(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions, limit = Admissions(database), RunLimit(quota_id(), "support", 1)
    first, second = (known(name) for name in "ab")
    for run in (first, second):
        await admissions.admit([limit], run)
    assert await admissions.release([first.run]) == [second]
    assert await admissions.release([first.run]) == [second]
    assert await admissions.admit([limit], second) is None
    await admissions.forget([first.run])
    assert await admissions.release([first.run]) == []
    await database.close()


async def test_open_runs_are_counted_for_each_namespace_of_temporal(journal_url: str) -> None:
    """Whether runs have ended, and that others may begin, can be found out and said only in their own namespace."""
    quota = quota_id()
    databases = [await Database.connect(journal_url, name, upgrade=True) for name in ("one", "two")]
    one, two = (Admissions(database) for database in databases)
    limit = RunLimit(quota, "support", 1)
    first, second, third, fourth = (known(name) for name in "abcd")
    assert await one.admit([limit], first) is None
    assert await two.admit([limit], second) is None
    assert await one.admit([limit], third) is not None
    assert await two.admit([limit], fourth) is not None
    assert await one.release([first.run]) == [third]
    assert await two.release([second.run]) == [fourth]
    for database in databases:
        await database.close()


@pytest.mark.full
async def test_of_more_open_runs_than_can_be_checked_at_once_each_is_checked_some_time(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    admissions, limit = Admissions(database), RunLimit(quota_id(), "support", 9)
    runs = {known(f"{number}") for number in range(9)}
    for run in runs:
        await admissions.admit([limit], run)
    checked = set[KnownRun]()
    for _ in range(1_000):
        checked.update(await admissions.to_check(limit, 2))
    assert checked == runs
    await database.close()


async def test_periods_that_are_long_over_are_deleted_and_no_others(journal_url: str) -> None:
    ledger = Ledger(await Database.connect(journal_url, "default", upgrade=True))
    quota = quota_id()
    now = await ledger.database.engine.run(database_time)
    both = [per_day(quota, model_calls=9), per_minute(quota, 9)]
    for number, ago in enumerate((0, 0, 60, 3_600, 3 * 86_400, 40 * 86_400)):
        await ledger.reserve(f"{number}", both, ONE, now - ago)
    await delete_old_periods(ledger.database.engine)
    left = await ledger.rows(quota)
    assert left
    assert all(row.ends > now - 86_460 for row in left)
    assert sum(row.model_calls for row in left if row.period == "day") == 4
    assert sum(row.model_calls for row in left if row.period == "minute") == 4
    await ledger.reserve("next", both, ONE, now)
    await ledger.database.close()


Move = tuple[int, int]
"""A run asks (0) or ends (1), by its number."""


@pytest.mark.full
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(moves=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=30))
def test_there_are_never_more_open_runs_than_a_quota_allows(journal_url: str, moves: list[Move]) -> None:
    async def play() -> None:
        database = await Database.connect(journal_url, "default", upgrade=True)
        admissions, limit = Admissions(database), RunLimit(quota_id(), "support", 3)
        runs = [known(f"{number}") for number in range(10)]
        admitted, waiting = set[KnownRun](), list[KnownRun]()
        for ends, number in moves:
            run = runs[number]
            if ends:
                following = await admissions.release([run.run])
                assert following == (
                    waiting[:1] if run in admitted else [w for w in waiting if w != run][:1] if run in waiting else []
                )
                admitted.discard(run)
                waiting = [other for other in waiting if other != run]
            elif await admissions.admit([limit], run) is None:
                admitted.add(run)
                waiting = [other for other in waiting if other != run]
            elif run not in waiting:
                waiting.append(run)
            assert len(admitted) <= 3
        while waiting or admitted:
            for run in [*admitted]:
                await admissions.release([run.run])
            admitted.clear()
            for run in waiting[:3]:
                assert await admissions.admit([limit], run) is None, "the first are admitted"
                admitted.add(run)
            waiting = waiting[3:]
        await database.close()

    asyncio.run(play())


async def test_a_run_that_waits_for_a_quota_is_named_once_after_each_change(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    waits, elsewhere = QuotaWaits(database, "queue"), QuotaWaits(database, "other")
    run = known("a")
    before = QuotaWait(run, "support/bot", "before", "default", "queue")
    await waits.note(before, 60)
    await waits.note(before, 10)
    assert await waits.tenants() == {"support/bot": {("before", "before")}}
    assert await elsewhere.tenants() == {}
    assert await waits.to_tell("support/bot", "before") == []
    assert await elsewhere.to_tell("support/bot", "after") == []
    assert await waits.to_tell("support/bot", "after") == [run]
    assert await waits.to_tell("support/bot", "after") == [run], "a worker that was to tell it may have been killed"
    await waits.note_told("support/bot", "after", [run])
    assert await waits.to_tell("support/bot", "after") == [], "another worker has told it"
    await waits.note(before, 60)
    assert await waits.to_tell("support/bot", "after") == [], (
        "a worker that has other Quotas refuses it again and again"
    )
    await waits.note(before._replace(quotas="after"), 60)
    assert await waits.to_tell("support/bot", "third") == [run]
    await database.close()


async def test_a_run_is_named_again_if_its_quotas_change_back_and_forth(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    waits, run = QuotaWaits(database, "queue"), known("a")
    before = QuotaWait(run, "support/bot", "before", "default", "queue")
    await waits.note(before, 60)
    for _ in range(3):
        assert await waits.to_tell("support/bot", "raised") == [run]
        await waits.note_told("support/bot", "raised", [run])
        assert await waits.to_tell("support/bot", "raised") == []
        await waits.note_new("support/bot", ["before"])
        await waits.note(before, 60)
    await database.close()


NO_QUOTAS = ""
"""The digest of the Quotas of a tenant that has none."""


async def test_a_run_whose_signal_is_lost_is_told_at_the_next_look(
    journal_url: str, client: Client, server: EmbeddedServer
) -> None:
    journal = await Journal.open(journal_url, client.namespace)
    meters = Meters(OwnManifests(Catalog(), ManifestStore(journal), lambda _: None), "queue")
    waits, run = QuotaWaits(journal.database, "queue"), known("a")
    await waits.note(QuotaWait(run, "support/bot", "before", client.namespace, "queue"), 60)
    hasty = RetryConfig(max_retries=1, max_elapsed_time_millis=100)
    async with TcpProxy(server.port) as proxy:
        unreachable = await Client.connect(proxy.address, retry_config=hasty)
    await QuotaChanges(unreachable, journal, meters).tell()
    assert await waits.to_tell("support/bot", NO_QUOTAS) == [run]
    await QuotaChanges(client, journal, meters).tell()
    assert await waits.to_tell("support/bot", NO_QUOTAS) == []
    await journal.close()


async def test_a_look_for_changed_quotas_reads_nothing_for_each_tenant_without_a_change(
    journal_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await Journal.open(journal_url, client.namespace)
    meters = Meters(OwnManifests(Catalog(), ManifestStore(journal), lambda _: None), "queue")
    waits = QuotaWaits(journal.database, "queue")
    changes = QuotaChanges(client, journal, meters)
    engine = journal.database.engine
    statements, execute = list[object](), engine.run

    async def run(work: Work[Any]) -> Any:
        statements.append(work)
        return await execute(work)

    counts = list[int]()
    for tenants in (1, 20):
        for number in range(tenants):
            wait = QuotaWait(known(f"{number}"), f"support/{number}", NO_QUOTAS, client.namespace, "queue")
            await waits.note(wait, 60)
        await changes.tell()  # these Quotas are new to this worker
        with monkeypatch.context() as counted:
            counted.setattr(engine, "run", run)
            await changes.tell()
        counts.append(len(statements))
        statements.clear()
    assert counts[0] == counts[1]
    await journal.close()


async def test_a_run_that_was_told_is_told_again_after_its_quotas_have_come_back(
    journal_url: str, client: Client
) -> None:
    journal = await Journal.open(journal_url, client.namespace)
    meters = Meters(OwnManifests(Catalog(), ManifestStore(journal), lambda _: None), "queue")
    waits, run = QuotaWaits(journal.database, "queue"), known("a")
    before = QuotaWait(run, "support/bot", NO_QUOTAS, client.namespace, "queue")
    for _ in range(3):
        await waits.note(before, 60)
        assert await waits.to_tell("support/bot", "raised") == [run]
        await waits.note_told("support/bot", "raised", [run])
        meters.new_quotas("support/bot", "raised")
        await QuotaChanges(client, journal, meters).tell()
    await waits.note_told("support/bot", "raised", [run])
    await QuotaChanges(client, journal, meters).tell()
    assert await waits.to_tell("support/bot", "raised") == [], "to this worker its Quotas are not new"
    await journal.close()
