"""Connects to the journal's database: SQLite on a dedicated thread, PostgreSQL on asyncio."""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from sqlalchemy import URL, Connection, NullPool, QueuePool, create_engine, event, func, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from ..contracts.errors import JournalUnavailable
from ..installation import require
from ..observability.metrics import JOURNAL_DURATION

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SYNCED = "synchronous=FULL"
_UNSYNCED = "synchronous=NORMAL"
_PRAGMAS = ("busy_timeout=15000", "journal_mode=WAL", _SYNCED, "secure_delete=ON")
"""FULL, because a row that Temporal's history refers to must not be lost in a power failure.

With ``secure_delete``, what is deleted does not stay in free pages of the file.
"""


class _Cursor(Protocol):
    def execute(self, statement: str) -> object: ...
    def close(self) -> None: ...


class _Connection(Protocol):
    def cursor(self) -> _Cursor: ...
    def commit(self) -> None: ...


def set_pragmas(connection: _Connection, _record: object) -> None:
    """Sets SQLite's pragmas, as a listener of SQLAlchemy's event ``connect``."""
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


async def timed(operation: str, work: Awaitable[T]) -> T:
    """The result of a statement; records its duration and outcome as a metric."""
    began = time.monotonic()
    outcome = "ok"
    try:
        return await work
    except BaseException as error:
        outcome = "unavailable" if isinstance(error, JournalUnavailable) else "error"
        raise
    finally:
        JOURNAL_DURATION.record(time.monotonic() - began, operation=operation, outcome=outcome)


Work = Callable[[Connection], T]
"""A function that uses a connection."""

MAX_GROUP = 200
"""The maximum number of writes that are committed together."""


@dataclass(frozen=True)
class _WaitingWrite:
    work: Work[Any]
    durable: bool
    result: Future[Any]


class GroupCommit:
    """Commits writes in groups on a thread; every write succeeds or fails by itself, and returns when it is committed.

    ``begin`` opens an exclusive write transaction, and commits it or rolls it back at its end. Its argument says
    whether the transaction is durable: it is if one of its writes has to be.
    """

    def __init__(self, thread: Executor, begin: Callable[[bool], AbstractContextManager[Connection]]) -> None:
        self._thread = thread
        self._begin = begin
        self._waiting = deque[_WaitingWrite]()

    async def run(self, work: Work[T], *, durable: bool) -> T:
        """Calls a function with a connection; all writes that wait when the thread is free are committed together."""
        result = Future[T]()
        self._waiting.append(_WaitingWrite(work=work, durable=durable, result=result))
        self._thread.submit(self._commit)
        return await asyncio.wrap_future(result)

    def _commit(self) -> None:
        """Commits the next group, on the thread; an earlier call may have committed all writes."""
        group = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]
        group = [write for write in group if write.result.set_running_or_notify_cancel()]
        if not group:
            return
        try:
            with self._begin(any(write.durable for write in group)) as connection:
                alone = len(group) == 1
                ended = [(write.result, *_attempt(connection, write.work, alone=alone)) for write in group]
        except BaseException as failure:  # nothing is written: all writes get this error
            for write in group:
                write.result.set_exception(failure)
            return
        for future, result, error in ended:
            future.set_exception(error) if error else future.set_result(result)


def _attempt(connection: Connection, work: Work[T], *, alone: bool) -> tuple[T | None, Exception | None]:
    """The result of a write, or its error, which rolls back only that write of the transaction."""
    if alone:
        return work(connection), None
    result: T | None = None
    failed: Exception | None = None
    connection.exec_driver_sql("SAVEPOINT one")
    try:
        result = work(connection)
    except Exception as error:
        if _is_rolled_back(connection):
            raise  # the other writes are rolled back too, and fail with this error
        connection.exec_driver_sql("ROLLBACK TO one")
        failed = error
    connection.exec_driver_sql("RELEASE one")
    return result, failed


def _is_rolled_back(connection: Connection) -> bool:
    """Whether SQLite itself has rolled back the whole transaction, as on a full disk or after an I/O error."""
    raw: Any = connection.connection.dbapi_connection
    return not raw.in_transaction


REFUSED_STATES = frozenset({"0A", "21", "22", "23", "42", "54"})
"""Classes of PostgreSQL's SQLSTATE for invalid statements, invalid values, missing tables and missing privileges."""

REFUSED_CODES = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
    }
)
"""The corresponding error codes of SQLite."""


