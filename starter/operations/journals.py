"""Migrates a journal, encrypts it with a new key, and makes it the replacement of a lost one."""

import os
from collections.abc import Collection, Mapping
from datetime import timedelta

from ...activities.runtime.settings import Settings
from ...journal.database import note_replaced
from ...journal.engine import LONG_STATEMENT, connect
from ...journal.journal import Journal
from ...journal.migrate import VERSION, migrate
from ...journal.reencrypt import Reencrypted, reencrypt
from ...temporal.encryption import KEYS, Keys
from ..errors import UsageError
from ..server.connection import temporal_namespace


def journal_address() -> str:
    """The journal's address in the environment; raises SettingsError."""
    return Settings.of(os.environ).journal


def retention() -> Mapping[str, timedelta]:
    """BATON_RETENTION: how long data of ended runs is kept, by the namespace of manifests. Raises SettingsError."""
    return Settings.of(os.environ).retention


async def migrate_journal(environment: Mapping[str, str]) -> str:
    """Migrates the tables of the configured journal to the newest version; returns a message without its password.

    Tables of that version are not changed. Raises JournalUnavailable and SettingsError.
    """
    settings = Settings.of(environment)
    settings.make_journal_file()
    engine = connect(settings.journal)
    try:
        await migrate(engine)
    finally:
        await engine.dispose()
    return f"the tables of the journal at {engine.place} have version {VERSION}"


async def reencrypt_journal(environ: Mapping[str, str]) -> tuple[str, Reencrypted]:
    """Encrypts the journal of an environment with the first of its keys; returns its address without a password, too.

    Raises JournalUnavailable, SettingsError, and UsageError if there is no key.
    """
    keys = Keys.from_environment(environ)
    if not keys.ids:
        raise UsageError(f"{KEYS} is not set: the journal is encrypted with the first of its keys")
    url = Settings.of(environ).journal
    journal = await Journal.open(url, temporal_namespace(), keys, upgrade=False, create=False, longest=LONG_STATEMENT)
    try:
        return journal.database.engine.place, await reencrypt(journal, keys.ids[0])
    finally:
        await journal.close()


async def replace_journals(url: str, ids: Collection[str]) -> str:
    """Makes the journal at ``url`` the replacement of others, and returns its address without a password.

    Data of open runs in the other journals count as lost. Raises JournalUnavailable.
    """
    engine = connect(url)
    try:
        await migrate(engine, upgrade=False)
        await note_replaced(engine, ids)
    finally:
        await engine.dispose()
    return engine.place
