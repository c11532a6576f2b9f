"""The leases of calls that cost money or have effects: only one attempt at a time, on any worker, makes a call.

A call has one record in the journal, under the id of its row. The attempt that makes the call holds its lease, which is
valid as long as its worker renews the worker's own row. Other attempts wait until the call is answered or abandoned, or
until the lease has expired: then one of them takes the call over.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, bindparam, delete, func, select, update

from ..contracts.errors import BatonError, JournalUnavailable, LeaseLost, OutcomeUnknown
from ..contracts.message import TokenUsage
from ..contracts.settings import private_file
from . import schema
from .accounts import Charge, Reached, amount_of
from .database import Database
from .engine import Work
from .rows import insert_missing, upsert_worker

LEASE_SECONDS = 10.0
"""Seconds without a renewal after which another attempt takes over a worker's calls."""

RENEW_SECONDS = 1.0
"""Seconds between two renewals of a worker that holds leases."""

IDLE_SECONDS = 10.0
"""Seconds for which a worker without leases keeps renewing, so that its next call needs no additional write."""

POLL_SECONDS = (0.05, 0.5)
"""The initial and the maximum seconds between two polls of a waiting attempt."""

MAX_GAP = 2.0
"""Seconds between two polls after which the wait restarts: the journal or the polling worker was unavailable."""

FORGET_SECONDS = 86_400
"""Seconds without a renewal after which the row of a worker is deleted."""

ID_LENGTH = 16
"""Characters of a worker's id."""

_calls = schema.calls
_workers = schema.workers

# Statements of every call are built once: building one takes longer than SQLite needs to execute it.
_ANSWERED = update(_calls).where(_calls.c.id == bindparam("call")).values(owner="", state="answered")
_RECORD = select(_calls.c.owner, _calls.c.epoch, _calls.c.state).where(_calls.c.id == bindparam("call"))


@dataclass(frozen=True)
class _Record:
    """The record of a call; ``renewed`` is when its owner's worker last renewed, None if the worker has no row."""

    owner: str
    epoch: int
    state: str
    renewed: int | None = None

    @classmethod
    def of(cls, row: Any) -> Self:
        """The record in a row of a SELECT."""
        return cls(**row._mapping)


class Lease:
    """The right to make one call. Its writes to the journal are rejected once another worker has the lease.

    ``is_answered``: the journal already has the answer. ``was_sent``: an earlier holder has sent the call, with an
    unknown outcome. ``is_held``: the block of ``Leases.hold`` runs, and the call may be sent.
    """

    def __init__(
        self, database: Database, call: str, record: _Record, charge: Charge | None, *, was_sent: bool, sent: bool
    ) -> None:
        self._database = database
        self._record = record
        self._charge = charge
        self._sent = sent
        self.call = call
        self.is_answered = record.state == "answered"
        self.was_sent = was_sent
        self.is_held = not self.is_answered

    @property
    def is_charged(self) -> bool:
        """Whether the answer settles the reserved amount, in the same transaction."""
        return self._charge is not None and self._charge.per_sending and (self._sent or not self.was_sent)

    async def send_once(self, what: str) -> None:
        """Records the sending of a call that must not be repeated. Raises OutcomeUnknown, and the errors of ``send``.

        Await it right before the call.
        """
        if self.was_sent:
            raise OutcomeUnknown(f"{what} was started before and interrupted; whether it was executed is unknown")
        await self.send()

    async def send(self) -> None:
        """Records that the call is sent now. If ``was_sent``, it is sent, and charged, again.

        Raises LeaseLost if another worker has taken the call over, and the charge's ``refusal``.
        """
        if self._sent:
            return
        if not self.is_held:
            raise LeaseMissing(f"{self.call} can't be sent without the lease of the call")
        charge = self._charge if self.was_sent else None  # otherwise it was charged with the lease
        refused = await self._database.write(partial(self._send, charge), atomic=charge is not None)
        if charge and refused:
            raise charge.refusal(refused)
        self._sent = True

    def _send(self, charge: Charge | None, connection: Connection) -> Reached | None:
        here = update(_calls).where(_calls.c.id == self.call, _calls.c.owner == self._record.owner)
        if not connection.execute(here.values(state="sent").returning(_calls.c.id)).all():
            raise LeaseLost(f"another worker has taken over the call {self.call}: the lease of this one has expired")
        if charge is None:
            return None
        return charge.reserve(connection, self.call, self._record.epoch)

    def answered(self, usage: TokenUsage | None) -> Work[None]:
        """The write that accompanies the answer: the call's new state, and the amount used.

        Raises LeaseMissing after the block of ``Leases.hold``, and if calls are only read.
        """
        if not self.is_held:
            raise LeaseMissing(f"the answer of {self.call} can't be written without the lease of the call")

        def execute(connection: Connection) -> None:
            connection.execute(_ANSWERED, {"call": self.call})
            self._settle(connection, usage, refund=False)

        return execute

    async def end(self, error: BaseException | None = None) -> None:
        """Releases the lease if there is no answer; a sent call stays charged, as used or as estimated."""
        if self.is_answered:
            return
        if error is None:
            await self._write(self.answered(None))
            self.is_answered = True
            return
        failed = error if isinstance(error, BatonError) else None
        unsent = not self._sent or (failed is not None and failed.unsent)
        state = "reserved" if unsent and not self.was_sent else "sent"

        def execute(connection: Connection) -> None:
            here = _calls.c.id == self.call, _calls.c.owner == self._record.owner
            connection.execute(update(_calls).where(*here).values(owner="", state=state))
            self._settle(connection, failed.usage if failed else None, refund=unsent)

        await self._write(execute)

    async def _write(self, work: Work[None]) -> None:
        await self._database.write(work, atomic=self.is_charged)

    def _settle(self, connection: Connection, usage: TokenUsage | None, *, refund: bool) -> None:
        if self._charge and self.is_charged and (usage or refund):
            amount = None if refund or usage is None else amount_of(usage)
            self._charge.settle(connection, self.call, self._record.epoch, amount)


