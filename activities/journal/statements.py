"""The journal's longer statements: inserts, which differ between SQLite and PostgreSQL, and what reads a chain."""

import time
from collections.abc import Callable, Mapping
from functools import cache

from sqlalchemy import Executable, Table, select, update
from sqlalchemy.dialects import postgresql, sqlite

from ...conversation.contracts.requests import Bookmark
from ...conversation.messages.message import Head
from . import schema

_INSERTS: dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


@cache
def insert_missing(dialect: str, table: Table) -> Executable:
    """Inserts the rows whose primary keys are not in the table yet, and returns the keys of those."""
    return _INSERTS[dialect](table).on_conflict_do_nothing().returning(*table.primary_key)


def select_back(last: str, after: int) -> Executable:
    """Selects the messages from the row ``last`` back to the first after a depth."""
    messages = schema.messages
    chain = select(messages).where(messages.c.id == last).cte("chain", recursive=True)
    before = messages.alias()
    more = select(before).join(chain, before.c.id == chain.c.parent).where(before.c.depth > after)
    return select(chain.union_all(more))


def upsert_bookmark(dialect: str, mark: Bookmark, head: Head, *, new: bool) -> Executable:
    """Sets a bookmark to a head; only its owner may move it, but any run may replace it by a ``new`` one."""
    row = {**mark.model_dump(by_alias=False), "head": head.id, "depth": head.depth}
    table = schema.bookmarks
    condition = None if new else table.c.owner == mark.owner
    insert = _INSERTS[dialect](table).values(row)
    return insert.on_conflict_do_update(index_elements=[table.c.session, table.c.key], set_=row, where=condition)


def move_conversation(dialect: str, names: Mapping[str, str], expected: Head, head: Head) -> Executable:
    """Moves a conversation from the ``expected`` head to another, and returns its id; nothing if it is elsewhere.

    A conversation that does not exist yet is at the empty head.
    """
    table, now = schema.conversations, int(time.time())
    moved = {"head": head.id, "depth": head.depth, "changed": now}
    if not expected.id:
        insert = _INSERTS[dialect](table).values(**names, **moved, created=now)
        return insert.on_conflict_do_nothing().returning(table.c.id)
    here = (table.c[name] == value for name, value in names.items())
    return update(table).where(*here, table.c.head == expected.id).values(moved).returning(table.c.id)


def upsert_hold(dialect: str, family: str, sha: str) -> Executable:
    """Notes that workflows of a family need a value, and when they last stored it."""
    now = int(time.time())
    insert = _INSERTS[dialect](schema.holds).values(family=family, sha=sha, at=now)
    return insert.on_conflict_do_update(index_elements=["family", "sha"], set_={"at": now})
