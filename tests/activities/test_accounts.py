"""Accounts of budgets: whatever runs at once, fails or is tried again, no limit is exceeded, nothing counts twice."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from baton.contracts.message import TokenUsage
from baton.journal import accounts as functions
from baton.journal import schema
from baton.journal.accounts import Account, Amount, Reached, ReachedLimit
from baton.journal.database import Database
from baton.journal.prune import delete_runs

LIMITS: tuple[dict[str, int], ...] = ({"tokens": 60, "model_calls": 5}, {"tokens": 30}, {"model_calls": 2})


class Accounts(functions.Accounts):
    """The accounts, each change in a transaction of its own."""

    async def reserve(self, call: str, above: Sequence[Account], amount: Amount) -> Reached | None:
        return await self._database.transact(lambda connection: functions.reserve(connection, call, above, amount))

    async def settle(self, call: str, above: Sequence[Account], amount: Amount | None) -> None:
        await self._database.transact(lambda connection: functions.settle(connection, call, above, amount))


Call = tuple[tuple[int, ...], int, int, int]
"""The indexes of the accounts above a call, its estimate and its use in tokens (it fails with 0), and its attempts."""

CALLS = st.lists(
    st.tuples(
        st.sampled_from([(0,), (1, 0), (0, 2), (2, 0, 1)]), st.integers(0, 30), st.integers(0, 30), st.integers(1, 3)
    ),
    max_size=12,
)


async def make(accounts: Accounts, above: Sequence[Account], call: Call, name: str) -> int:
    """Makes one call, each step of it as often as it is tried; the tokens by which it has exceeded its estimate."""
    _, estimate, use, attempts = call
    reserved = [accounts.reserve(name, above, Amount(estimate, model_calls=1)) for _ in range(attempts)]
    if all(await asyncio.gather(*reserved)):
        return 0
    await asyncio.sleep(0)
    amount = Amount(use, model_calls=1) if use else None
    await asyncio.gather(*(accounts.settle(name, above, amount) for _ in range(attempts)))
    return max(0, use - estimate)


async def spend(url: str, calls: list[Call]) -> None:
    database, run = await Database.connect(url, "default", upgrade=True), uuid.uuid4()
    try:
        accounts = Accounts(database)
        all_ = [Account(f"{run}/{index}", tuple(limits.items())) for index, limits in enumerate(LIMITS)]
        works = (make(accounts, [all_[i] for i in call[0]], call, f"{run}/{n}") for n, call in enumerate(calls))
        over = sum(await asyncio.gather(*works))
        charges = await database.run(select(schema.charges).where(schema.charges.c.call.startswith(f"{run}")))
        for row in await database.run(select(schema.accounts).where(schema.accounts.c.id.startswith(f"{run}"))):
            own = [each for each in charges if each.account == row.id]
            assert row.tokens == sum(each.tokens for each in own), "what is charged is the sum of the calls"
            assert row.model_calls == len(own)
            limits = LIMITS[int(row.id[-1])]
            assert row.model_calls <= limits.get("model_calls", 99)
            assert row.tokens <= limits.get("tokens", 999) + over, "only what was not known before is more"
        assert all(each.settled for each in charges)
    finally:
        await database.close()


@pytest.mark.slow
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(calls=CALLS)
def test_no_limit_is_exceeded_and_no_call_is_charged_twice(journal_url: str, calls: Any) -> None:
    asyncio.run(spend(journal_url, calls))


async def test_a_call_that_is_charged_is_neither_charged_again_nor_refused(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    accounts, account = Accounts(database), [Account("run/1", (("model_calls", 1),))]
    for _ in range(2):
        assert await accounts.reserve("run/a", account, Amount(5, model_calls=1)) is None
    assert await accounts.reserve("run/b", account, Amount(5, model_calls=1)) is not None
    await accounts.settle("run/a", account, None)
    assert await accounts.reserve("run/b", account, Amount(5, model_calls=1)) is None
    await database.close()


async def test_an_answer_is_charged_once_also_if_an_older_attempt_fails_beside_it(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    accounts, account = Accounts(database), [Account("run/o", (("model_calls", 1),)), Account("run/p", ())]
    for _ in range(2):
        assert await accounts.reserve("run/a", account, Amount(5, model_calls=1)) is None
    await accounts.settle("run/a", account, None)
    for _ in range(2):
        await accounts.settle("run/a", account, Amount(70, model_calls=1))
        await accounts.settle("run/a", account, None)
    used = await database.run(select(schema.accounts).where(schema.accounts.c.id.in_(each.id for each in account)))
    assert [(row.tokens, row.model_calls) for row in used] == [(70, 1)] * 2
    assert await accounts.reserve("run/b", account, Amount(5, model_calls=1)) is not None
    await database.close()


async def test_an_answer_to_a_run_that_was_deleted_is_charged_to_nobody(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    run = f"{uuid.uuid4()}"
    accounts, account = Accounts(database), [Account(f"{run}/o", ())]
    await accounts.reserve(f"{run}/a", account, Amount(5, model_calls=1))
    await delete_runs(database.engine, {run})
    await accounts.settle(f"{run}/a", account, Amount(70, model_calls=1))
    assert not await database.run(select(schema.charges).where(schema.charges.c.call == f"{run}/a"))
    await database.close()


@pytest.mark.parametrize(("sent", "counted"), [(10**30, 10**12), (-5, 0), (7, 7)])
async def test_a_count_of_a_server_that_no_column_can_hold_is_bounded(
    journal_url: str, sent: int, counted: int
) -> None:
    database, call = await Database.connect(journal_url, "default", upgrade=True), f"{uuid.uuid4()}"
    accounts, account = Accounts(database), [Account(f"{call}/o", ())]
    usage = TokenUsage.model_validate_json(f'{{"totalTokens": {sent}}}')
    await accounts.reserve(call, account, Amount(5, model_calls=1))
    await accounts.settle(call, account, Amount(usage.total_tokens, model_calls=1))
    [charge] = await database.run(select(schema.charges).where(schema.charges.c.call == call))
    assert charge.tokens == counted
    await database.close()


async def test_what_is_granted_counts_once_however_often_it_is_written(journal_url: str) -> None:
    database = await Database.connect(journal_url, "default", upgrade=True)
    accounts, account = Accounts(database), [Account("run/g", (("model_calls", 1),), seconds=3600)]
    one = Amount(model_calls=1)
    assert await accounts.reserve("run/a", account, one) is None
    for _ in range(3):
        await accounts.grant("run/g", 0, one, seconds=None)
    assert await accounts.reserve("run/b", account, one) is None
    refused = await accounts.reserve("run/c", account, one)
    assert isinstance(refused, ReachedLimit)
    assert (refused.used, refused.most, refused.grants) == (2, 2, 1)
    await database.close()