class Leases:
    """The leases of this worker. ``seconds``: the time without a renewal after which calls are taken over."""

    def __init__(self, database: Database, seconds: float = LEASE_SECONDS) -> None:
        self._database = database
        self._seconds = seconds
        self._worker = secrets.token_hex(ID_LENGTH // 2)
        self._numbers = count(1)
        self._processes = ProcessLocks(database.engine.file, self._worker)
        self._held = 0
        self._used_at = 0.0
        self._renewed_at = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._only_read = False

    def only_read(self) -> None:
        """From now on no call is made: ``hold`` writes and charges nothing, and its leases are not held."""
        self._only_read = True

    @contextlib.asynccontextmanager
    async def hold(self, call: str, charge: Charge | None = None, *, sent: bool = False) -> AsyncIterator[Lease]:
        """A context manager that holds the lease of a call, or yields one that ``is_answered``.

        It waits while another attempt makes the call. ``sent``: the block sends the call immediately, and may repeat
        it; otherwise the block records the sending (``Lease.send_once``). ``Journal.answer`` writes the answer; a block
        that ends without writing one has made a call without an answer. Raises the charge's ``refusal`` if the call
        would exceed a budget.
        """
        if self._only_read:
            nobody = _Record("", 0, "reserved")
            lease = Lease(self._database, call, nobody, None, was_sent=False, sent=sent)
            lease.is_held = False
            yield lease
            return
        self._held += 1
        try:
            lease = await self._acquired(call, charge, sent=sent)
            token = _current.set(lease)
            try:
                yield lease
            except BaseException as error:
                await lease.end(error)
                raise
            else:
                await lease.end()
            finally:
                lease.is_held = False  # tasks that the block has started may outlive it
                _current.reset(token)
        finally:
            self._held -= 1
            self._used_at = time.monotonic()

    async def was_sent(self, call: str) -> bool:
        """Whether a call was sent by any worker and is not answered."""
        record = await self._read(call)
        return record is not None and record.state == "sent"

    async def close(self) -> None:
        """Removes this worker's row; call it once the worker holds no leases."""
        if self._renewing:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            with contextlib.suppress(JournalUnavailable):  # others notice by themselves that it is silent
                await self._database.run(delete(_workers).where(_workers.c.id == self._worker))
        self._processes.close()

    async def _acquired(self, call: str, charge: Charge | None, *, sent: bool) -> Lease:
        owner = f"{self._worker}/{next(self._numbers)}"
        silence = _Silence(self._seconds)
        interval, max_interval = POLL_SECONDS
        ended: _Record | None = None
        while True:
            taking = asyncio.create_task(self._take(_Taken(call, owner, charge, ended, sent=sent)))
            try:
                record, refused = await asyncio.shield(taking)
            except asyncio.CancelledError as canceled:
                record, _ = await taking  # a lease that was written must be released
                if record.owner == owner:
                    await self._lease(call, record, charge, ended, sent=False).end(canceled)
                raise
            if refused:
                assert charge
                raise charge.refusal(refused)
            if record.owner == owner or record.state == "answered":
                return self._lease(call, record, charge, ended, sent=sent)
            ended = None
            while ended is None:
                other = await self._read(call)
                if other is None or other.state == "answered":
                    break
                if not other.owner or self._processes.is_dead(other.owner[:ID_LENGTH]) or silence.is_over(other):
                    ended = other
                else:
                    await asyncio.sleep(interval)
                    interval = min(2 * interval, max_interval)

    def _lease(self, call: str, record: _Record, charge: Charge | None, ended: _Record | None, *, sent: bool) -> Lease:
        was_sent = ended is not None and ended.state == "sent"
        return Lease(self._database, call, record, charge, was_sent=was_sent, sent=sent)

    async def _take(self, taken: "_Taken") -> tuple[_Record, Reached | None]:
        renewal = self._begin_to_renew()

        def execute(connection: Connection) -> tuple[_Record, Reached | None]:
            if renewal:
                renewal(connection)
            return taken.execute(connection)

        # After a power failure nobody holds a lease in SQLite. What must not be lost is the sending and the charge.
        return await self._database.write(execute, atomic=taken.charge is not None, durable=False)

    async def _read(self, call: str) -> _Record | None:
        worker = _workers.c.id == func.substr(_calls.c.owner, 1, ID_LENGTH)
        columns = _calls.c.owner, _calls.c.epoch, _calls.c.state, _workers.c.renewed
        rows = await self._database.run(
            select(*columns).select_from(_calls.outerjoin(_workers, worker)).where(_calls.c.id == call)
        )
        return _Record.of(rows[0]) if rows else None

    async def renew(self) -> None:
        """Renews the worker's row, even if it holds no lease. Raises JournalUnavailable if it can't be written."""
        await self._database.write(self._renewal(), atomic=False)

    def _begin_to_renew(self) -> Callable[[Connection], object] | None:
        """The renewal to write with a new lease; None if the last one is recent."""
        self._processes.open()
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())
        now = time.monotonic()
        if self._renewed_at and now - self._renewed_at <= 2 * RENEW_SECONDS:
            return None
        return self._renewal()

    def _renewal(self) -> Callable[[Connection], object]:
        now = int(time.time() * 1_000)
        statements = [upsert_worker(self._database.engine.dialect, self._worker, now)]
        if not self._renewed_at:
            statements.append(delete(_workers).where(_workers.c.renewed < now - FORGET_SECONDS * 1_000))
        self._renewed_at = time.monotonic()
        return lambda connection: [connection.execute(statement) for statement in statements]

    async def _renew(self) -> None:
        """Renews as long as leases are held, and for IDLE_SECONDS after that."""
        while self._held or time.monotonic() - self._used_at < IDLE_SECONDS:
            await asyncio.sleep(RENEW_SECONDS)
            await self._database.write(self._renewal(), atomic=False, durable=False)


