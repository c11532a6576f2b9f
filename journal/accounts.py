"""The accounts of budgets: what was used under each, with what is reserved for calls under way.

A call is charged to all accounts at once, under its id, in one transaction. So what runs at the same time can't spend
the same twice, and an attempt that is tried again is not charged again.
"""

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from sqlalchemy import Connection, Table, delete, select, update

from . import schema
from .database import Database
from .rows import insert_missing


@dataclass(frozen=True)
class Amount:
    """What a call uses; ``cost`` in billionths of a US dollar."""

    tokens: int = 0
    cost: int = 0
    model_calls: int = 0
    tool_calls: int = 0

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))


AMOUNTS = tuple(field.name for field in fields(Amount))


@dataclass(frozen=True)
class Account:
    """An account and its limits: of amounts by their names, and in seconds after its first call."""

    id: str
    limits: tuple[tuple[str, int], ...]
    seconds: float | None = None


@dataclass(frozen=True)
class ReachedLimit:
    """Why a call may not begin: the account, its limit that the call would exceed, and what was used until now.

    ``grants`` is how often more was granted; ``most`` is the limit with that.
    """

    account: Account
    limit: str
    used: int
    grants: int
    most: int


class Accounts:
    """The accounts in the journal's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, call: str, accounts: Sequence[Account], amount: Amount) -> ReachedLimit | None:
        """Charges an estimate of a call to all accounts; if one would exceed a limit, to none, and says which.

        A call that is charged already is neither charged again nor refused.
        """
        return await self._database.transact(lambda connection: _reserve(connection, call, accounts, amount))

    async def settle(self, call: str, accounts: Sequence[Account], amount: Amount | None) -> None:
        """Replaces the estimate by what the call has used; None if it has used nothing, and may be charged again.

        What is used is charged once, also if another attempt has settled the call with None meanwhile.
        """
        await self._database.transact(lambda connection: _settle(connection, call, accounts, amount))

    async def grant(self, account: str, number: int, amount: Amount, seconds: float | None) -> None:
        """Grants more to an account, for a time from now; the grant of a ``number`` counts once."""
        row = {"account": account, "number": number, "until": int(time.time() + (seconds or 0)), **vars(amount)}

        def insert(connection: Connection) -> None:
            connection.execute(insert_missing(connection.dialect.name, schema.grants), [row])

        await self._database.transact(insert)


def _reserve(connection: Connection, call: str, accounts: Sequence[Account], amount: Amount) -> ReachedLimit | None:
    now = time.time()
    new = [{"id": each.id, "began": int(now), **vars(Amount())} for each in sorted(accounts, key=lambda each: each.id)]
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
    """The rows of what people have granted to accounts, by the accounts' ids."""
    grants: dict[str, list[Any]] = {}
    ids = [account.id for account in accounts]
    for row in connection.execute(select(schema.grants).where(schema.grants.c.account.in_(ids))):
        grants.setdefault(row.account, []).append(row)
    return grants


def _settle(connection: Connection, call: str, accounts: Sequence[Account], amount: Amount | None) -> None:
    kept = _locked(connection, accounts)
    charges = _charges(connection, call)
    if charges and charges[0].settled:
        return
    estimate = Amount(*(getattr(charges[0], name) for name in AMOUNTS)) if charges else Amount()
    connection.execute(delete(schema.charges).where(schema.charges.c.call == call))
    if amount is not None:  # also if there is no charge: another attempt, which has failed, has taken it back
        _charge(connection, call, [each for each in accounts if each.id in kept], amount, settled=True)
    _add(connection, accounts, (amount or Amount()) - estimate)


def _charge(connection: Connection, call: str, accounts: Sequence[Account], amount: Amount, *, settled: bool) -> None:
    charges = [{"call": call, "account": each.id, "settled": settled, **vars(amount)} for each in accounts]
    if charges:
        connection.execute(schema.charges.insert(), charges)


def _locked(connection: Connection, accounts: Sequence[Account]) -> dict[str, Any]:
    """The rows of accounts, which no other transaction can change meanwhile; locked in one order by all."""
    table = schema.accounts
    wanted = select(table).where(table.c.id.in_([each.id for each in accounts])).order_by(table.c.id)
    return {row.id: row for row in connection.execute(wanted.with_for_update())}


def _charges(connection: Connection, call: str) -> Sequence[Any]:
    return connection.execute(select(schema.charges).where(schema.charges.c.call == call)).all()


def _add(connection: Connection, accounts: Sequence[Account], amount: Amount) -> None:
    table: Table = schema.accounts
    more = {name: table.c[name] + value for name, value in vars(amount).items() if value}
    if more:
        connection.execute(update(table).where(table.c.id.in_([each.id for each in accounts])).values(**more))
