"""The accounts of budgets: the amounts used, including those reserved for calls in progress.

A call is charged to all its accounts, under its id, in the transaction in which its lease is acquired. So concurrent
calls can't spend the same amount twice, and a call that was sent stays charged, regardless of its outcome.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from sqlalchemy import Connection, Table, delete, select, update

from ..contracts.errors import BatonError
from ..contracts.message import TokenUsage
from ..resources.budget import NANO
from . import schema
from .database import Database
from .rows import insert_missing


@dataclass(frozen=True)
class Amount:
    """The amounts that a call uses; ``cost`` in billionths of a US dollar."""

    tokens: int = 0
    cost: int = 0
    model_calls: int = 0
    tool_calls: int = 0

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))


AMOUNTS = tuple(field.name for field in fields(Amount))


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
    """The amount that a call reserves on accounts; ``refusal`` creates the error if a limit would be exceeded.

    ``per_sending``: the call is charged for every request that is sent. Otherwise it is charged once.
    """

    accounts: tuple[Account, ...]
    amount: Amount
    refusal: Callable[[ReachedLimit], BatonError]
    per_sending: bool

    def id_of(self, call: str, epoch: int) -> str:
        """The id of the charge for the holder of a call's lease."""
        return f"{call}/{epoch}" if self.per_sending else call


def amount_of(usage: TokenUsage) -> Amount:
    """The amounts that a model call has used."""
    return Amount(tokens=usage.total_tokens, cost=round((usage.cost or 0) * NANO), model_calls=1)


class Accounts:
    """The accounts in the journal's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def grant(self, account: str, number: int, amount: Amount, seconds: float | None) -> None:
        """Grants an additional amount and time to an account; a grant with the same ``number`` counts once."""
        row = {"account": account, "number": number, "until": int(time.time() + (seconds or 0)), **vars(amount)}

        def insert(connection: Connection) -> None:
            connection.execute(insert_missing(connection.dialect.name, schema.grants), [row])

        await self._database.transact(insert)


def reserve(connection: Connection, call: str, accounts: Sequence[Account], amount: Amount) -> ReachedLimit | None:
    """Charges the estimate of a call to all accounts, or to none if it would exceed a limit, which is returned.

    A call that is already charged is neither charged again nor refused.
    """
    now = time.time()
    new = [
        {"id": account.id, "began": int(now), **vars(Amount())}
        for account in sorted(accounts, key=lambda account: account.id)
    ]
    connection.execute(insert_missing(connection.dialect.name, schema.accounts), new)
    used = _locked(connection, accounts)
    if _charges(connection, call):
        return None
    granted = _granted(connection, accounts)
    for account in accounts:
        if refused := _refused(account, used[account.id], granted.get(account.id, ()), amount, now):
            return refused
    _charge(connection, call, accounts, amount, settled=False)
    _add(connection, accounts, amount)
    return None


def settle(connection: Connection, call: str, accounts: Sequence[Account], amount: Amount | None) -> None:
    """Replaces the estimate by the amount used; None if the call was not sent and may be charged again.

    The amount is charged once, even if the call was settled with None meanwhile.
    """
    locked = _locked(connection, accounts)
    charges = _charges(connection, call)
    if charges and charges[0].settled:
        return
    estimate = Amount(*(getattr(charges[0], name) for name in AMOUNTS)) if charges else Amount()
    connection.execute(delete(schema.charges).where(schema.charges.c.call == call))
    if amount is not None:
        _charge(connection, call, [account for account in accounts if account.id in locked], amount, settled=True)
    _add(connection, accounts, (amount or Amount()) - estimate)


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
    ids = [account.id for account in accounts]
    for row in connection.execute(select(schema.grants).where(schema.grants.c.account.in_(ids))):
        grants.setdefault(row.account, []).append(row)
    return grants


def _charge(connection: Connection, call: str, accounts: Sequence[Account], amount: Amount, *, settled: bool) -> None:
    charges = [{"call": call, "account": account.id, "settled": settled, **vars(amount)} for account in accounts]
    if charges:
        connection.execute(schema.charges.insert(), charges)


def _locked(connection: Connection, accounts: Sequence[Account]) -> dict[str, Any]:
    """The locked rows of accounts. All transactions lock in the same order, which avoids deadlocks."""
    table = schema.accounts
    wanted = select(table).where(table.c.id.in_([account.id for account in accounts])).order_by(table.c.id)
    return {row.id: row for row in connection.execute(wanted.with_for_update())}


def _charges(connection: Connection, call: str) -> Sequence[Any]:
    return connection.execute(select(schema.charges).where(schema.charges.c.call == call)).all()


def _add(connection: Connection, accounts: Sequence[Account], amount: Amount) -> None:
    table: Table = schema.accounts
    more = {name: table.c[name] + value for name, value in vars(amount).items() if value}
    if more:
        connection.execute(update(table).where(table.c.id.in_([account.id for account in accounts])).values(**more))
