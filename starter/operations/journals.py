"""Migrates a journal, encrypts it with a new key, and makes it the replacement of a lost one."""

import os
from collections.abc import Collection, Mapping

from ...activities.runtime.settings import Settings
from ...journal.database import Database, note_replaced
from ...journal.journal import Journal
from ...journal.migrate import VERSION
from ...journal.reencrypt import Reencrypted, reencrypt
from ...temporal.encryption import KEYS, Keys
from ..errors import UsageError


def journal_address() -> str:
    """The journal's address in the environment; raises SettingsError."""
    return Settings.of(os.environ).journal


async def migrate_journal(environment: Mapping[str, str]) -> str:
    """Migrates the tables of the configured journal to the newest version; returns a message without its password.

    Tables of that version are not changed. Raises JournalUnavailable and SettingsError.
    """
    settings = Settings.of(environment)
    settings.make_journal_file()
    database = await Database.connect(settings.journal, upgrade=True)
    await database.close()
    return f"the tables of the journal at {database.engine.place} have version {VERSION}"


async def reencrypt_journal(environ: Mapping[str, str]) -> Reencrypted:
    """Encrypts the journal of an environment with the first of its keys.

    Raises JournalUnavailable, SettingsError, and UsageError if there is no key.
    """
    keys = Keys.from_environment(environ)
    if not keys.ids:
        raise UsageError(f"{KEYS} is not set: the journal is encrypted with the first of its keys")
    journal = await Journal.open(Settings.of(environ).journal, keys, upgrade=False)
    try:
        return await reencrypt(journal, keys.ids[0])
    finally:
        await journal.close()


async def replace_journals(url: str, ids: Collection[str]) -> str:
    """Makes the journal at ``url`` the replacement of others, and returns its address without a password.

    Data of open runs in the other journals count as lost. Raises JournalUnavailable.
    """
    async with Database.open(url) as database:
        await note_replaced(database.engine, ids)
        return database.engine.place
