"""What of the journal may go? Whole conversations, with what they alone have used.

A row belongs to the run that wrote it, whose id it begins with. Runs whose rows hang on each other, such as a team, its
nested teams, and the runs that it was continued in, are one conversation: it stays as long as any of them is needed.
"""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, exists, func, select

from . import schema

RUN_ID = 36
"""Characters of a run's id."""

OF_A_RUN = (schema.messages.c.id, schema.uses.c.run, schema.bookmarks.c.head)
"""Columns that begin with the run that a row belongs to, and goes with."""

SHARED = (schema.catalogs.c.sha,)
"""Columns of what is kept once for all: such a row goes with the last run that uses it."""

AT_ONCE = 500
"""Runs, or checksums, that are looked for in one statement."""

Conversation = frozenset[str]
"""The ids of the runs that have written to a conversation."""


def _run(column: ColumnElement[str]) -> ColumnElement[str]:
    return func.substr(column, 1, RUN_ID)


def conversations(connection: Connection) -> list[Conversation]:
    """All conversations of the journal."""
    row, below = _run(schema.messages.c.id), _run(schema.messages.c.parent)
    written = connection.execute(select(row).distinct()).scalars().all()
    hang = connection.execute(select(row, below).where(below != "", row != below).distinct()).all()
    return [*_connected(written, ((first, second) for first, second in hang))]


def _connected(runs: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Iterator[Conversation]:
    near: dict[str, list[str]] = {run: [] for run in runs}
    for one, other in pairs:
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    while near:
        found, ahead = set[str](), [next(iter(near))]
        while ahead:
            if (run := ahead.pop()) in near:
                found.add(run)
                ahead.extend(near.pop(run))
        yield frozenset(found)


def count(connection: Connection, runs: Collection[str]) -> int:
    """How many messages belong to runs."""
    column = schema.messages.c.id
    counts = [select(func.count()).where(_run(column).in_(some)) for some in _batches(runs)]
    return sum(connection.execute(each).scalar_one() for each in counts)


def prune(connection: Connection, runs: Collection[str]) -> None:
    """Deletes what belongs to runs, and then what was shared with nobody else.

    What comes to be used while this goes on stays: each statement looks by itself, and a run notes its use first.
    """
    used = set[str]()
    for some in _batches(runs):
        theirs = select(schema.uses.c.sha).where(_run(schema.uses.c.run).in_(some))
        used.update(connection.execute(theirs).scalars())
        for column in OF_A_RUN:
            connection.execute(delete(column.table).where(_run(column).in_(some)))
    for column in SHARED:
        for some in _batches(used):
            unused = ~exists().where(schema.uses.c.sha == column)
            connection.execute(delete(column.table).where(column.in_(some), unused))


def families(connection: Connection, before: datetime) -> set[str]:
    """The families of workflows that have kept no value since then."""
    last = func.max(schema.holds.c.at)
    idle = select(schema.holds.c.family).group_by(schema.holds.c.family).having(last < int(before.timestamp()))
    return {*connection.execute(idle).scalars()}


def release(connection: Connection, past: Collection[str], before: datetime) -> None:
    """Deletes the values that only families which are past have kept.

    What comes to be kept while this goes on stays, as it does with ``prune``.
    """
    holds, blobs = schema.holds.c, schema.blobs.c
    for some in _batches(past):
        theirs = holds.family.in_(some), holds.at < int(before.timestamp())
        released = connection.execute(select(holds.sha).where(*theirs)).scalars().all()
        connection.execute(delete(schema.holds).where(*theirs))
        for few in _batches({*released}):
            unused = ~exists().where(holds.sha == blobs.sha)
            connection.execute(delete(schema.blobs).where(blobs.sha.in_(few), unused))


def _batches(ids: Collection[str]) -> Iterator[list[str]]:
    ordered = sorted(ids)
    for start in range(0, len(ordered), AT_ONCE):
        yield ordered[start : start + AT_ONCE]
