"""Brings the journal's tables to the version that this Baton needs, when a worker starts.

The table ``baton_schema`` has a row for each version that the tables have been brought to. Alembic's own version table
is not used: every Baton so far reads this one, and refuses to start on a journal with any version that it doesn't know.
"""

import asyncio
import logging
from pathlib import Path

from sqlalchemy import Connection, func, inspect, literal, select

from ..contracts.errors import JournalUnavailable
from . import schema
from .engine import Engine
from .rows import insert_missing

MIGRATIONS = Path(__file__).parent / "migrations"

RETRY_DELAYS = (0.1, 0.2, 0.4, 0.8)
"""Seconds between attempts: the database may be busy for a moment, or an older worker may be creating its tables."""

_log = logging.getLogger(__name__)


def newest(migrations: Path) -> int:
    """The highest version that a folder of migrations leads to, by the files' names: Alembic takes long to import."""
    return max(int(file.stem.removeprefix("version_")) for file in migrations.glob("version_*.py"))


VERSION = newest(MIGRATIONS)
"""The version of the tables that this Baton reads and writes."""


async def migrate(engine: Engine, migrations: Path = MIGRATIONS, *, upgrade: bool = True) -> None:
    """Creates the tables if there are none, and brings older ones to the newest version if ``upgrade``.

    Workers upgrade. Clients do not: one that is newer than the workers must not make the journal too new for them.

    Raises:
        JournalUnavailable: the database can't be reached or used, or a newer Baton has migrated the tables.
    """
    needed = newest(migrations)
    for delay in (*RETRY_DELAYS, None):
        try:
            found = await engine.run(_inspect)
            if found < needed and (upgrade or not found):
                found = await engine.run_exclusively(lambda connection: _upgrade(connection, migrations))
            break
        except JournalUnavailable:
            if delay is None:
                raise
            await asyncio.sleep(delay)
    if found > needed:
        raise JournalUnavailable(
            f"the journal's tables are of version {found}, and this Baton knows them up to version {needed}: "
            f"run a Baton that knows version {found}, or restore the journal's backup"
        )


def version(connection: Connection) -> int:
    """The version of the tables; 0 where there are none."""
    if not inspect(connection).has_table(schema.versions.name):
        return 0
    return connection.execute(select(func.max(schema.versions.c.version))).scalar() or 0


def _inspect(connection: Connection) -> int:
    """The version of the tables; fails where the database can't hold every character."""
    connection.execute(select(literal("🎼"))).all()
    return version(connection)


def _upgrade(connection: Connection, migrations: Path) -> int:
    """Runs the migrations that are missing, in one transaction, and returns the version of the tables after it."""
    from alembic.migration import MigrationContext  # noqa: PLC0415  # takes long, and most workers find all done
    from alembic.operations import Operations  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    found = version(connection)  # again: another worker may have migrated while this one waited for the lock
    if found >= newest(migrations):
        return found
    operations = Operations(MigrationContext.configure(connection))
    scripts = ScriptDirectory(migrations, version_locations=[migrations])
    missing = scripts.iterate_revisions("head", f"{found:04}" if found else "base")  # the newest first
    for script in reversed([*missing]):
        script.module.upgrade(operations)
        found = int(script.revision)
        connection.execute(insert_missing(connection.dialect.name, schema.versions), {"version": found})
        _log.info("the journal's tables are of version %s now", found)
    return found