async def translated(result: Awaitable[T]) -> T:
    """The same result; raises JournalUnavailable for database errors, not retryable if the statement is rejected."""
    try:
        return await result
    except (SQLAlchemyError, OSError) as error:
        if _is_refused(error):
            raise JournalUnavailable(f"the journal rejects a statement: {_reason(error)}", retryable=False) from None
        raise JournalUnavailable(f"the journal can't be reached: {_reason(error)}") from None


def _is_refused(error: Exception) -> bool:
    """Whether the statement or a value is invalid. Other errors, such as a lost connection, may be transient."""
    if not isinstance(error, StatementError) or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return False
    reason = error.orig
    state = getattr(reason, "sqlstate", None)  # of PostgreSQL
    code = getattr(reason, "sqlite_errorcode", None)
    if state is not None:
        return str(state)[:2] in REFUSED_STATES
    if code is not None:
        return code % 256 in REFUSED_CODES  # the lowest byte is the primary code
    is_value = isinstance(reason, ValueError) or isinstance(reason and reason.__cause__, ValueError)
    return is_value or not isinstance(error, OperationalError | InterfaceError)


def _reason(error: Exception) -> str:
    """The first line of an error: PostgreSQL puts the values of the row into the second."""
    reason = error.orig if isinstance(error, DBAPIError) else error
    return str(reason).partition("\n")[0] or type(reason).__name__


CONNECT_TIMEOUT = 10.0
STATEMENT_TIMEOUT = 30.0
"""Seconds after which an unresponsive PostgreSQL server counts as unavailable."""

LONG_STATEMENT = 3600.0
"""The same for commands of operators, whose statements may read whole tables: so many seconds are not an outage."""

