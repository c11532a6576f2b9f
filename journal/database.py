"""The journal's database: executes statements, with retries while it is unreachable, and stores its identity."""

import asyncio
import contextlib
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Executable, Table, select
from sqlalchemy import Row as Record

from ..contracts.errors import JournalLost, JournalUnavailable
from ..contracts.requests import JournalName
from . import schema
from .engine import Engine, Work, connect
from .migrate import migrate
from .rows import insert_missing, upsert_hold, without_shared

RETRY_INTERVAL = 1.0
"""Seconds between the first two attempts to reach the database; each is up to half shorter or longer."""

MAX_RETRY_INTERVAL = 8.0
"""Seconds up to which the interval doubles, so that many waiting calls do not all retry at once."""

T = TypeVar("T")

Rows = tuple[Table, Sequence[Mapping[str, Any]]]
"""Rows of a table."""

_log = logging.getLogger(__name__)


class Database:
    """The database of a journal, as the workers and clients of a Temporal ``namespace`` use it.

    Several namespaces may share a journal. Conversations, their messages, and large values belong to one of them.
    """

    def __init__(self, engine: Engine, namespace: str) -> None:
        self.engine = engine
        self.namespace = namespace
        self._ending = asyncio.Event()
        self._running = set[asyncio.Task[Any]]()

    @classmethod
    async def connect(
        cls, url: str, namespace: str, *, upgrade: bool, create: bool = True, longest: float | None = None
    ) -> Self:
        """Connects to the database, and has its tables as ``migrate`` leaves them; raises JournalUnavailable."""
        database = cls(connect(url, longest=longest), namespace)
        try:
            await migrate(database.engine, upgrade=upgrade, create=create)
        except JournalUnavailable:
            await database.close()
            raise
        return database

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, namespace: str) -> AsyncIterator[Self]:
        """A context manager that opens the database for a client, which never migrates existing tables."""
        database = await cls.connect(url, namespace, upgrade=False)
        try:
            yield database
        finally:
            await database.close()

    async def close(self) -> None:
        """Closes the connections once all running statements have ended."""
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.engine.dispose()

    async def insert(
        self, *inserts: Rows, then: Work[None] | None = None, atomic: bool = False
    ) -> Sequence[Record[Any]]:
        """Inserts the rows whose primary keys are not in their tables yet, table by table, in one write.

        ``then`` is called with the same connection, with ``atomic`` in the same transaction. Returns the keys of the
        rows that were inserted into the last table.
        """

        def execute(connection: Connection) -> Sequence[Record[Any]]:
            keys: Sequence[Record[Any]] = ()
            for table, rows in inserts:
                missing = without_shared(connection, table, rows)
                keys = _execute(connection, insert_missing(self.engine.dialect, table), missing) if missing else ()
            if then:
                then(connection)
            return keys

        return await self.write(execute, atomic=atomic)

    async def run(self, statement: Executable, *parameters: Mapping[str, Any]) -> Sequence[Record[Any]]:
        """Executes one statement, with unlimited retries while the database is unreachable.

        It never gives up, because the statement may contain a model's reply that was paid for. Raises
        JournalUnavailable if the database rejects the statement itself.
        """
        return await self._with_retries(lambda: self._execute(statement, *parameters))

    async def transact(self, work: Work[T]) -> T:
        """Calls a function that executes several statements in one transaction, with the retries of ``run``."""
        return await self.write(work, atomic=True)

    async def write(self, work: Work[T], *, atomic: bool, durable: bool = True) -> T:
        """Calls a function that executes statements; unless ``atomic``, every statement may commit by itself.

        What need not be ``durable`` may be lost in a power failure; what is atomic is durable.
        """
        if atomic:
            return await self._with_retries(lambda: self.engine.run_in_transaction(work))
        return await self._with_retries(lambda: self.engine.write(work, durable=durable))

    async def _with_retries(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        interval = RETRY_INTERVAL
        while True:
            try:
                return await self._shielded(attempt())
            except JournalUnavailable as error:
                if error.non_retryable or self._ending.is_set():
                    raise
                _log.warning("waiting for the journal: %s", error.message)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(interval * random.uniform(0.5, 1.5)):
                        await self._ending.wait()
                interval = min(2 * interval, MAX_RETRY_INTERVAL)

    def give_up(self) -> None:
        """From now on, nothing waits for a database that is unreachable: this process is ending.

        Calls that have no answer in the journal are made again by other workers.
        """
        self._ending.set()

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Executes a statement to its end even if the caller is canceled: an aborted one might not release its lock."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it if the caller was cancelled

    async def _execute(self, statement: Executable, *parameters: Mapping[str, Any]) -> Sequence[Record[Any]]:
        run = self.engine.run if statement.is_select else self.engine.write
        return await run(lambda connection: _execute(connection, statement, parameters))

    async def put_blob(self, blob: bytes, family: str) -> str:
        """Stores bytes under their SHA-256 for a family of workflows, and returns the SHA-256."""
        sha = hashlib.sha256(blob).hexdigest()
        # Written first, so that a concurrent prune does not delete the value.
        await self.run(upsert_hold(self.engine.dialect, self.namespace, family, sha))
        await self.insert((schema.blobs, [{"sha": sha, "blob": blob}]))
        return sha

    async def get_blob(self, sha: str) -> bytes:
        """The bytes stored under ``sha``; raises JournalLost if there are none."""
        rows = await self.run(select(schema.blobs.c.blob).where(schema.blobs.c.sha == sha))
        if not rows:
            raise journal_lost(f"the value {sha}")
        blob: bytes = rows[0][0]
        return blob


def _execute(
    connection: Connection, statement: Executable, parameters: Sequence[Mapping[str, Any]]
) -> Sequence[Record[Any]]:
    result = connection.execute(statement, parameters if len(parameters) > 1 else next(iter(parameters), None))
    return result.all() if result.returns_rows else ()


def journal_lost(what: str) -> JournalLost:
    """The error for data that must be in the journal and is missing."""
    return JournalLost(
        f"the journal does not hold {what}: restore the journal's database from the backup that matches Temporal's"
    )


_ID = "id"
_SERVES = "serves/"
_REPLACES = "replaces/"
"""The name of the id, and the prefixes of other names in the identity table, which precede the value."""


@dataclass(frozen=True)
class JournalIdentity:
    """The ``name`` of a journal, the ids of the journals that it ``replaces``, and the Temporal namespaces it
    ``serves``: their names by their ids."""

    name: JournalName
    replaces: frozenset[str]
    serves: Mapping[str, str]

    def ids_of(self, namespace: str) -> set[str]:
        """The ids of the namespaces of that name: several if more than one Temporal server has used the journal."""
        return {namespace_id for namespace_id, name in self.serves.items() if name == namespace}

    @classmethod
    async def read(cls, engine: Engine) -> "JournalIdentity":
        """Reads the identity of a journal; raises JournalUnavailable."""
        statement = select(schema.identity.c.name, schema.identity.c.value)
        rows = await engine.run(lambda connection: connection.execute(statement).all())
        return cls(
            name=JournalName(id=next(row.value for row in rows if row.name == _ID), place=engine.place),
            replaces=frozenset(row.value for row in rows if row.name.startswith(_REPLACES)),
            serves={row.name[len(_SERVES) :]: row.value for row in rows if row.name.startswith(_SERVES)},
        )

    async def check_unchanged(self, engine: Engine) -> None:
        """Raises JournalUnavailable if the database has become another journal."""
        now = await JournalIdentity.read(engine)
        if now.name.id != self.name.id:
            raise JournalUnavailable(
                f"the journal at {engine.place} was replaced by {now.name.id} while this worker runs"
            )


async def note_namespace(engine: Engine, namespace_id: str, name: str) -> None:
    """Records a Temporal namespace that the journal serves; raises JournalUnavailable."""
    await _note(engine, {f"{_SERVES}{namespace_id}": name})


async def note_replaced(engine: Engine, ids: Collection[str]) -> None:
    """Records the ids of journals that this one replaces; raises JournalUnavailable."""
    await _note(engine, {f"{_REPLACES}{journal_id}": journal_id for journal_id in ids})


async def _note(engine: Engine, values: Mapping[str, str]) -> None:
    rows = [{"name": name, "value": value} for name, value in values.items()]
    insert = insert_missing(engine.dialect, schema.identity)
    await engine.run(lambda connection: [connection.execute(insert, row) for row in rows])
