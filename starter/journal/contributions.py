"""What was said in a panel that shares its contributions? Read from the journal, under the key of a session."""

import os
from collections.abc import Mapping

from ...conversation.messages.panel import Contribution, contributed
from ...conversation.temporal.encryption import Keys


async def read_contributions(session: str, key: str, environ: Mapping[str, str] = os.environ) -> tuple[Contribution, ...]:
    """The contributions to the latest panel that began under a session's key; none if there is no such panel.

    Raises JournalUnavailable where the journal that the environment names can't be read.
    """
    from ...activities.journal import Journal  # noqa: PLC0415  # no other command needs the journal
    from ...activities.process.settings import Settings  # noqa: PLC0415

    journal = await Journal.open(Settings.of(environ).journal, Keys.of(environ))
    try:
        return contributed(row.message for row in await journal.bookmarked(session, key))
    finally:
        await journal.close()
