"""The accounts of budgets: the amounts used, including those reserved for calls in progress.

A call is charged to all its accounts, under its id, in the transaction in which its lease is acquired. So concurrent
calls can't spend the same amount twice, and a call that was sent stays charged, regardless of its outcome.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from sqlalchemy import Connection, Table, delete, select, update

from ..contracts.errors import BatonError
from ..contracts.message import TokenUsage
from ..resources.budget import NANO
from . import schema
from .database import Database
from .quotas import (
    QuotaAccount,
    QuotaWait,
    ReachedQuota,
    add_to_quotas,
    charge_quotas,
    database_time,
    lock_quotas,
    open_rows,
    release_bookings,
)
from .rows import insert_missing
from .schema import run_of


@dataclass(frozen=True)
class Amount:
    """The amounts that a call uses; ``cost`` in billionths of a US dollar."""

    tokens: int = 0
    cost: int = 0
    model_calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))


AMOUNTS = tuple(field.name for field in fields(Amount))

QUOTA = "quota/"
"""The beginning of the ids of rows that Quotas have."""


@dataclass(frozen=True)
class Account:
    """An account and its limits: amounts by name, and seconds after its first call."""

    id: str
    limits: tuple[tuple[str, int], ...]
    seconds: float | None = None


@dataclass(frozen=True)
class ReachedLimit:
    """Why a call is refused: the account, the limit that the call would exceed, and the amount used so far.

    ``grants`` is the number of grants, and ``most`` the limit with the granted amounts added.
    """

    account: Account
    limit: str
    used: int
    grants: int
    most: int


@dataclass(frozen=True)
class Charge:
    """The amount that a call reserves on accounts of budgets and of Quotas.

    ``refusal`` creates the error if a limit would be exceeded. ``per_sending``: the call is charged for every request
    that is sent. Otherwise it is charged once. ``quota_wait``: the run of a call that is to wait for a Quota.
    """

    accounts: tuple[Account, ...]
    amount: Amount
    refusal: Callable[["Reached"], BatonError]
    per_sending: bool
    quotas: tuple[QuotaAccount, ...] = ()
    quota_wait: QuotaWait | None = None

    def reserve(self, connection: Connection, call: str, epoch: int) -> "Reached | None":
        """Charges the estimate for the holder of a call's lease; returns the limit that refuses the call."""
        reached = reserve(
            connection,
            self.id_of(call, epoch),
            self.accounts,
            self.amount,
            quotas=self.quotas,
            booking=f"{call}/0",  # epochs count from 1
        )
        if isinstance(reached, ReachedQuota) and reached.wait and reached.account.waits and self.quota_wait:
            self.quota_wait.note(connection, reached.wait)
        return reached

    def settle(self, connection: Connection, call: str, epoch: int, amount: Amount | None) -> None:
        """Replaces the estimate by the amount used; None if the call was not sent."""
        settle(connection, self.id_of(call, epoch), self.accounts, amount, quotas=self.quotas)

    def id_of(self, call: str, epoch: int) -> str:
        """The id of the charge for the holder of a call's lease."""
        return f"{call}/{epoch}" if self.per_sending else call


Reached = ReachedLimit | ReachedQuota


def amount_of(usage: TokenUsage) -> Amount:
    """The amounts that a model call has used."""
    return Amount(tokens=usage.total_tokens, cost=round((usage.cost or 0) * NANO), model_calls=1)


class Accounts:
    """The accounts in the journal's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def grant(self, account: str, number: int, amount: Amount, seconds: float | None) -> None:
        """Grants an additional amount and time to an account; a grant with the same ``number`` counts once."""

        def insert(connection: Connection) -> None:
            until = int(database_time(connection) + (seconds or 0))
            row = {"account": account, "number": number, "until": until, **vars(amount)}
            connection.execute(insert_missing(connection.dialect.name, schema.grants), [row])

        await self._database.transact(insert)

    async def fork(self, old: str, new: str, call: str, belongs: Callable[[str], bool]) -> None:
        """Charges to the accounts of the run ``new`` what calls have spent from those of the run ``old``.

        ``belongs`` chooses these calls by their ids. The sum is charged once, as the ``call``.
        """

        def copy(connection: Connection) -> None:
            charges = schema.charges.c
            spent: dict[str, Amount] = {}
            for row in connection.execute(select(schema.charges).where(run_of(charges.account) == old)):
                if belongs(row.call):
                    owner = row.account[len(old) + 1 :]
                    spent[owner] = spent.get(owner, Amount()) + _amount_in(row)
            _carry_over(connection, new, call, spent)

        await self._database.transact(copy)

    async def carry_over(self, new: str, call: str, spent: Mapping[str, Amount]) -> None:
        """Charges to the accounts of the run ``new`` what was spent of these owners' budgets, once, as the ``call``."""
        await self._database.transact(lambda connection: _carry_over(connection, new, call, spent))

    async def carried_over(self, call: str) -> dict[str, Amount]:
        """What ``fork`` has charged as the ``call``, by the owners of the budgets."""
        rows = await self._database.run(select(schema.charges).where(schema.charges.c.call == call))
        return {row.account.partition("/")[2]: _amount_in(row) for row in rows}


def _amount_in(row: Any) -> Amount:
    return Amount(*(getattr(row, name) for name in AMOUNTS))


