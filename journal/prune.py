"""Deletes conversations from the journal, with the catalogs, bookmarks and large values that only they use.

A row belongs to the run that wrote it: its id begins with the run's id. Runs whose rows are linked, such as those of a
team, its nested teams and its continue-as-new chain, are one conversation, which is deleted as a whole.

Everything here concerns the runs of one Temporal ``namespace``; other namespaces may use the same journal.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, and_, delete, exists, func, select, tuple_

from . import schema
from .engine import Engine
from .quotas import database_time, delete_ended_periods, release_bookings
from .schema import RUN_COLUMNS, SHARED, run_of

BATCH_SIZE = 500
"""Ids in one statement."""

MAX_DELETED = 500
"""The maximum number of rows that one statement deletes."""

RUNS_AT_ONCE = 20
"""Runs whose many rows are deleted together: PostgreSQL's index still has those that earlier statements deleted."""

Conversation = frozenset[str]
"""The ids of the runs that have written a conversation."""


STARTED = (schema.messages.c.id, schema.attachments.c.id, schema.uses.c.run)
"""Columns in which a run writes first: one that was killed at its start may have an attachment or a use alone."""


def find_conversations(connection: Connection, namespace: str) -> list[Conversation]:
    """All conversations of a namespace; a run without any message is one by itself."""
    in_namespace = schema.messages.c.temporal_namespace == namespace
    row = run_of(schema.messages.c.id)
    below = run_of(schema.messages.c.parent)
    written = {run for column in STARTED for run in connection.execute(select_runs(namespace, column)).scalars()}
    links_only = in_namespace, below != row, below > ""  # as in the index of the first messages, which is then used
    links = connection.execute(select(row, below).where(*links_only).distinct()).all()
    return [*_connected(written, ((first, second) for first, second in links))]


def select_runs(namespace: str, column: Column[str]) -> Select[Any]:
    """Selects the runs in a column, from one to the next in its index: a DISTINCT would read all rows."""
    in_namespace = column.table.c.temporal_namespace == namespace
    row = run_of(column)
    first = select(select(row).where(in_namespace).order_by(row).limit(1).scalar_subquery().label("run"))
    runs = first.cte("runs", recursive=True)
    following = select(row).where(in_namespace, row > runs.c.run).order_by(row).limit(1).scalar_subquery()
    runs = runs.union_all(select(following).where(runs.c.run.is_not(None)))
    return select(runs.c.run).where(runs.c.run.is_not(None))


def live_runs(
    connection: Connection,
    runs: Collection[str],
    unless: Callable[[str, int], bool] = lambda _namespace, _changed: False,
) -> set[str]:
    """Those of the runs that wrote the last messages of conversations that later queries continue.

    ``unless`` is called with the namespace of a conversation's manifests and its last change, in seconds since 1970.
    """
    live = set[str]()
    for some in _batches(runs):
        rows = connection.execute(select_last(some)).all()
        live.update(row.run for row in rows if not unless(row.namespace, row.changed))
    return live


def select_last(runs: Collection[str]) -> Select[Any]:
    """Selects the conversations whose last messages these runs have written, from the index of their heads alone.

    The ids of runs are unique: with a condition for the namespace, SQLite would read all conversations of it.
    """
    table = schema.conversations.c
    run = run_of(table.head)
    return select(run.label("run"), table.namespace, table.changed).where(run.in_(runs))


def namespaces_of_runs(connection: Connection) -> dict[str, str]:
    """The namespace of the manifest with which each run began; without the runs of versions before 1.1."""
    uses = schema.uses.c
    rows = connection.execute(select(uses.run, uses.namespace).where(uses.namespace.is_not(None))).all()
    return {row.run: row.namespace for row in rows}


def runs_after(connection: Connection, namespace: str, runs: Collection[str]) -> set[str]:
    """Other runs whose messages continue those of these runs."""
    in_namespace = schema.messages.c.temporal_namespace == namespace
    row = run_of(schema.messages.c.id)
    below = run_of(schema.messages.c.parent)
    following = set[str]()
    for some in _batches(runs):
        next_runs = select(row).where(in_namespace, below.in_(some), below != row).distinct()
        following.update(connection.execute(next_runs).scalars())
    return following - {*runs}


