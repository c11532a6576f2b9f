"""How does the journal reach its database? SQLite by default, or PostgreSQL; what is committed stays."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Literal, Protocol, TypedDict

from sqlalchemy import URL, Executable, Table, event, inspect, literal, make_url, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from activities.journal import schema
from conversation.errors import JournalUnavailable
from conversation.message import Head
from conversation.requests import Bookmark

_PRAGMAS = ("busy_timeout=15000", "journal_mode=WAL", "synchronous=FULL")
"""FULL, because a row that Temporal's history refers to must not be lost with the power."""

CONNECT_TIMEOUT, STATEMENT_TIMEOUT = 10.0, 30.0
"""Seconds after which a PostgreSQL server that doesn't answer counts as one that can't be reached."""

WAITS = (0.1, 0.2, 0.4, 0.8)
"""Seconds between attempts to prepare a database: another worker may be doing so at this very moment."""

_USAGE = "use sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


class _Options(TypedDict):
    isolation_level: Literal["AUTOCOMMIT"]
    pool_reset_on_return: None


_ALONE = _Options(isolation_level="AUTOCOMMIT", pool_reset_on_return=None)


class _Cursor(Protocol):
    def execute(self, statement: str) -> object: ...
    def close(self) -> None: ...


class _Connection(Protocol):
    def cursor(self) -> _Cursor: ...


def connect(url: str) -> AsyncEngine:
    """An engine for a journal URL such as ``sqlite:///.baton/journal.db``.

    Every statement commits by itself: the journal never needs two to hold together, nor a rollback after them.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # whose texts may quote a part of the password
        raise JournalUnavailable(f"BATON_JOURNAL_URL is not the address of a database: {_USAGE}") from None
    backend = parsed.get_backend_name()
    if backend not in _ENGINES:
        raise JournalUnavailable(f"a journal on {backend} is not supported: {_USAGE}")
    return _ENGINES[backend](parsed)


def _sqlite(url: URL) -> AsyncEngine:
    """One connection, on which statements wait for each other in order: several would wait by trying again."""
    engine = create_async_engine(url.set(drivername="sqlite+aiosqlite"), pool_size=1, max_overflow=0, **_ALONE)
    event.listen(engine.sync_engine, "connect", _tune)
    return engine


def _tune(connection: _Connection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _postgresql(url: URL) -> AsyncEngine:
    """asyncpg reads the URL itself, because it knows libpq's parameters, such as ``sslmode``."""
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"dsn": address, "timeout": CONNECT_TIMEOUT, "command_timeout": STATEMENT_TIMEOUT},
        **_ALONE,
        pool_size=10,
        max_overflow=0,
        pool_pre_ping=True,
    )


_ENGINES = {"sqlite": _sqlite, "postgresql": _postgresql, "postgres": _postgresql}

_INSERTS: dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


@cache
def insert_new(dialect: str, table: Table) -> Executable:
    """The statement that inserts those rows whose keys aren't there yet, and gives the keys of those it has."""
    return _INSERTS[dialect](table).on_conflict_do_nothing().returning(*table.primary_key)


def set_bookmark(engine: AsyncEngine, mark: Bookmark, head: Head, *, anew: bool) -> Executable:
    """The statement that moves a bookmark, which is its owner's alone unless it is set anew."""
    row = {**mark.model_dump(by_alias=False), "head": head.id, "depth": head.depth}
    table = schema.bookmarks
    mine = None if anew else table.c.owner == mark.owner
    insert = _INSERTS[engine.dialect.name](table).values(row)
    return insert.on_conflict_do_update(index_elements=[table.c.session, table.c.key], set_=row, where=mine)


def hold(engine: AsyncEngine, family: str, sha: str) -> Executable:
    """The statement that notes that workflows of a family need a value from now on."""
    now = int(time.time())
    insert = _INSERTS[engine.dialect.name](schema.holds).values(family=family, sha=sha, at=now)
    return insert.on_conflict_do_update(index_elements=["family", "sha"], set_={"at": now})


async def prepare(engine: AsyncEngine) -> None:
    """Creates the tables where they are missing.

    Raises:
        JournalUnavailable: the database can't be reached or used, or its tables are of another version.
    """
    for wait in WAITS:
        try:
            await _prepare(engine)
        except JournalUnavailable:
            await asyncio.sleep(wait)
        else:
            return
    await _prepare(engine)


async def version(engine: AsyncEngine) -> int | None:
    """Of which version the tables are; None where there are none. Raises JournalUnavailable."""
    async with reach(engine) as connection:
        if not await connection.run_sync(lambda each: inspect(each).has_table(schema.versions.name)):
            return None
        return (await connection.execute(select(schema.versions.c.version))).scalar()


async def _prepare(engine: AsyncEngine) -> None:
    async with reach(engine) as connection:
        await connection.execute(select(literal("🎼")))  # fails where the database can't hold every character
        for table in schema.metadata.sorted_tables:
            await connection.run_sync(table.create, checkfirst=True)
        await connection.execute(insert_new(engine.dialect.name, schema.versions), {"version": schema.VERSION})
        found = (await connection.execute(select(schema.versions.c.version))).scalars().all()
    if list(found) != [schema.VERSION]:
        raise JournalUnavailable(f"the journal's tables are of version {max(found)}, this worker's of {schema.VERSION}")


@asynccontextmanager
async def reach(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection; what goes wrong with the database is JournalUnavailable, without the values of the statement."""
    try:
        async with engine.connect() as connection:
            yield connection
    except (SQLAlchemyError, OSError) as error:
        raise JournalUnavailable(f"the journal can't be reached: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """The first line, because PostgreSQL tells the row in a second one."""
    reason = error.orig if isinstance(error, DBAPIError) else error
    return str(reason).partition("\n")[0] or type(reason).__name__
