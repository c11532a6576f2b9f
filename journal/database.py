"""The journal's database: runs statements, retries while it can't be reached, and has an identity of its own."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Executable, Table, select
from sqlalchemy import Row as Record
from temporalio.client import Client

from ..contracts.errors import JournalLost, JournalUnavailable
from ..contracts.requests import JournalName
from ..contracts.settings import SettingsError
from ..temporal.executions import begun_runs
from ..temporal.search_attributes import describe_namespace
from . import schema
from .engine import Engine, Work, connect
from .migrate import migrate
from .rows import insert_missing, upsert_hold

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to reach the database."""

T = TypeVar("T")

Rows = tuple[Table, Sequence[Mapping[str, Any]]]
"""Rows of a table."""

_log = logging.getLogger(__name__)


class Database:
    """The database of a journal."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._running = set[asyncio.Task[Any]]()

    @classmethod
    async def connect(cls, url: str, *, upgrade: bool) -> Self:
        """Connects to the database, whose tables it creates or, if ``upgrade``, migrates; raises JournalUnavailable."""
        database = cls(connect(url))
        try:
            await migrate(database.engine, upgrade=upgrade)
        except JournalUnavailable:
            await database.close()
            raise
        return database

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        """The database for a client, which never migrates older tables, while the block runs."""
        database = await cls.connect(url, upgrade=False)
        try:
            yield database
        finally:
            await database.close()

    async def close(self) -> None:
        """Closes the connections when the running statements have ended."""
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.engine.dispose()

    async def insert(self, *given: Rows) -> Sequence[Record[Any]]:
        """Inserts the rows whose primary keys are not in their tables yet, one table after the other, in one write.

        Returns the keys of those of the last table.
        """

        def execute(connection: Connection) -> Sequence[Record[Any]]:
            statements = ((insert_missing(self.engine.dialect, table), rows) for table, rows in given)
            return [_execute(connection, each, rows) for each, rows in statements][-1]

        return await self._insist(lambda: self.engine.write(execute))

    async def run(self, statement: Executable, *parameters: Mapping[str, Any]) -> Sequence[Record[Any]]:
        """Runs one statement, and retries without end while the database can't be reached.

        It does not give up, because the statement may hold a model's reply that was paid for. Raises JournalUnavailable
        if the database refuses the statement itself.
        """
        return await self._insist(lambda: self._execute(statement, *parameters))

    async def transact(self, work: Work[T]) -> T:
        """Calls a function that runs several statements in one transaction, and retries as ``run`` does."""
        return await self._insist(lambda: self.engine.run_in_transaction(work))

    async def _insist(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await self._shielded(attempt())
            except JournalUnavailable as error:
                if error.non_retryable:
                    raise
                _log.warning("waiting for the journal: %s", error.message)
                await asyncio.sleep(RETRY_INTERVAL)

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs to its end even if the caller is cancelled: an aborted statement could leave its lock behind."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it if the caller was cancelled

    async def _execute(self, statement: Executable, *parameters: Mapping[str, Any]) -> Sequence[Record[Any]]:
        use = self.engine.run if statement.is_select else self.engine.write
        return await use(lambda connection: _execute(connection, statement, parameters))

    async def put_blob(self, blob: bytes, family: str) -> str:
        """Stores bytes under their SHA-256 for a family of workflows, and returns the SHA-256."""
        sha = hashlib.sha256(blob).hexdigest()
        await self.run(upsert_hold(self.engine.dialect, family, sha))  # first, so that no prune deletes it meanwhile
        await self.insert((schema.blobs, [{"sha": sha, "blob": blob}]))
        return sha

    async def get_blob(self, sha: str) -> bytes:
        """The bytes that are stored under ``sha``; raises JournalLost if there are none."""
        found = await self.run(select(schema.blobs.c.blob).where(schema.blobs.c.sha == sha))
        if not found:
            raise journal_lost(f"the value {sha}")
        blob: bytes = found[0][0]
        return blob


def _execute(
    connection: Connection, statement: Executable, parameters: Sequence[Mapping[str, Any]]
) -> Sequence[Record[Any]]:
    result = connection.execute(statement, parameters if len(parameters) > 1 else next(iter(parameters), None))
    return result.all() if result.returns_rows else ()


def journal_lost(what: str) -> JournalLost:
    """The error for something that must be in the journal and is not."""
    return JournalLost(
        f"the journal does not hold {what}: restore the journal's database from the backup that belongs to Temporal's"
    )


_ID = "id"
_SERVES = "serves/"
REPLACES = "replaces/"
"""The names in the table ``baton_identity``: of the journal's own id, and prefixes of names that end with a value."""


@dataclass(frozen=True)
class JournalIdentity:
    """The ``name`` of a journal, the ids of those that it ``replaces``, and of the namespaces that it ``serves``."""

    name: JournalName
    replaces: frozenset[str]
    serves: frozenset[str]

    @classmethod
    async def read(cls, engine: Engine) -> "JournalIdentity":
        """Reads it from a journal; raises JournalUnavailable."""
        select_all = select(schema.identity.c.name, schema.identity.c.value)
        rows = await engine.run(lambda connection: connection.execute(select_all).all())
        values = {row.name: row.value for row in rows}
        return cls(
            name=JournalName(id=values[_ID], place=engine.place),
            replaces=frozenset(value for name, value in values.items() if name.startswith(REPLACES)),
            serves=frozenset(value for name, value in values.items() if name.startswith(_SERVES)),
        )

    @classmethod
    async def checked(cls, client: Client, engine: Engine, task_queue: str) -> "JournalIdentity":
        """The identity of a worker's journal, which from now on serves the client's namespace.

        Raises SettingsError if the open runs of the task queue began with another journal, and RPCError.
        """
        identity = await cls.read(engine)
        identity.check(await begun_runs(client, task_queue))
        await note(engine, _SERVES, [(await describe_namespace(client)).namespace_info.id])
        return identity

    def check(self, journals: Mapping[str, JournalName]) -> None:
        """Checks that open runs began with this journal, or with one that it replaces; raises SettingsError.

        ``journals`` has the journal of each open run by the run's id.
        """
        missing = {run: name for run, name in journals.items() if name.id not in (self.name.id, *self.replaces)}
        if not missing:
            return
        run, other = next(iter(missing.items()))
        ids = " ".join(sorted({name.id for name in missing.values()}))
        raise SettingsError(
            f"this worker has the journal {self.name.id} at {self.name.place}, and the open run {run} began with "
            f"the journal {other.id} at {other.place}. Start the worker with that BATON_HOME or BATON_JOURNAL_URL: "
            f"until then the run waits. If that journal is lost, let this one take its place: "
            f"baton replace-journal {ids}"
        )

    async def check_unchanged(self, engine: Engine) -> None:
        """Raises JournalUnavailable if there is another journal now where this one was."""
        current = (await JournalIdentity.read(engine)).name
        if current.id != self.name.id:
            raise JournalUnavailable(f"the journal at {engine.place} was replaced by {current.id} under this worker")


async def note(engine: Engine, kind: str, values: Collection[str]) -> None:
    """Notes values of a kind in a journal; raises JournalUnavailable."""
    rows = [{"name": f"{kind}{value}", "value": value} for value in values]
    insert = insert_missing(engine.dialect, schema.identity)
    await engine.run(lambda connection: [connection.execute(insert, row) for row in rows])
