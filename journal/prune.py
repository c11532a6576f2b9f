"""Deletes conversations from the journal, with the catalogs, bookmarks and large values that only they use.

A row belongs to the run that wrote it: its id begins with the run's id. Runs whose rows are linked, such as those of a
team, its nested teams and its continue-as-new chain, are one conversation, which is deleted as a whole.
"""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, exists, func, select

from . import schema

RUN_ID_LENGTH = 36
"""Characters of a run's id, which is a UUID."""

RUN_COLUMNS = (
    schema.messages.c.id,
    schema.uses.c.run,
    schema.bookmarks.c.head,
    schema.accounts.c.id,
    schema.calls.c.id,
    schema.charges.c.call,
    schema.grants.c.account,
)
"""Columns that begin with the id of a run; their rows are deleted with it. Add those of new tables here."""

SHARED_COLUMNS = (schema.catalogs.c.sha,)
"""Columns of rows that several runs share; such a row is deleted with the last of them."""

BATCH_SIZE = 500
"""Ids in one statement."""

Conversation = frozenset[str]
"""The ids of the runs that have written a conversation."""


def _run(column: ColumnElement[str]) -> ColumnElement[str]:
    return func.substr(column, 1, RUN_ID_LENGTH)


def find_conversations(connection: Connection) -> list[Conversation]:
    """All conversations of the journal."""
    row = _run(schema.messages.c.id)
    below = _run(schema.messages.c.parent)
    written = connection.execute(select(row).distinct()).scalars().all()
    links = connection.execute(select(row, below).where(below != "", row != below).distinct()).all()
    return [*_connected(written, ((first, second) for first, second in links))]


def live_runs(connection: Connection) -> set[str]:
    """The runs that wrote the last messages of conversations that later queries continue."""
    return {*connection.execute(select(_run(schema.conversations.c.head)).distinct()).scalars()}


def runs_after(connection: Connection, runs: Collection[str]) -> set[str]:
    """Other runs whose messages continue those of these runs."""
    row = _run(schema.messages.c.id)
    below = _run(schema.messages.c.parent)
    following = set[str]()
    for some in _batches(runs):
        following.update(connection.execute(select(row).where(below.in_(some)).distinct()).scalars())
    return following - {*runs}


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
    batches = (select(func.count()).where(_run(column).in_(some)) for some in _batches(runs))
    return sum(connection.execute(batch).scalar_one() for batch in batches)


def delete_runs(connection: Connection, runs: Collection[str]) -> None:
    """Deletes the rows of runs, and then the catalogs that no other run uses.

    A catalog that a run begins to use meanwhile stays: a run records its use first, and the statements check the uses.
    """
    used = set[str]()
    for some in _batches(runs):
        of_runs = select(schema.uses.c.sha).where(_run(schema.uses.c.run).in_(some))
        used.update(connection.execute(of_runs).scalars())
        for column in RUN_COLUMNS:
            connection.execute(delete(column.table).where(_run(column).in_(some)))
    for column in SHARED_COLUMNS:
        for some in _batches(used):
            unused = ~exists().where(schema.uses.c.sha == column)
            connection.execute(delete(column.table).where(column.in_(some), unused))


def find_idle_families(connection: Connection, before: datetime) -> set[str]:
    """The families of workflows that have stored no value since ``before``."""
    last = func.max(schema.holds.c.at)
    idle = select(schema.holds.c.family).group_by(schema.holds.c.family).having(last < int(before.timestamp()))
    return {*connection.execute(idle).scalars()}


def delete_values(connection: Connection, families: Collection[str], before: datetime) -> None:
    """Deletes the large values that only these families have stored, all of them before ``before``.

    A value that is stored meanwhile stays, as in ``delete_runs``.
    """
    holds = schema.holds.c
    blobs = schema.blobs.c
    for some in _batches(families):
        of_families = holds.family.in_(some), holds.at < int(before.timestamp())
        released = connection.execute(select(holds.sha).where(*of_families)).scalars().all()
        connection.execute(delete(schema.holds).where(*of_families))
        for some_released in _batches({*released}):
            unused = ~exists().where(holds.sha == blobs.sha)
            connection.execute(delete(schema.blobs).where(blobs.sha.in_(some_released), unused))


def _batches(ids: Collection[str]) -> Iterator[list[str]]:
    ordered = sorted(ids)
    for start in range(0, len(ordered), BATCH_SIZE):
        yield ordered[start : start + BATCH_SIZE]
