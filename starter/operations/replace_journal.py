"""Lets a journal take the place of others that are lost."""

from collections.abc import Collection

from ...activities.journal.database import Database
from ...activities.journal.identity import REPLACES, note


async def replace_journals(url: str, ids: Collection[str]) -> str:
    """Lets the journal at ``url`` take the place of others, and returns its address without a password.

    What the others had of open runs counts as lost. Raises JournalUnavailable.
    """
    async with Database.open(url) as database:
        await note(database.engine, REPLACES, ids)
        return database.engine.place
