"""The statements that SQLite and PostgreSQL spell alike but SQLAlchemy does not: insert or update on conflict."""

import time
from collections.abc import Callable
from functools import cache

from sqlalchemy import Executable, Table
from sqlalchemy.dialects import postgresql, sqlite

from ...conversation.contracts.requests import Bookmark
from ...conversation.messages.message import Head
from . import schema

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