def connected_runs(connection: Connection, namespace: str, runs: Collection[str]) -> set[str]:
    """These runs, and all others that have written the same conversations: before, after and beside them."""
    in_namespace = schema.messages.c.temporal_namespace == namespace
    row = run_of(schema.messages.c.id)
    below = run_of(schema.messages.c.parent)
    connected = {*runs}
    new = {*runs}
    while new:
        found = runs_after(connection, namespace, new)
        for some in _batches(new):
            earlier = select(below).where(in_namespace, row.in_(some), below != row, below > "").distinct()
            found.update(connection.execute(earlier).scalars())
        new = found - connected
        connected |= new
    return connected


ENDING = (schema.conversations, schema.copies)
"""Tables with the heads of conversations: a row whose messages are deleted has to be forgotten before them."""


class ContinuedError(Exception):
    """Another run continues messages that were about to be deleted."""


async def forget(
    engine: Engine,
    namespace: str,
    runs: Collection[str],
    *,
    tables: Iterable[Table] = ENDING,
    first: Callable[[Connection], None] | None = None,
) -> bool:
    """Forgets what ends with messages of these runs, before the messages are deleted; a query then begins anew.

    Returns False, with nothing forgotten, if another run continues the messages. ``first`` is called in the same
    transaction. The runs may be found long before: what has continued them since is seen here. A query that has read
    where the conversation ends, and has not written its question yet, notices it: see ``Conversations.begin``.
    """

    def execute(connection: Connection) -> None:
        if first:
            first(connection)
        for table in tables:
            for some in _batches(runs):
                connection.execute(delete(table).where(run_of(table.c.head).in_(some)))
        if runs_after(connection, namespace, runs):
            raise ContinuedError  # the transaction is rolled back

    try:
        await engine.run_in_transaction(execute)
    except ContinuedError:
        return False
    return True


def runs_of_conversation(connection: Connection, namespace: str, conversation: str) -> dict[str, set[str]]:
    """The runs that wrote the last messages of the conversations with that id, by the namespaces of their manifests.

    Those of all Memories are meant.
    """
    found: dict[str, set[str]] = {}
    for table in (schema.conversations, schema.copies):
        own = table.c.temporal_namespace == namespace, table.c.id == conversation
        for row in connection.execute(select(table.c.namespace, run_of(table.c.head).label("run")).where(*own)):
            found.setdefault(row.namespace, set()).add(row.run)
    return found


