"""The accounts of Quotas: what tenants have used in a period, and which of their runs are open or wait.

Periods are those of the calendar in UTC, by the clock of the database. Unlike the accounts of budgets, these belong to
no run. All transactions lock their rows in the order of the ids, which avoids deadlocks.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Update, and_, delete, func, select, update

from ..resources.quota import QuotaPeriod
from . import schema
from .database import Database
from .rows import database_clock, insert_missing, upsert_wait
from .schema import run_of

MINUTE = 60
"""Seconds."""

MAX_MINUTES = 1_440
"""Minutes ahead of which calls are booked. A call beyond them asks again after an hour."""

LOOK_AHEAD = 30
"""Minutes whose usage is read in one statement."""

AMOUNTS = ("tokens", "cost", "model_calls", "tool_calls")

_accounts = schema.quota_accounts
_charges = schema.charges
_runs = schema.quota_runs
_waits = schema.quota_waits


@dataclass(frozen=True)
class QuotaAccount:
    """The usage of a tenant under a Quota in each period, of one ``model`` or of all.

    ``quota`` is the id of the manifest; ``limits`` are amounts by name. ``waits``: a call that would exceed them waits
    for the next period; otherwise it fails.
    """

    quota: str
    tenant: str
    period: QuotaPeriod
    limits: tuple[tuple[str, int], ...]
    model: str = ""
    waits: bool = True

    def row(self, began: int) -> str:
        """The id of its row for the period that began then; the ids of longer periods come first."""
        text = "\n".join((self.quota, self.tenant, self.period, self.model, f"{began}"))
        rank = 3 if self.period == "minute" and began else 2 if self.period == "minute" else 1
        return f"quota/{rank}{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def values(self, began: int, ends: int) -> dict[str, Any]:
        """A row without usage."""
        return {
            "id": self.row(began),
            "quota": self.quota,
            "tenant": self.tenant,
            "period": self.period,
            "model": self.model,
            "began": began,
            "ends": ends,
            **dict.fromkeys(AMOUNTS, 0),
        }


class ReachedQuota(NamedTuple):
    """Why a call is refused: the limit that it would exceed, the amounts ``used`` and needed, and when the period ends.

    ``ends`` is in seconds since 1970, and ``wait`` the seconds after which the call may be made; None if it needs more
    than the whole limit, so that waiting is of no use.
    """

    account: QuotaAccount
    limit: str
    used: int
    most: int
    needed: int
    ends: int
    wait: float | None


def database_time(connection: Connection) -> float:
    """The seconds since 1970 by the clock of the database."""
    return float(connection.execute(select(database_clock(connection.dialect.name))).scalar_one())


def bounds(period: QuotaPeriod, now: float) -> tuple[int, int]:
    """When the period of a time began, and when it ends."""
    if period == "month":
        begin = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
        return int(begin.timestamp()), int(following.timestamp())
    seconds = MINUTE if period == "minute" else 86_400
    began = int(now) // seconds * seconds
    return began, began + seconds


def charge_quotas(
    connection: Connection,
    quotas: Sequence[QuotaAccount],
    amount: Mapping[str, int],
    booking: str,
    now: float,
) -> ReachedQuota | tuple[str, ...]:
    """Adds the estimate of a call to all accounts; returns the ids of the rows that its usage is settled on.

    If it would exceed a limit, nothing is added, a minute that it has booked is given back, and the limit is returned.
    A call that exceeds the calls of this minute is booked, under the id ``booking``, for the first minute with room:
    when it is made again in that minute, it has its place. Bookings are not settled, as a request counts for the minute
    in which it is sent.
    """
    periods = [account for account in quotas if account.period != "minute"]
    rows = open_rows(connection, periods, now)
    for account, row in zip(periods, rows, strict=True):
        for name, most in account.limits:
            needed = amount[name]
            used = getattr(row, name)
            if needed and used + needed > most:
                wait = row.ends - now if needed <= most else None
                release_bookings(connection, _charges.c.call == booking, now)
                return ReachedQuota(account, name, used, most, needed, row.ends, wait)
    if reached := _book(connection, [account for account in quotas if account.period == "minute"], booking, now):
        return reached
    ids = tuple(row.id for row in rows)
    add_to_quotas(connection, ids, amount)
    return ids


def open_rows(connection: Connection, accounts: Sequence[QuotaAccount], now: float) -> list[Any]:
    """The locked rows of the current periods, in the order of the accounts; they are created if they are missing."""
    if not accounts:
        return []
    values = [account.values(*bounds(account.period, now)) for account in accounts]
    connection.execute(
        insert_missing(connection.dialect.name, _accounts), sorted(values, key=lambda row: str(row["id"]))
    )
    locked = _locked(connection, [row["id"] for row in values])
    return [locked[row["id"]] for row in values]


def add_to_quotas(connection: Connection, rows: Collection[str], amount: Mapping[str, int]) -> None:
    """Adds an amount to rows that the transaction has locked; a negative one is subtracted."""
    more = {name: _accounts.c[name] + value for name, value in amount.items() if value}
    if rows and more:
        connection.execute(update(_accounts).where(_accounts.c.id.in_(rows)).values(**more))


def lock_quotas(connection: Connection, rows: Collection[str]) -> None:
    """Locks rows, before their usage is settled."""
    if rows:
        _locked(connection, rows)


def _locked(connection: Connection, rows: Collection[str]) -> dict[str, Any]:
    wanted = select(_accounts).where(_accounts.c.id.in_(rows)).order_by(_accounts.c.id)
    return {row.id: row for row in connection.execute(wanted.with_for_update())}


def _book(connection: Connection, accounts: Sequence[QuotaAccount], booking: str, now: float) -> ReachedQuota | None:
    """Counts a call in this minute, if it has a place there; else books a minute, and returns why it has to wait."""
    if not accounts:
        return None
    of_call = _charges.c.call == booking
    # One row for all minutes of each account: whoever has it decides alone who gets which minute.
    gates = [account.values(0, 0) for account in accounts]
    _lock_gates(connection, [*gates, *_gates_of(connection, of_call)])
    minute, ends = bounds("minute", now)
    booked = {*connection.execute(select(_charges.c.account).where(of_call)).scalars()}
    begins = _free_minute(connection, accounts, booked, minute)
    if begins is None:
        return _full(connection, accounts, booked, minute, ends, wait=3_600)
    rows = {account.row(begins): account for account in accounts}
    if not booked >= rows.keys():
        _give_back(connection, and_(of_call, _charges.c.account.not_in([*rows])), now)
        connection.execute(delete(_charges).where(of_call))
        values = [account.values(begins, begins + MINUTE) for account in accounts]
        connection.execute(insert_missing(connection.dialect.name, _accounts), values)
        add_to_quotas(connection, rows.keys() - booked, {"model_calls": 1})
        booked = set()
    if begins == minute:
        connection.execute(delete(_charges).where(of_call))
        return None
    if not booked:
        amounts = {**dict.fromkeys(AMOUNTS, 0), "model_calls": 1}
        charges = [{"call": booking, "account": row, "settled": True, **amounts} for row in rows]
        connection.execute(_charges.insert(), charges)
    return _full(connection, accounts, booked, minute, ends, wait=begins - now)


def release_bookings(connection: Connection, calls: ColumnElement[bool], now: float | None = None) -> None:
    """Gives back the minutes that calls have booked and will not need: ``calls`` is a condition for their charges.

    A minute that has begun stays counted, as the call may have been sent in it. Of two releases, one gives back.
    """
    gates = _gates_of(connection, calls)
    if gates:
        _lock_gates(connection, gates)  # else a call could take a place that is given back at the same time
        _give_back(connection, calls, database_time(connection) if now is None else now)


def _gates_of(connection: Connection, calls: ColumnElement[bool]) -> list[dict[str, Any]]:
    """The rows to lock before the bookings of calls change."""
    columns = _accounts.c.quota, _accounts.c.tenant, _accounts.c.model
    minutes = select(*columns).join(_charges, _charges.c.account == _accounts.c.id)
    booked = connection.execute(minutes.where(calls, _accounts.c.period == "minute").distinct()).all()
    return [QuotaAccount(row.quota, row.tenant, "minute", (), model=row.model).values(0, 0) for row in booked]


def _give_back(connection: Connection, calls: ColumnElement[bool], now: float) -> None:
    """Deletes bookings of minutes that have not begun, whose gates are locked, and subtracts what was deleted."""
    later = select(_accounts.c.id).where(_accounts.c.period == "minute", _accounts.c.began > now)
    booked = delete(_charges).where(calls, _charges.c.account.in_(later)).returning(_charges.c.account)
    for row, places in Counter(connection.execute(booked).scalars()).items():
        add_to_quotas(connection, [row], {"model_calls": -places})


def _full(
    connection: Connection,
    accounts: Sequence[QuotaAccount],
    booked: Collection[str],
    minute: int,
    ends: int,
    wait: float,
) -> ReachedQuota:
    """The account under which a call has no place in this minute."""
    used = _used(connection, [account.row(minute) for account in accounts])
    full = next(account for account in accounts if not _has_place(account, minute, booked, used))
    most = full.limits[0][1]
    return ReachedQuota(full, "model_calls", most, most, 1, ends, wait)


def _used(connection: Connection, rows: Collection[str]) -> dict[str, int]:
    """The calls that are counted in each of these rows."""
    wanted = select(_accounts.c.id, _accounts.c.model_calls).where(_accounts.c.id.in_(rows))
    return {row.id: row.model_calls for row in connection.execute(wanted)}


def _has_place(account: QuotaAccount, minute: int, booked: Collection[str], used: Mapping[str, int]) -> bool:
    row = account.row(minute)
    return row in booked or used.get(row, 0) < account.limits[0][1]


def _lock_gates(connection: Connection, gates: Iterable[Mapping[str, Any]]) -> None:
    """Locks rows that have no usage, in the order of their ids; they are created if they are missing."""
    by_id = {row["id"]: row for row in sorted(gates, key=lambda row: str(row["id"]))}
    if by_id:
        connection.execute(insert_missing(connection.dialect.name, _accounts), [*by_id.values()])
        _locked(connection, by_id.keys())


def _free_minute(
    connection: Connection, accounts: Sequence[QuotaAccount], booked: Collection[str], first: int
) -> int | None:
    """The begin of the first minute in which a call has a place under all accounts; None if there is none for a day.

    A place that the call has ``booked`` in this or a later minute is its own. One in an earlier minute has expired.
    """
    for start in range(first, first + MAX_MINUTES * MINUTE, LOOK_AHEAD * MINUTE):
        minutes = range(start, start + LOOK_AHEAD * MINUTE, MINUTE)
        used = _used(connection, [account.row(minute) for minute in minutes for account in accounts])
        for minute in minutes:
            if all(_has_place(account, minute, booked, used) for account in accounts):
                return minute
    return None


def delete_ended_periods(connection: Connection, most: int) -> int:
    """Deletes at most so many periods that ended a day ago or earlier, and returns their number."""
    ended = _accounts.c.ends.between(1, int(database_time(connection)) - 86_400)
    ids = connection.execute(select(_accounts.c.id).where(ended).limit(most)).scalars().all()
    connection.execute(delete(_accounts).where(_accounts.c.id.in_(ids)))
    return len(ids)


@dataclass(frozen=True)
class RunLimit:
    """How many runs of a tenant may be open under a Quota."""

    quota: str
    tenant: str
    most: int

    @property
    def id(self) -> str:
        """Its id in the table of runs."""
        return hashlib.sha256(f"{self.quota}\n{self.tenant}".encode()).hexdigest()[:32]

    @property
    def gate(self) -> dict[str, Any]:
        """The row that a transaction locks to admit runs, or to note that some have ended."""
        return QuotaAccount(self.quota, self.tenant, "minute", (), model="\nruns").values(0, 0)


class WaitingRun(NamedTuple):
    """A run waits for others to end: the limit, the number of open runs, and of those that wait ``before`` it."""

    limit: RunLimit
    open: int
    before: int


class KnownRun(NamedTuple):
    """A run that is open or waits, by the table: its first run id and its workflow id."""

    run: str
    workflow: str


ENDED = -1
"""The number of a run that has ended, until those that may be next were woken."""


class Admissions:
    """The open runs of tenants whose number is limited, and those that wait, in the order in which they have asked.

    They are counted for each Temporal namespace: only its own workers can find out that a run has ended, or wake one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def admit(self, limits: Sequence[RunLimit], run: KnownRun) -> WaitingRun | None:
        """Admits a run under all limits, or none; returns why it waits. A run that is admitted already stays so.

        A run waits for one limit after the other, in their order, and keeps its places: one that waits for the limit of
        its account delays no others of its namespace.
        """

        def execute(connection: Connection) -> WaitingRun | None:
            _lock_gates(connection, [limit.gate for limit in limits])
            own = _runs.c.run == run.run
            for index, limit in enumerate(limits):
                if waiting := self._wait(connection, limit, run):
                    others = [other.id for other in limits if other is not limit]
                    connection.execute(delete(_runs).where(own, _runs.c.quota.in_(others), _runs.c.number > 0))
                    for earlier in limits[:index]:  # as open: a place that becomes free there is for another run
                        self._insert(connection, earlier, run, number=0)
                    last = connection.execute(select(func.max(_runs.c.number)).where(self._here(limit.id))).scalar()
                    self._insert(connection, limit, run, number=(last or 0) + 1)
                    return waiting
            connection.execute(delete(_runs).where(own))  # also the places under limits that there are no more
            for limit in limits:
                self._insert(connection, limit, run, number=0)
            return None

        return await self._database.transact(execute)

    def _wait(self, connection: Connection, limit: RunLimit, run: KnownRun) -> WaitingRun | None:
        """None if the limit has room for the run."""
        here = self._here(limit.id)
        own = connection.execute(select(_runs.c.number).where(here, _runs.c.run == run.run)).scalar()
        if own == 0:
            return None
        admitted = select(func.count()).where(here, _runs.c.number == 0)
        ahead = select(func.count()).where(here, _runs.c.number > 0)
        if own:
            ahead = ahead.where(_runs.c.number < own)
        opened = connection.execute(admitted).scalar_one()
        before = connection.execute(ahead).scalar_one()
        return None if opened + before < limit.most else WaitingRun(limit, opened, before)

    def _here(self, quota: str) -> ColumnElement[bool]:
        """The runs of a limit in this Temporal namespace."""
        return and_(_runs.c.quota == quota, _runs.c.temporal_namespace == self._database.namespace)

    def _insert(self, connection: Connection, limit: RunLimit, run: KnownRun, number: int) -> None:
        """Adds a run, unless it has a place already."""
        row = {
            "quota": limit.id,
            "run": run.run,
            "temporal_namespace": self._database.namespace,
            "workflow": run.workflow,
            "number": number,
            "tenant": limit.tenant,
            "manifest": limit.quota,
        }
        connection.execute(insert_missing(connection.dialect.name, _runs), [row])

    async def release(self, runs: Collection[str]) -> list[KnownRun]:
        """Notes that runs have ended, and returns those that may be next: one for each place that has become free.

        It returns them again until ``forget`` is called: whoever is to wake them may be killed before that.
        """

        def execute(connection: Connection) -> list[KnownRun]:
            ended = _runs.c.run.in_(runs)
            rows = connection.execute(select(_runs.c.quota, _runs.c.tenant, _runs.c.manifest).where(ended)).all()
            # A run that is about to wait, whose place in the queue is not visible yet, would not be woken.
            _lock_gates(connection, [RunLimit(row.manifest, row.tenant, most=0).gate for row in rows])
            connection.execute(update(_runs).where(ended).values(number=ENDED))
            following: list[KnownRun] = []
            for quota in sorted({row.quota for row in rows}):
                waiting = select(_runs.c.run, _runs.c.workflow).where(self._here(quota), _runs.c.number > 0)
                places = sum(row.quota == quota for row in rows)
                following += _known(connection.execute(waiting.order_by(_runs.c.number).limit(places)))
            return following

        return await self._database.transact(execute)

    async def forget(self, runs: Collection[str]) -> None:
        """Deletes runs that have ended, after those that may be next were woken."""
        await self._database.run(delete(_runs).where(_runs.c.run.in_(runs), _runs.c.number == ENDED))

    async def to_check(self, limit: RunLimit, most: int) -> list[KnownRun]:
        """Runs that keep others waiting: open ones, each time others if there are many, and the first to wait."""
        wanted = select(_runs.c.run, _runs.c.workflow).where(self._here(limit.id))
        return _known(await self._database.run(wanted.order_by(_runs.c.number, func.random()).limit(most)))