_SESSION = {
    "idle_in_transaction_session_timeout": "5s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
"""Parameters of PostgreSQL's sessions: the server ends the transaction of a client that has frozen or whose machine is
lost, which would keep its locks, and closes its connections. Such a transaction is repeated."""

_POOL_SIZE = 10

_MAX_TRANSACTIONS = 5
"""Connections with a transaction, which may wait for another one's locks. The others are left to single statements."""

_MIGRATION_LOCK = int.from_bytes(b"baton")
"""The key of the advisory lock in PostgreSQL that serializes migrations."""

_INDEX_INTERVAL = 0.5
"""Seconds between two looks at an index that another process builds."""

_INDEX_ATTEMPTS = 5
"""Attempts to build an index. One may fail because another process has begun to build it as well."""

_CANCELED = "57014"
"""PostgreSQL's state of a statement that takes longer than the server's own ``statement_timeout``."""

_UNDEFINED = ("42P01", "42703")
"""PostgreSQL's states of a statement about a table or a column that does not exist."""

_INDEX_STATE = """
select index.indisvalid as is_valid, building.pid is not null as is_built
from pg_index as index left join pg_stat_progress_create_index as building on building.index_relid = index.indexrelid
where index.indexrelid = to_regclass(:name)
"""

_USAGE = "use sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


class _Options(TypedDict):
    isolation_level: Literal["AUTOCOMMIT"]
    pool_reset_on_return: None
    max_overflow: int


_AUTOCOMMIT = _Options(isolation_level="AUTOCOMMIT", pool_reset_on_return=None, max_overflow=0)
"""Every statement commits by itself: only those of ``run_in_transaction`` have to be atomic."""


class Engine(ABC):
    """The connections to a database; ``dialect`` is ``sqlite`` or ``postgresql``.

    Every error of the database is a JournalUnavailable without the statement's values. It is not retryable if the
    database rejects the statement itself.
    """

    dialect: str
    place: str
    """The database's address, without a password."""

    file: Path | None = None
    """The file of a database that all its users share on one machine."""

    async def run(self, work: Work[T]) -> T:
        """Calls a function with a connection in autocommit mode, and returns its result."""
        return await timed("read", translated(self._run(work)))

    async def write(self, work: Work[T], *, durable: bool = True) -> T:
        """Calls a function with a connection for a single write, and returns when it is committed.

        A write that need not be ``durable`` survives the death of all processes, but a power failure only if a durable
        one has followed it.
        """
        return await timed("write", translated(self._write(work, durable=durable)))

    async def run_exclusively(self, work: Work[T]) -> T:
        """Calls a function in one transaction, at most one at a time across all processes."""
        return await timed("exclusive", translated(self._run_exclusively(work)))

    async def run_in_transaction(self, work: Work[T]) -> T:
        """Calls a function with a connection in one transaction, concurrently with others."""
        return await timed("transaction", translated(self._run_in_transaction(work)))

    async def create_indexes(self, indexes: Mapping[str, str]) -> None:
        """Creates those indexes that are missing, and that can be created while others write.

        ``indexes``: by name, the table and its columns or expressions in SQL. An index on a table or a column that does
        not exist yet is left out.
        """
        await timed("indexes", translated(self._create_indexes(indexes)))

    @abstractmethod
    async def _run(self, work: Work[T]) -> T: ...

    @abstractmethod
    async def _write(self, work: Work[T], *, durable: bool = True) -> T: ...

    @abstractmethod
    async def _run_exclusively(self, work: Work[T]) -> T: ...

    @abstractmethod
    async def _run_in_transaction(self, work: Work[T]) -> T: ...

    @abstractmethod
    async def _create_indexes(self, indexes: Mapping[str, str]) -> None: ...

    @abstractmethod
    async def dispose(self) -> None:
        """Closes the connections."""


class _SQLite(Engine):
    """One connection on one thread, so that a call switches threads once. Concurrent writes are committed together."""

    dialect = "sqlite"

    def __init__(self, url: URL, longest: float | None = None) -> None:
        self._engine = create_engine(url.set(drivername="sqlite"), poolclass=QueuePool, pool_size=1, **_AUTOCOMMIT)
        event.listen(self._engine, "connect", set_pragmas)
        self._file = self.file = Path(url.database or "")
        self._opened: tuple[int, int] | None = None
        self._thread = ThreadPoolExecutor(1, "journal")
        self._group = GroupCommit(self._thread, self._begin_immediate)

    async def _run(self, work: Work[T]) -> T:
        return await self._on_thread(lambda: self._connect(work))

    async def _write(self, work: Work[T], *, durable: bool = True) -> T:
        return await self._group.run(work, durable=durable)

    _run_exclusively = _run_in_transaction = _write  # SQLite has one writer at a time

    async def _create_indexes(self, indexes: Mapping[str, str]) -> None:
        """Creates none: it would stop the writers, as in the transaction of the migrations."""

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _connect(self, work: Work[T]) -> T:
        with self._engine.connect() as connection:
            self._check_place()
            return work(connection)

    def _check_place(self) -> None:
        """Raises JournalUnavailable while the file was moved or replaced: writes would be lost."""
        try:
            file = self._file.stat()
        except FileNotFoundError:
            inode = None
        else:
            inode = (file.st_dev, file.st_ino)
        self._opened = self._opened or inode
        if inode is None or inode != self._opened:
            raise JournalUnavailable(
                f"the journal {self._file} was moved or replaced while it is open: restore it, or stop the worker"
            )

    @contextlib.contextmanager
    def _begin_immediate(self, durable: bool) -> Iterator[Connection]:
        with self._engine.connect() as connection, nullcontext() if durable else _unsynced(connection):
            self._check_place()
            with connection.begin():  # which commits or rolls back at its end
                connection.exec_driver_sql("BEGIN IMMEDIATE")  # sqlite3 begins no transaction itself in autocommit mode
                yield connection

    async def dispose(self) -> None:
        await self._on_thread(self._engine.dispose)
        self._thread.shutdown(wait=False)


@contextlib.contextmanager
def _unsynced(connection: Connection) -> Iterator[None]:
    """A context manager in which a commit does not wait for the disk; the next one outside syncs what it has written.

    With the journal's WAL mode the file can't be damaged by that.
    """
    pragmas: Any = connection.connection
    try:
        pragmas.execute(f"PRAGMA {_UNSYNCED}")
        yield
    finally:
        try:
            pragmas.execute(f"PRAGMA {_SYNCED}")
        except sqlite3.Error:
            connection.invalidate()  # a new connection syncs
            raise


def set_session(connection: _Connection, _record: object) -> None:
    """Sets the parameters of a PostgreSQL session, as a listener of SQLAlchemy's event ``connect``.

    They are no parameters of the connection: poolers refuse connections with those that they don't know.
    """
    cursor = connection.cursor()
    cursor.execute("select " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SESSION.items()))
    cursor.close()
    connection.commit()


