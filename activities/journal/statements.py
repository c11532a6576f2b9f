"""Which tables does a journal's database have, and which statements depend on its kind?"""

import asyncio
import time
from collections.abc import Callable
from functools import cache

from sqlalchemy import Connection, Executable, Table, inspect, literal, select
from sqlalchemy.dialects import postgresql, sqlite

from ...conversation.contracts.requests import Bookmark
from ...conversation.errors import JournalUnavailable
from ...conversation.messages.message import Head
from . import schema
from .engine import Engine

WAITS = (0.1, 0.2, 0.4, 0.8)
"""Seconds between attempts to prepare a database: another worker may be doing so at this very moment."""

_INSERTS: dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


@cache
def insert_new(dialect: str, table: Table) -> Executable:
    """The statement that inserts those rows whose keys aren't there yet, and gives the keys of those it has."""
    return _INSERTS[dialect](table).on_conflict_do_nothing().returning(*table.primary_key)


def set_bookmark(dialect: str, mark: Bookmark, head: Head, *, anew: bool) -> Executable:
    """The statement that moves a bookmark, which is its owner's alone unless it is set anew."""
    row = {**mark.model_dump(by_alias=False), "head": head.id, "depth": head.depth}
    table = schema.bookmarks
    mine = None if anew else table.c.owner == mark.owner
    insert = _INSERTS[dialect](table).values(row)
    return insert.on_conflict_do_update(index_elements=[table.c.session, table.c.key], set_=row, where=mine)


def hold(dialect: str, family: str, sha: str) -> Executable:
    """The statement that notes that workflows of a family need a value from now on."""
    now = int(time.time())
    insert = _INSERTS[dialect](schema.holds).values(family=family, sha=sha, at=now)
    return insert.on_conflict_do_update(index_elements=["family", "sha"], set_={"at": now})


async def prepare(engine: Engine) -> None:
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


def version(connection: Connection) -> int | None:
    """Of which version the tables are; None where there are none."""
    if not inspect(connection).has_table(schema.versions.name):
        return None
    return connection.execute(select(schema.versions.c.version)).scalar()


async def _prepare(engine: Engine) -> None:
    def make(connection: Connection) -> list[int]:
        connection.execute(select(literal("🎼"))).all()  # fails where the database can't hold every character
        for table in schema.metadata.sorted_tables:
            table.create(connection, checkfirst=True)
        connection.execute(insert_new(engine.dialect, schema.versions), {"version": schema.VERSION})
        return [*connection.execute(select(schema.versions.c.version)).scalars()]

    found = await engine.do(make)
    if found != [schema.VERSION]:
        raise JournalUnavailable(f"the journal's tables are of version {max(found)}, this worker's of {schema.VERSION}")
