"""What erasures that have begun have still to erase, so that an interrupted one is finished by the same command."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, and_, delete, select

from . import schema
from .rows import insert_missing


class Named(NamedTuple):
    """What an erasure was told to erase: a ``run``, a ``conversation`` or a ``user``, with its name.

    The namespace is that of the manifests of a conversation, otherwise empty.
    """

    kind: str
    namespace: str
    name: str


def note_erasure(
    connection: Connection, namespace: str, named: Collection[Named], runs: Collection[str]
) -> dict[Named, set[str]]:
    """Notes the runs that an erasure erases, by their run ids, under all that it was told to erase.

    Returns those that an interrupted one has not noted yet.
    """
    rows = [
        {"temporal_namespace": namespace, **each._asdict(), "run": run}
        for each in sorted(named)
        for run in sorted(runs)
    ]
    new: dict[Named, set[str]] = {}
    if rows:
        noted = connection.execute(insert_missing(connection.dialect.name, schema.erasures), rows)
        for row in noted:
            new.setdefault(Named(row.kind, row.namespace, row.name), set()).add(row.run)
    return new


def unfinished_erasures(connection: Connection, namespace: str, kinds: Collection[str]) -> dict[Named, set[str]]:
    """The run ids that erasures of these kinds have noted and not finished."""
    table = schema.erasures.c
    rows = connection.execute(
        select(table.kind, table.namespace, table.name, table.run).where(
            table.temporal_namespace == namespace, table.kind.in_(kinds)
        )
    )
    unfinished: dict[Named, set[str]] = {}
    for row in rows:
        unfinished.setdefault(Named(row.kind, row.namespace, row.name), set()).add(row.run)
    return unfinished


def forget_erasure(connection: Connection, namespace: str, named: Collection[Named]) -> None:
    """Forgets a finished erasure."""
    table = schema.erasures.c
    for each in named:
        own = and_(table.kind == each.kind, table.namespace == each.namespace, table.name == each.name)
        connection.execute(delete(schema.erasures).where(table.temporal_namespace == namespace, own))