def _carry_over(connection: Connection, new: str, call: str, spent: Mapping[str, Amount]) -> None:
    if _charges(connection, call):
        return
    now = int(database_time(connection))
    for owner, amount in spent.items():
        account = f"{new}/{owner}"
        values = {"id": account, "began": now, **vars(Amount())}
        connection.execute(insert_missing(connection.dialect.name, schema.accounts), [values])
        own = [Account(id=account, limits=())]
        _locked(connection, own)
        _charge(connection, call, [account], amount, settled=True)
        _add(connection, own, amount)


def reserve(
    connection: Connection,
    call: str,
    accounts: Sequence[Account],
    amount: Amount,
    *,
    quotas: Sequence[QuotaAccount] = (),
    booking: str = "",
    now: float | None = None,
) -> Reached | None:
    """Charges the estimate of a call to all accounts, or to none if it would exceed a limit, which is returned.

    A call that is already charged is neither charged again nor refused. ``now`` is the time by which durations are
    measured and the periods of ``quotas`` are chosen, by default that of the database, and ``booking`` the id under
    which the call books a minute.
    """
    now = database_time(connection) if now is None else now
    new = [
        {"id": account.id, "began": int(now), **vars(Amount())}
        for account in sorted(accounts, key=lambda account: account.id)
    ]
    if new:
        connection.execute(insert_missing(connection.dialect.name, schema.accounts), new)
    used = _locked(connection, accounts)
    if _charges(connection, call):
        return None
    granted = _granted(connection, accounts)
    for account in accounts:
        if refused := _refused(account, used[account.id], granted.get(account.id, ()), amount, now):
            release_bookings(connection, schema.charges.c.call == booking, now)
            return refused
    rows: tuple[str, ...] = ()
    if quotas:
        charged = charge_quotas(connection, quotas, vars(amount), booking, now)
        if isinstance(charged, ReachedQuota):
            return charged
        rows = charged
    _charge(connection, call, [*(account.id for account in accounts), *rows], amount, settled=False)
    _add(connection, accounts, amount)
    return None


def settle(
    connection: Connection,
    call: str,
    accounts: Sequence[Account],
    amount: Amount | None,
    *,
    quotas: Sequence[QuotaAccount] = (),
    now: float | None = None,
) -> None:
    """Replaces the estimate by the amount used; None if the call was not sent and may be charged again.

    The amount is charged once, even if the call was settled with None meanwhile. Of ``quotas``, the periods for which
    the estimate was charged are settled.
    """
    locked = _locked(connection, accounts)
    charges = _charges(connection, call)
    if charges and charges[0].settled:
        return
    rows = [row.account for row in charges if row.account.startswith(QUOTA)]
    if amount is not None and not charges:
        now = database_time(connection) if quotas and now is None else now or 0
        periods = [account for account in quotas if account.period != "minute"]
        rows = [row.id for row in open_rows(connection, periods, now)]
    lock_quotas(connection, rows)
    estimate = Amount(*(getattr(charges[0], name) for name in AMOUNTS)) if charges else Amount()
    connection.execute(delete(schema.charges).where(schema.charges.c.call == call))
    if amount is not None:
        of_runs = [account.id for account in accounts if account.id in locked]
        _charge(connection, call, [*of_runs, *rows], amount, settled=True)
    more = (amount or Amount()) - estimate
    _add(connection, accounts, more)
    add_to_quotas(connection, rows, vars(more))


def _refused(account: Account, used: Any, grants: Sequence[Any], amount: Amount, now: float) -> ReachedLimit | None:
    until = max((grant.until for grant in grants), default=0)
    if account.seconds is not None and now >= max(until, used.began + account.seconds):
        return ReachedLimit(
            account=account,
            limit="duration",
            used=int(now - used.began),
            grants=len(grants),
            most=int(account.seconds),
        )
    for name, limit in account.limits:
        estimate = getattr(amount, name)
        before = getattr(used, name)
        most = limit + sum(getattr(grant, name) for grant in grants)
        if estimate and before + estimate > most:
            return ReachedLimit(account=account, limit=name, used=before, grants=len(grants), most=most)
    return None


def _granted(connection: Connection, accounts: Sequence[Account]) -> dict[str, list[Any]]:
    """The rows of people's grants to accounts, by account id."""
    grants: dict[str, list[Any]] = {}
    if not accounts:
        return grants
    ids = [account.id for account in accounts]
    for row in connection.execute(select(schema.grants).where(schema.grants.c.account.in_(ids))):
        grants.setdefault(row.account, []).append(row)
    return grants


def _charge(connection: Connection, call: str, accounts: Sequence[str], amount: Amount, *, settled: bool) -> None:
    charges = [{"call": call, "account": account, "settled": settled, **vars(amount)} for account in accounts]
    if charges:
        connection.execute(schema.charges.insert(), charges)


def _locked(connection: Connection, accounts: Sequence[Account]) -> dict[str, Any]:
    """The locked rows of accounts. All transactions lock in the same order, which avoids deadlocks."""
    if not accounts:
        return {}
    table = schema.accounts
    wanted = select(table).where(table.c.id.in_([account.id for account in accounts])).order_by(table.c.id)
    return {row.id: row for row in connection.execute(wanted.with_for_update())}


def _charges(connection: Connection, call: str) -> Sequence[Any]:
    return connection.execute(select(schema.charges).where(schema.charges.c.call == call)).all()


def _add(connection: Connection, accounts: Sequence[Account], amount: Amount) -> None:
    table: Table = schema.accounts
    more = {name: table.c[name] + value for name, value in vars(amount).items() if value}
    if more and accounts:
        connection.execute(update(table).where(table.c.id.in_([account.id for account in accounts])).values(**more))
