"""Migrates the journal's tables without a worker, for a database in which workers may not create tables."""

from collections.abc import Mapping

from ...activities.journal.database import Database
from ...activities.journal.migrate import VERSION
from ...activities.process.settings import Settings


async def migrate_journal(environment: Mapping[str, str]) -> str:
    """Brings the tables of the environment's journal to the newest version, and says so without its password.

    Tables of this version stay as they are. Raises JournalUnavailable and SettingsError.
    """
    settings = Settings.of(environment)
    settings.make_journal_file()
    database = await Database.connect(settings.journal, upgrade=True)
    await database.close()
    return f"the tables of the journal at {database.engine.place} are of version {VERSION}"