@dataclass(frozen=True)
class _Taken:
    """An attempt to acquire a lease: a new one, or that of a call whose lease has ``ended``."""

    call: str
    owner: str
    charge: Charge | None
    ended: _Record | None
    sent: bool

    def execute(self, connection: Connection) -> tuple[_Record, Reached | None]:
        """The resulting record, which may be another attempt's, and the budget limit that refuses the call, if any."""
        record = self._written(connection)
        if record.owner != self.owner or self.charge is None:
            return record, None
        charge = self.charge
        ended = self.ended
        if ended and ended.state == "sent" and not self.sent:
            return record, None  # it is charged if it is sent again
        if ended and ended.owner and ended.state == "reserved" and charge.per_sending:
            charge.settle(connection, self.call, ended.epoch, None)
        refused = charge.reserve(connection, self.call, record.epoch)
        if refused:
            state = ended.state if ended else "reserved"
            connection.execute(update(_calls).where(_calls.c.id == self.call).values(owner="", state=state))
        return record, refused

    def _written(self, connection: Connection) -> _Record:
        state = "sent" if self.sent else "reserved"
        if ended := self.ended:
            unchanged = _calls.c.owner == ended.owner, _calls.c.epoch == ended.epoch, _calls.c.state == ended.state
            own = _Record(self.owner, ended.epoch + 1, "sent" if ended.state == "sent" else state)
            here = _calls.c.id == self.call
            taken = update(_calls).where(here, *unchanged, ~_has_renewed(ended)).returning(_calls.c.id)
            written = connection.execute(taken.values(owner=own.owner, epoch=own.epoch, state=own.state)).all()
        else:
            own = _Record(self.owner, 1, state)
            row = {"id": self.call, "owner": own.owner, "epoch": own.epoch, "state": own.state}
            written = connection.execute(insert_missing(connection.dialect.name, _calls), row).all()
        if written:
            return own
        # Another attempt was faster, or this statement was executed before and its result was lost.
        current = connection.execute(_RECORD, {"call": self.call}).one_or_none()
        return _Record.of(current) if current else _Record("", 0, "reserved")


