"""Reads the contributions that a panel shares under a key of a session, from the journal."""

import os
from collections.abc import Mapping

from ...conversation.messages.panel import Contribution, contributions_in
from ...conversation.temporal.encryption import Keys


async def read_contributions(
    session: str, key: str, environ: Mapping[str, str] = os.environ
) -> tuple[Contribution, ...]:
    """The contributions to the panel that has started last under this key of a session; empty if there is none.

    Raises:
        JournalUnavailable: if the journal of BATON_JOURNAL_URL can't be read.
    """
    from ...activities.journal.journal import Journal  # noqa: PLC0415  # only this command reads the journal
    from ...activities.process.settings import Settings  # noqa: PLC0415

    journal = await Journal.open(Settings.of(environ).journal, Keys.from_environment(environ), upgrade=False)
    try:
        return contributions_in(row.message for row in await journal.read_bookmark(session, key))
    finally:
        await journal.close()
