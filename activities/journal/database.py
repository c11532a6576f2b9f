"""How does the journal reach its database? SQLite by default, tuned so that what is committed stays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from sqlalchemy import event, make_url, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateTable

from activities.journal import schema
from conversation.errors import JournalUnavailable

_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=15000")
"""FULL, because a row that Temporal's history refers to must not be lost with the power."""


class _Cursor(Protocol):
    def execute(self, statement: str) -> object: ...
    def close(self) -> None: ...


class _Connection(Protocol):
    def cursor(self) -> _Cursor: ...


def connect(url: str) -> AsyncEngine:
    """An engine for a journal URL such as ``sqlite:///.baton/journal.db``.

    Every statement commits by itself: the journal never needs two to hold together.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise JournalUnavailable("BATON_JOURNAL_URL is not the address of a database: use sqlite:///PATH") from None
    if parsed.get_backend_name() != "sqlite":
        raise JournalUnavailable(f"a journal on {parsed.get_backend_name()} is not supported: use sqlite:///PATH")
    engine = create_async_engine(parsed.set(drivername="sqlite+aiosqlite"), isolation_level="AUTOCOMMIT")
    event.listen(engine.sync_engine, "connect", _tune)
    return engine


def _tune(connection: _Connection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


async def prepare(engine: AsyncEngine) -> None:
    """Creates the tables where they are missing.

    Raises:
        JournalUnavailable: the database can't be reached, or its tables are of another version.
    """
    async with reach(engine) as connection:
        for table in schema.metadata.sorted_tables:
            await connection.execute(CreateTable(table, if_not_exists=True))
        await connection.execute(insert(schema.versions).values(version=schema.VERSION).on_conflict_do_nothing())
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
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise JournalUnavailable(f"the journal can't be reached: {reason}") from None
