"""How is a database reached? SQLite on a thread of its own, PostgreSQL on asyncio; what is committed stays."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol, TypedDict, TypeVar

from sqlalchemy import URL, Connection, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from ...conversation.errors import JournalUnavailable

T = TypeVar("T")
Work = Callable[[Connection], T]
"""What is done with a connection; every statement of it commits by itself."""

_PRAGMAS = ("busy_timeout=15000", "journal_mode=WAL", "synchronous=FULL")
"""FULL, because a row that Temporal's history refers to must not be lost with the power."""

CONNECT_TIMEOUT, STATEMENT_TIMEOUT = 10.0, 30.0
"""Seconds after which a PostgreSQL server that doesn't answer counts as one that can't be reached."""

_USAGE = "use sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


class _Options(TypedDict):
    isolation_level: Literal["AUTOCOMMIT"]
    pool_reset_on_return: None
    max_overflow: int


_ALONE = _Options(isolation_level="AUTOCOMMIT", pool_reset_on_return=None, max_overflow=0)
"""Every statement commits by itself: the journal never needs two to hold together, nor a rollback after them."""


class _Cursor(Protocol):
    def execute(self, statement: str) -> object: ...
    def close(self) -> None: ...


class _Connection(Protocol):
    def cursor(self) -> _Cursor: ...


class Engine(ABC):
    """A database that can be reached; ``dialect`` is ``sqlite`` or ``postgresql``."""

    dialect: str

    async def do(self, work: Work[T]) -> T:
        """What comes of work that is done with a connection.

        Raises JournalUnavailable for all that goes wrong with the database, without the values of the statement.
        """
        try:
            return await self._do(work)
        except (SQLAlchemyError, OSError) as error:
            raise JournalUnavailable(f"the journal can't be reached: {_reason(error)}") from None

    @abstractmethod
    async def _do(self, work: Work[T]) -> T: ...

    @abstractmethod
    async def dispose(self) -> None:
        """Gives the connections back."""


class _SQLite(Engine):
    """One connection on one thread: a statement goes there and back once, and waits for those before it in order."""

    dialect = "sqlite"

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(url.set(drivername="sqlite"), poolclass=QueuePool, pool_size=1, **_ALONE)
        event.listen(self._engine, "connect", _tune)
        self._thread = ThreadPoolExecutor(1, "journal")

    async def _do(self, work: Work[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._at_once, work)

    def _at_once(self, work: Work[T]) -> T:
        with self._engine.connect() as connection:
            return work(connection)

    async def dispose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown(wait=False)


def _tune(connection: _Connection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


class _PostgreSQL(Engine):
    """asyncpg reads the URL itself, because it knows libpq's parameters, such as ``sslmode``."""

    dialect = "postgresql"

    def __init__(self, url: URL) -> None:
        address = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            connect_args={"dsn": address, "timeout": CONNECT_TIMEOUT, "command_timeout": STATEMENT_TIMEOUT},
            pool_size=10,
            pool_pre_ping=True,
            **_ALONE,
        )

    async def _do(self, work: Work[T]) -> T:
        async with self._engine.connect() as connection:
            return await connection.run_sync(work)

    async def dispose(self) -> None:
        await self._engine.dispose()


_ENGINES: dict[str, Callable[[URL], Engine]] = {"sqlite": _SQLite, "postgresql": _PostgreSQL, "postgres": _PostgreSQL}


def connect(url: str) -> Engine:
    """An engine for a journal URL such as ``sqlite:///.baton/journal.db``; raises JournalUnavailable for another."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # whose texts may quote a part of the password
        raise JournalUnavailable(f"BATON_JOURNAL_URL is not the address of a database: {_USAGE}") from None
    backend = parsed.get_backend_name()
    if backend not in _ENGINES:
        raise JournalUnavailable(f"a journal on {backend} is not supported: {_USAGE}")
    return _ENGINES[backend](parsed)


def _reason(error: Exception) -> str:
    """The first line, because PostgreSQL tells the row in a second one."""
    reason = error.orig if isinstance(error, DBAPIError) else error
    return str(reason).partition("\n")[0] or type(reason).__name__
