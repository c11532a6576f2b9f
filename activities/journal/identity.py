"""The identity of a journal: its id, the ids of the journals that it replaces, and the namespaces that it serves."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, exists, inspect, select
from temporalio.client import Client

from ...conversation.contracts.journal_name import JournalName
from ...conversation.errors import JournalUnavailable
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.begun_runs import begun_runs
from ...conversation.temporal.live_workers import describe_namespace
from . import schema
from .engine import Engine
from .statements import insert_missing

UNKNOWN = "unknown"
"""The id of a journal that is not known: that of a run of a Baton that did not note it."""

_ID, _SERVES, REPLACES = "id", "serves/", "replaces/"
"""The names of what is noted, before its value."""


@dataclass(frozen=True)
class JournalIdentity:
    """The ``name`` of a journal, the ids that it ``replaces``, the namespaces by id, and whether it ``is_empty``."""

    name: JournalName
    replaces: frozenset[str]
    serves: frozenset[str]
    is_empty: bool

    @classmethod
    async def read(cls, engine: Engine) -> "JournalIdentity":
        """Reads it from a journal; raises JournalUnavailable."""
        rows, is_empty = await engine.run(_read)
        values = {kind: frozenset(v for n, v in rows.items() if n == f"{kind}{v}") for kind in (REPLACES, _SERVES)}
        name = JournalName(id=rows.get(_ID, UNKNOWN), place=engine.place)
        return cls(name, values[REPLACES], values[_SERVES], is_empty)

    @classmethod
    async def checked(cls, client: Client, engine: Engine, task_queue: str) -> "JournalIdentity":
        """The identity of a worker's journal, which from now on serves the client's namespace.

        Raises SettingsError if the open runs of the task queue began with another journal, and RPCError.
        """
        identity = await cls.read(engine)
        identity.check(await begun_runs(client, task_queue))
        await note(engine, _SERVES, [(await describe_namespace(client)).namespace_info.id])
        return identity

    def check(self, begun: Mapping[str, JournalName | None]) -> None:
        """Checks that open runs began with this journal, or with one that it replaces; raises SettingsError.

        ``begun`` has the journals by the runs' ids, and None for a run of an older Baton: that is not in an empty one.
        """
        unknown = JournalName(id=UNKNOWN, place="") if self.is_empty else self.name
        others = {run: each or unknown for run, each in begun.items()}
        missed = {run: each for run, each in others.items() if each.id not in (self.name.id, *self.replaces)}
        if not missed:
            return
        run, other = next(iter(missed.items()))
        where = f"the journal {other.id} at {other.place}" if other.place else "another journal, and this one is empty"
        ids = " ".join(sorted({each.id for each in missed.values()}))
        raise SettingsError(
            f"this worker has the journal {self.name.id} at {self.name.place}, and the open run {run} began with "
            f"{where}. Start the worker with that BATON_HOME or BATON_JOURNAL_URL: until then the run waits. "
            f"If that journal is lost, let this one take its place: baton replace-journal {ids}"
        )

    async def check_unchanged(self, engine: Engine) -> None:
        """Raises JournalUnavailable if there is another journal now where this one was."""
        if (now := await JournalIdentity.read(engine)).name.id != self.name.id:
            raise JournalUnavailable(f"the journal at {engine.place} was replaced by {now.name.id} under this worker")


async def note(engine: Engine, kind: str, values: Collection[str]) -> None:
    """Notes values of a kind in a journal; raises JournalUnavailable."""
    rows = [{"name": f"{kind}{value}", "value": value} for value in values]
    insert = insert_missing(engine.dialect, schema.identity)
    await engine.run(lambda connection: [connection.execute(insert, row) for row in rows])


def _read(connection: Connection) -> tuple[dict[str, str], bool]:
    if not inspect(connection).has_table(
        schema.identity.name
    ):  # of an older Baton, which no worker of this one has used
        return {}, False
    rows = connection.execute(select(schema.identity.c.name, schema.identity.c.value)).all()
    used = connection.execute(select(exists(select(schema.uses.c.run)))).scalar()
    return {row.name: row.value for row in rows}, not used