def _known(rows: Iterable[Any]) -> list[KnownRun]:
    return [KnownRun(row.run, row.workflow) for row in rows]


class QuotaWait(NamedTuple):
    """A ``run`` that would wait for a Quota of its ``tenant`` (NAMESPACE/ACCOUNT).

    ``quotas`` is the digest of these Quotas, as the workers of the ``task_queue`` in a Temporal namespace have them.
    """

    run: KnownRun
    tenant: str
    quotas: str
    temporal_namespace: str
    task_queue: str

    def note(self, connection: Connection, seconds: float) -> None:
        """Records that the run waits for so many seconds at most, before it asks again by itself."""
        row = {
            "run": self.run.run,
            "quotas": self.quotas,
            "temporal_namespace": self.temporal_namespace,
            "task_queue": self.task_queue,
            "workflow": self.run.workflow,
            "tenant": self.tenant,
            "until": int(database_time(connection) + seconds) + 1,
            "told": self.quotas,
        }
        connection.execute(upsert_wait(connection.dialect.name, row))


Digests = tuple[str, str]
"""The digests of the Quotas with which runs began to wait, and of those of which they were told last."""


class QuotaWaits:
    """The runs that wait for a Quota, of the workers of a task queue."""

    def __init__(self, database: Database, task_queue: str) -> None:
        self._database = database
        self._here = and_(
            _waits.c.temporal_namespace == database.namespace,
            _waits.c.task_queue == task_queue,
        )

    async def note(self, wait: QuotaWait, seconds: float) -> None:
        """Records that a run waits for so many seconds at most, before it asks again by itself."""
        await self._database.write(lambda connection: wait.note(connection, seconds), atomic=False)

    async def tenants(self) -> dict[str, set[Digests]]:
        """The tenants of runs that wait, each with what its runs have been told. Raises JournalUnavailable."""

        def read(connection: Connection) -> dict[str, set[Digests]]:
            now = int(database_time(connection))
            kinds = _waits.c.tenant, _waits.c.quotas, _waits.c.told
            ends = select(*kinds, func.min(_waits.c.until).label("first")).where(self._here)
            rows = connection.execute(ends.group_by(*kinds)).all()
            if any(row.first < now for row in rows):
                connection.execute(delete(_waits).where(self._here, _waits.c.until < now))
            tenants: dict[str, set[Digests]] = {}
            for row in rows:
                tenants.setdefault(row.tenant, set()).add((row.quotas, row.told))
            return tenants

        return await self._database.engine.run(read)

    async def to_check(self, most: int) -> list[str]:
        """The ids of some runs that wait, each time others if there are many. Raises JournalUnavailable."""
        wanted = select(_waits.c.run).where(self._here).distinct().subquery()
        some = select(wanted.c.run).order_by(func.random()).limit(most)
        return await self._database.engine.run(lambda connection: [*connection.execute(some).scalars()])

    async def release(self, runs: Collection[str]) -> None:
        """Notes that runs have ended: they wait no longer, and others get the minutes that their calls have booked."""

        def execute(connection: Connection) -> None:
            release_bookings(connection, run_of(_charges.c.call).in_(runs))
            connection.execute(delete(_waits).where(_waits.c.run.in_(runs)))

        if runs:
            await self._database.transact(execute)

    async def to_tell(self, tenant: str, quotas: str) -> list[KnownRun]:
        """The runs that began to wait when the tenant had other Quotas than now, which have the digest ``quotas``.

        Those that any worker has ``told`` of these Quotas are left out: if workers have different manifests, one would
        tell a run again and again, and another refuse it. Raises JournalUnavailable.
        """
        changed = self._of(tenant), _waits.c.quotas != quotas, _waits.c.told != quotas
        wanted = select(_waits.c.run, _waits.c.workflow).where(*changed)
        rows = await self._database.engine.run(lambda connection: connection.execute(wanted).all())
        return [*dict.fromkeys(_known(rows))]

    async def note_told(self, tenant: str, quotas: str, runs: Collection[KnownRun]) -> None:
        """Notes that runs were told of these Quotas: after that, as whoever tells them may be killed before."""
        told = _waits.c.run.in_([run.run for run in runs]), _waits.c.quotas != quotas
        await self._update(update(_waits).where(self._of(tenant), *told).values(told=quotas))

    async def note_new(self, tenant: str, quotas: Collection[str]) -> None:
        """Notes that Quotas are new, or apply again: the runs that wait with them were told of no later ones."""
        again = self._of(tenant), _waits.c.quotas.in_(quotas), _waits.c.told != _waits.c.quotas
        await self._update(update(_waits).where(*again).values(told=_waits.c.quotas))

    def _of(self, tenant: str) -> ColumnElement[bool]:
        return and_(self._here, _waits.c.tenant == tenant)

    async def _update(self, statement: Update) -> None:
        await self._database.engine.write(lambda connection: connection.execute(statement))
