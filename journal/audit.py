"""The audit log in the journal: who did what, in rows that are only added, each with the hash of the row before.

It has names and ids, and nothing of contents. A row that is changed, removed or inserted later breaks the chain. Rows
removed at its end are noticed by whoever has kept a later hash.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import TYPE_CHECKING, Literal, Self

from sqlalchemy import Connection, func, insert, select

from ..contracts.identity import Actor
from . import schema

if TYPE_CHECKING:
    from .database import Database

AuditAction = Literal[
    "start",
    "retry",
    "fork",
    "steer",
    "session",
    "pause",
    "resume",
    "terminate",
    "cancel",
    "end",
    "approve",
    "deny",
    "reply",
    "result",
    "create",
    "update",
    "delete",
    "key",
]
"""What was done: to a run, a conversation or a user's runs, to a manifest of the store, or to the journal's keys."""

_LOCK = 7_283_415_906_220_117
"""PostgreSQL's advisory lock of the chain, which has one end."""

PAGE = 1_000
"""Rows that are read at once."""


@dataclass(frozen=True)
class AuditEntry:
    """Something that was done, ``at`` a time in milliseconds since 1970, once for each ``id``.

    ``who`` is a name, which is only ``verified`` if a gateway knew it by a key or a token. ``via`` is how it came:
    over a ``gateway``, from the command line to the ``journal``, or through a client of ``temporal``, of which
    ``client`` is the identity that it gives itself. ``kind``, ``namespace`` and ``name`` are those of the manifest, or
    ``run`` with the namespace in Temporal and the id of the run, or ``conversation`` with the namespace of its
    manifests, or ``user``. ``detail`` is an id or a number, such as the call that
    was approved, the version that was written, or the phase in which a run has ended.
    """

    id: str
    at: int
    action: str
    who: str
    verified: bool
    via: str
    client: str
    kind: str
    namespace: str
    name: str
    outcome: Literal["success", "failure"] = "success"
    detail: str = ""

    @property
    def subject(self) -> str:
        """``KIND/NAME`` in lower case; of a manifest in another namespace than ``default``, ``KIND/NAMESPACE/NAME``."""
        is_manifest = not self.kind.islower()  # unlike a run, a conversation, a user or a key
        namespace = f"{self.namespace}/" if is_manifest and self.namespace != "default" else ""
        return f"{self.kind.lower()}/{namespace}{self.name}"

    @classmethod
    def by(
        cls,
        actor: Actor,
        place: Sequence[str],
        action: AuditAction,
        key: tuple[str, str, str],
        *,
        at: int | None = None,
        outcome: Literal["success", "failure"] = "success",
        detail: str = "",
    ) -> Self:
        """What an actor did to the thing with a ``key``: kind, namespace and name; once for each ``place``."""
        kind, namespace, name = key
        return cls(
            id=hashlib.sha256("\n".join((*place, action, *key)).encode()).hexdigest(),
            at=round(time.time() * 1000) if at is None else at,
            action=action,
            who=_short(actor.who),
            verified=actor.verified,
            via=actor.via,
            client=_short(actor.client),
            kind=kind,
            namespace=_short(namespace),
            name=_short(name),
            outcome=outcome,
            detail=_short(detail),
        )


def _short(text: str) -> str:
    """A text as the table holds it, which PostgreSQL does not take with zeros."""
    return text.replace("\0", "")[:255]


@dataclass(frozen=True)
class AuditRow:
    """A row of the log: its number from 1, what was done, and the hashes of the row before and of this one."""

    number: int
    entry: AuditEntry
    previous: str
    hash: str

    @property
    def is_intact(self) -> bool:
        """Whether it is the row that was written."""
        return self.hash == _hash(self.number, self.entry, self.previous)


_NAMES = tuple(field.name for field in fields(AuditEntry))


def _hash(number: int, entry: AuditEntry, previous: str) -> str:
    text = json.dumps([previous, number, *astuple(entry)], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def append(connection: Connection, entries: Iterable[AuditEntry]) -> None:
    """Adds the entries that the log does not have, in the transaction of what was done."""
    new = {entry.id: entry for entry in entries}
    if not new:
        return
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    table = schema.audit
    for (known,) in connection.execute(select(table.c.id).where(table.c.id.in_([*new]))).all():
        del new[known]
    last = connection.execute(select(table.c.number, table.c.hash).order_by(table.c.number.desc()).limit(1)).first()
    number, previous = (last.number, last.hash) if last else (0, "")
    rows = []
    for entry in new.values():
        number += 1
        row = AuditRow(number, entry, previous, _hash(number, entry, previous))
        rows.append({"number": number, "previous": previous, "hash": row.hash, **asdict(entry)})
        previous = row.hash
    if rows:
        connection.execute(insert(table), rows)


class AuditLog:
    """The audit log in a ``database``, of all its Temporal namespaces."""

    def __init__(self, database: "Database") -> None:
        self._database = database

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Adds the entries that the log does not have."""
        await self._database.transact(lambda connection: append(connection, entries))

    async def read(self, after: int) -> list[AuditRow]:
        """At most PAGE rows after the one with a number, in their order."""
        table = schema.audit
        rows = await self._database.run(
            select(table).where(table.c.number > after).order_by(table.c.number).limit(PAGE)
        )
        return [
            AuditRow(
                number=row.number,
                entry=AuditEntry(**{name: getattr(row, name) for name in _NAMES}),
                previous=row.previous,
                hash=row.hash,
            )
            for row in rows
        ]


def broken(rows: Iterable[AuditRow], last: AuditRow | None) -> Iterator[str]:
    """What is wrong with rows that follow the row ``last``, in sentences."""
    for row in rows:
        number, previous = (last.number, last.hash) if last else (0, "")
        if row.number != number + 1:
            yield f"the rows {number + 1} to {row.number - 1} are missing"
        elif row.previous != previous:
            yield f"the row {row.number} does not follow the row before"
        if not row.is_intact:
            yield f"the row {row.number} was changed"
        last = row
