"""Migrates the journal's tables to the version that this release needs, when a worker starts.

The table ``baton_schema`` has a row for every version that the tables were migrated to. Alembic's own version table is
not used: reading it would import Alembic on every start, although most workers have nothing to migrate.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, inspect, literal, select, text

from ..contracts.errors import JournalUnavailable
from . import schema
from .engine import Engine, Work

if TYPE_CHECKING:
    from alembic.script import Script

MIGRATIONS = Path(__file__).parent / "migrations"

RETRY_DELAYS = (0.1, 0.2, 0.4, 0.8)
"""Seconds between attempts: the database may be busy."""

_log = logging.getLogger(__name__)


def newest(migrations: Path) -> int:
    """The highest version in a folder of migrations, from the file names, because importing Alembic is slow."""
    return max(int(file.stem.removeprefix("version_")) for file in migrations.glob("version_*.py"))


VERSION = newest(MIGRATIONS)
"""The version of the tables that this release reads and writes."""


async def migrate(engine: Engine, migrations: Path = MIGRATIONS, *, upgrade: bool = True, create: bool = True) -> None:
    """Creates the tables if there are none (``create``), and migrates older ones to the newest version if ``upgrade``.

    Workers upgrade. Clients do not: a client that is newer than the workers would make the journal too new for them.

    Raises:
        JournalUnavailable: the database is unreachable or unusable, or a newer release has migrated the tables; or,
            without ``create``, there are none.
    """
    if not create and engine.file and not engine.file.exists():  # connecting would create it
        raise JournalUnavailable(f"there is no journal at {engine.place}")
    needed = newest(migrations)
    for delay in (*RETRY_DELAYS, None):
        try:
            current = await engine.run(_inspect)
            if current < needed and (upgrade or (create and current == 0)):
                current = await _upgrade(engine, migrations)
            break
        except JournalUnavailable:
            if delay is None:
                raise
            await asyncio.sleep(delay)
    if current == 0 and not create:
        raise JournalUnavailable(f"there is no journal at {engine.place}: the database has no tables of Baton")
    if current > needed:
        raise JournalUnavailable(
            f"the journal's tables have version {current}, but this release supports them up to version {needed}: "
            f"run a release that supports version {current}, or restore the journal's backup"
        )


def version(connection: Connection) -> int:
    """The version of the tables; 0 if there are none."""
    if not inspect(connection).has_table(schema.versions.name):
        return 0
    return connection.execute(select(func.max(schema.versions.c.version))).scalar() or 0


def _inspect(connection: Connection) -> int:
    """The version of the tables; fails if the database can't store all Unicode characters."""
    connection.execute(select(literal("🎼"))).all()
    return version(connection)


async def _upgrade(engine: Engine, migrations: Path) -> int:
    """Runs the missing migrations, and returns the new version of the tables."""
    # Imported before a transaction begins: PostgreSQL ends one that is idle for seconds.
    from alembic.script import ScriptDirectory  # noqa: PLC0415  # slow, and most workers have nothing to migrate

    directory = ScriptDirectory(migrations, version_locations=[migrations])
    scripts = [*directory.walk_revisions()][::-1]  # which begins with the newest
    current = await engine.run(version)
    if current:
        # Until the transaction, workers of the earlier version can start: the tables still have their version.
        missing = [script for script in scripts if int(script.revision) > current]
        await engine.create_indexes({name: on for script in missing for name, on in _indexes(script).items()})
    return await engine.run_exclusively(_migrate(scripts))


def _indexes(script: "Script") -> Mapping[str, str]:
    indexes: Mapping[str, str] = getattr(script.module, "INDEXES", {})
    return indexes


def _migrate(scripts: "Sequence[Script]") -> Work[int]:
    """A function that runs the missing migrations in one transaction, and returns the version of the tables."""
    from alembic.migration import MigrationContext  # noqa: PLC0415  # slow, and most workers have nothing to migrate
    from alembic.operations import Operations  # noqa: PLC0415

    def execute(connection: Connection) -> int:
        before = version(connection)  # again: another worker may have migrated meanwhile
        operations = Operations(MigrationContext.configure(connection))
        for script in scripts:
            number = int(script.revision)
            if number <= before:
                continue
            for name, on in _indexes(script).items():  # those on tables that did not exist yet
                connection.execute(text(f"create index if not exists {name} on {on}"))
            if hasattr(script.module, "upgrade"):
                script.module.upgrade(operations)
            connection.execute(schema.versions.insert(), {"version": number})
            _log.info("the journal's tables now have version %s", number)
        return version(connection)

    return execute