def _connected(runs: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Iterator[Conversation]:
    """The connected components of a graph of runs."""
    neighbours: dict[str, list[str]] = {run: [] for run in runs}
    for one, other in pairs:
        neighbours.setdefault(one, []).append(other)
        neighbours.setdefault(other, []).append(one)
    while neighbours:
        reachable = set[str]()
        pending = [next(iter(neighbours))]
        while pending:
            if (run := pending.pop()) in neighbours:
                reachable.add(run)
                pending.extend(neighbours.pop(run))
        yield frozenset(reachable)


def count_messages(connection: Connection, runs: Collection[str]) -> int:
    """The number of messages that belong to runs."""
    column = schema.messages.c.id
    batches = (select(func.count()).where(run_of(column).in_(some)) for some in _batches(runs))
    return sum(connection.execute(batch).scalar_one() for batch in batches)


async def delete_runs(engine: Engine, runs: Collection[str]) -> None:
    """Deletes the rows of runs, and the catalogs that no other run uses.

    A statement deletes at most MAX_DELETED rows, and is followed by a pause of its own duration: a writer that waits
    for SQLite's lock only retries from time to time. Messages are deleted last: as long as there are some, the next
    prune finds the conversation again if this one is interrupted.

    A catalog that a run begins to use meanwhile stays: a run records its use first, and the statements check the uses.
    If they were too early to see it, the run waits for the deletion, and writes the catalog again.
    """
    messages_last = sorted(RUN_COLUMNS, key=lambda column: column is schema.messages.c.id)
    for column in messages_last:
        for some in _batches(runs):
            if await _delete_batch(engine, run_of(column).in_(some), column.table) < MAX_DELETED:
                continue
            for few in _batches(some, RUNS_AT_ONCE):
                while await _delete_batch(engine, run_of(column).in_(few), column.table) == MAX_DELETED:
                    pass


async def _delete_batch(engine: Engine, condition: ColumnElement[bool], table: Table) -> int:
    """Deletes at most MAX_DELETED rows, pauses as long as that took, and returns their number.

    What they were the last to use is deleted in the same transaction: nothing refers to it afterwards.
    """
    began = time.monotonic()
    deleted = await engine.run_in_transaction(partial(_delete_some, condition=condition, table=table))
    if deleted:
        await asyncio.sleep(time.monotonic() - began)
    return deleted


def _delete_some(connection: Connection, condition: ColumnElement[bool], table: Table) -> int:
    keys = [*table.primary_key]
    wanted = select(*keys).where(condition).limit(MAX_DELETED)
    if table in SHARED.values():
        wanted = wanted.order_by(*keys).with_for_update()  # as below
    rows = connection.execute(wanted).all()
    if not rows:
        return 0
    shared = SHARED.get(table)
    if shared is not None:
        # Whoever stores such a row, or deletes another use of it, waits; the next statements see what it did before.
        # Two deletions of the last two uses would otherwise each see the other one's. In order, so that none deadlock.
        used = shared.c.sha.in_({row.sha for row in rows})
        connection.execute(select(shared.c.sha).where(used).order_by(shared.c.sha).with_for_update())
    chosen = and_(tuple_(*keys).in_([tuple(row) for row in rows]), condition)
    if table is schema.charges:
        release_bookings(connection, chosen)
    connection.execute(delete(table).where(chosen))
    if shared is not None:
        connection.execute(delete(shared).where(used, _is_unused(table)))
    return len(rows)


def _is_unused(uses: Table) -> ColumnElement[bool]:
    """The condition for rows of the table that is SHARED by these uses: nothing uses them."""
    return ~exists().where(uses.c.sha == SHARED[uses].c.sha)


async def delete_unused(engine: Engine) -> None:
    """Deletes the catalogs and large values that nothing uses: earlier versions left some if they were killed."""
    for uses, shared in SHARED.items():
        while await _delete_batch(engine, _is_unused(uses), shared) == MAX_DELETED:
            pass


def find_idle_families(connection: Connection, namespace: str, before: datetime) -> set[str]:
    """The families of workflows that have stored no value since ``before``, a time of the database."""
    holds = schema.holds.c
    last = func.max(holds.at)
    families = select(holds.family).where(holds.temporal_namespace == namespace)
    idle = families.group_by(holds.family).having(last <= int(before.timestamp()))
    return {*connection.execute(idle).scalars()}


def has_values(connection: Connection, namespace: str) -> bool:
    """Whether workflows of a namespace have stored large values."""
    stored = select(schema.holds.c.sha).where(schema.holds.c.temporal_namespace == namespace)
    return connection.execute(stored.limit(1)).first() is not None


async def delete_values(engine: Engine, namespace: str, families: Collection[str], until: datetime) -> set[str]:
    """Deletes the large values that only these families have stored ``until`` a time of the database.

    They are stored with whole seconds, so those of the whole last second are deleted. A value that is stored later
    stays, as in ``delete_runs``. Returns the families that have such values.
    """
    holds = schema.holds.c
    left = set[str]()
    for some in _batches(families):
        of_families = and_(holds.temporal_namespace == namespace, holds.family.in_(some))
        old = and_(of_families, holds.at <= int(until.timestamp()))
        while await _delete_batch(engine, old, schema.holds) == MAX_DELETED:
            pass
        left |= await engine.run(partial(_families, condition=of_families))
    return left


def _families(connection: Connection, condition: ColumnElement[bool]) -> set[str]:
    return {*connection.execute(select(schema.holds.c.family).where(condition).distinct()).scalars()}


def database_now(connection: Connection) -> datetime:
    """The time of the database, with which times in the journal are compared."""
    return datetime.fromtimestamp(database_time(connection), UTC)


async def delete_old_periods(engine: Engine) -> None:
    """Deletes the usage under Quotas in periods that are long over, of all tenants."""
    while await engine.run(partial(delete_ended_periods, most=MAX_DELETED)) == MAX_DELETED:
        pass


def remove_traces(connection: Connection, dialect: str) -> None:
    """Removes what was deleted from the files of a SQLite database. PostgreSQL's VACUUM does so in its own time."""
    if dialect == "sqlite":
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def _batches(ids: Collection[str], size: int = BATCH_SIZE) -> Iterator[list[str]]:
    ordered = sorted(ids)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]