def _has_renewed(ended: _Record) -> Any:
    """Whether the worker of a lease has renewed it since it appeared to have expired."""
    later = _workers.c.renewed != (ended.renewed or 0)
    return select(_workers.c.id).where(_workers.c.id == ended.owner[:ID_LENGTH], later).exists()


class _Silence:
    """Measures the time without a renewal by a call's worker, with this worker's monotonic clock.

    Only the time in which this worker could poll counts: while the journal is unavailable, no worker can renew.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: _Record | None = None
        self._since = 0.0
        self._polled_at = 0.0

    def is_over(self, record: _Record) -> bool:
        """Whether the record, which was just read, has not changed for the duration of a lease."""
        now = time.monotonic()
        if record != self._seen or now - self._polled_at > MAX_GAP:
            self._seen = record
            self._since = now
        self._polled_at = now
        return now - self._since >= self._seconds


class ProcessLocks:
    """File locks next to a SQLite ``journal``, for workers on one machine: the OS releases those of dead processes.

    A frozen process keeps its lock. Without such locks (PostgreSQL, Windows) no process is known to be dead.
    """

    def __init__(self, journal: Path | None, worker: str) -> None:
        self._journal = journal.resolve() if journal else None  # workers may open it through different links
        self._worker = worker
        self._descriptor: int | None = None

    def open(self) -> None:
        """Locks a file of this worker, and deletes those of dead ones. Raises JournalUnavailable."""
        if self._journal is None or self._descriptor is not None:
            return
        try:
            for file in self._journal.parent.glob(f"{self._journal.name}-worker-*"):
                self.is_dead(file.name.rpartition("-")[2])
            unnamed = self._file(f"{self._worker}.new")  # until it is locked; otherwise it would look abandoned
            descriptor = private_file(unnamed, os.O_RDWR | os.O_CREAT)
            if _lock(descriptor):
                unnamed.rename(self._file(self._worker))
                self._descriptor = descriptor
            else:
                unnamed.unlink()
                os.close(descriptor)
                self._journal = None
        except OSError as error:  # without its file, other workers would treat this one as dead
            raise JournalUnavailable(f"no file can be written beside the journal {self._journal}: {error}") from None

    def is_dead(self, worker: str) -> bool:
        """Whether the process of a worker has ended."""
        if self._journal is None or worker == self._worker or "." in worker:
            return False
        file = self._file(worker)
        try:
            descriptor = os.open(file, os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            dead = _lock(descriptor)
            if dead:
                file.unlink(missing_ok=True)
            return dead
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Deletes the file of this worker."""
        if self._descriptor is not None:
            self._file(self._worker).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _file(self, worker: str) -> Path:
        assert self._journal
        return self._journal.with_name(f"{self._journal.name}-worker-{worker}")


def _lock(descriptor: int) -> bool:
    """Locks a file; False if another process has locked it, or the system has no such locks."""
    try:
        import fcntl  # noqa: PLC0415  # not on Windows
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_current: ContextVar[Lease | None] = ContextVar("lease", default=None)
_is_exempt: ContextVar[bool] = ContextVar("is_exempt", default=False)


def check_lease(what: str) -> None:
    """Raises LeaseMissing unless the current code holds the lease of a call, or runs in ``without_lease``.

    It is called right before ``what`` is sent: a request that may cost money or have effects.
    """
    lease = _current.get()
    if not (_is_exempt.get() or (lease and lease.is_held)):
        raise LeaseMissing(f"{what} needs the lease of a call, or without_lease if it may be repeated")


class LeaseMissing(RuntimeError):
    """A request would be sent without the lease of a call: a bug, so nothing is sent until it is fixed."""


@contextlib.contextmanager
def without_lease() -> Iterator[None]:
    """Allows the block to send requests that may be repeated without a second cost or effect."""
    token = _is_exempt.set(True)
    try:
        yield
    finally:
        _is_exempt.reset(token)