class _PostgreSQL(Engine):
    """asyncpg parses the URL itself, because it supports libpq's parameters, such as ``sslmode``."""

    dialect = "postgresql"

    def __init__(self, url: URL, longest: float | None = None) -> None:
        require("postgres", "a journal in PostgreSQL")
        address = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._address: dict[str, Any] = {"dsn": address, "timeout": CONNECT_TIMEOUT}
        self._is_long = longest is not None
        self._timeout = STATEMENT_TIMEOUT if longest is None else longest
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            connect_args={**self._address, "command_timeout": self._timeout},
            pool_size=_POOL_SIZE,
            pool_pre_ping=True,
            **_AUTOCOMMIT,
        )
        event.listen(self._engine.sync_engine, "connect", set_session)
        self._transactions = asyncio.Semaphore(_MAX_TRANSACTIONS)

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[AsyncConnection]:
        """A connection. A statement that takes too long is repeated, unless it was expected to be long."""
        async with self._engine.connect() as connection:
            try:
                yield connection
            except TimeoutError:
                reason = f"it has not answered a statement within {self._timeout:g} s"
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != _CANCELED:
                    raise
                reason = f"it has ended a statement: {_reason(error)}"
            else:
                return
            raise JournalUnavailable(f"the journal takes too long: {reason}", retryable=not self._is_long) from None

    async def _run(self, work: Work[T]) -> T:
        async with self._connect() as connection:
            return await connection.run_sync(work)

    async def _write(self, work: Work[T], *, durable: bool = True) -> T:
        return await self._run(work)  # each statement commits by itself, without BEGIN and COMMIT, and is durable

    async def _run_exclusively(self, work: Work[T]) -> T:
        # READ COMMITTED, to see what others have committed before it got the lock.
        async with self._engine_without_timeout("READ COMMITTED").begin() as connection:
            await connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            return await connection.run_sync(work)

    async def _create_indexes(self, indexes: Mapping[str, str]) -> None:
        async with self._engine_without_timeout("AUTOCOMMIT").connect() as connection:
            for name, columns in indexes.items():
                await self._create_index(connection, name, columns)

    async def _create_index(self, connection: AsyncConnection, name: str, columns: str) -> None:
        """Builds an index, or waits until another process has. No lock: a pooler may keep it after its process."""
        attempts = 0
        is_told = False
        while True:
            index = (await connection.execute(text(_INDEX_STATE), {"name": name})).one_or_none()
            if index and index.is_valid:
                return
            if index and index.is_built:
                if not is_told:
                    _log.info("waiting for the journal's index %s, which another process builds", name)
                is_told = True
                await asyncio.sleep(_INDEX_INTERVAL)
                continue
            attempts += 1
            try:
                if index:  # its build was interrupted
                    await connection.execute(text(f"drop index concurrently if exists {name}"))
                await connection.execute(text(f"create index concurrently {name} on {columns}"))
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) in _UNDEFINED:
                    return
                if attempts == _INDEX_ATTEMPTS:
                    raise
                await asyncio.sleep(_INDEX_INTERVAL)

    def _engine_without_timeout(self, isolation_level: Literal["READ COMMITTED", "AUTOCOMMIT"]) -> AsyncEngine:
        """An engine that opens a new connection each time, whose statements may take long, as on a large table."""
        engine = create_async_engine(
            "postgresql+asyncpg://",
            connect_args=self._address,
            poolclass=NullPool,
            isolation_level=isolation_level,
        )
        event.listen(engine.sync_engine, "connect", set_session)
        return engine

    async def _run_in_transaction(self, work: Work[T]) -> T:
        async with self._transactions, self._connect() as connection:
            await connection.execution_options(isolation_level="READ COMMITTED")  # until it is closed here
            async with connection.begin():
                return await connection.run_sync(work)

    async def dispose(self) -> None:
        await self._engine.dispose()


_ENGINES: dict[str, Callable[[URL, float | None], Engine]] = {
    "sqlite": _SQLite,
    "postgresql": _PostgreSQL,
    "postgres": _PostgreSQL,
}


def connect(url: str, *, longest: float | None = None) -> Engine:
    """Returns an engine for a journal URL such as ``sqlite:///.baton/journal.db``; it connects on first use.

    ``longest`` is for commands with long statements: the seconds after which one is an error that is not retryable.

    Raises JournalUnavailable if the URL is invalid or its database is not supported.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # their texts may quote a part of the password
        raise JournalUnavailable(f"BATON_JOURNAL_URL is not the address of a database: {_USAGE}") from None
    backend = parsed.get_backend_name()
    if backend not in _ENGINES:
        raise JournalUnavailable(f"a journal on {backend} is not supported: {_USAGE}")
    engine = _ENGINES[backend](parsed, longest)
    engine.place = _shown(parsed)
    return engine


_SHOWN = {"host", "port", "user", "dbname", "database", "sslmode", "mode"}
"""The parameters of an address that are shown. Others may be secrets, such as ``password`` and ``sslpassword``."""


def _shown(url: URL) -> str:
    return url.difference_update_query(url.query.keys() - _SHOWN).render_as_string()


def free_space(url: str) -> int | None:
    """The free bytes on the disk of a SQLite journal; None for a database server, which doesn't tell."""
    parsed = make_url(url)
    return shutil.disk_usage(parsed.database or ".").free if parsed.get_backend_name() == "sqlite" else None
