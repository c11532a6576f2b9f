"""Which call is this, and how is its answer kept? A call's id is the same for every attempt at it."""

import asyncio

from temporalio import activity

from activities.journal import Journal
from activities.journal.journal import Row
from conversation.errors import JournalUnavailable
from conversation.message import Head, Message


def call_id() -> str:
    """``run_id/activity_id`` of the activity that is running; after a reset the run id is another."""
    info = activity.info()
    return f"{info.workflow_run_id}/{info.activity_id}"


async def keep(journal: Journal, head: Head, answer: Message, row_id: str) -> Row:
    """Writes an answer to the journal and returns the one that stands there.

    It has been paid for, so it is tried until the activity is given up, however long the journal can't be reached.
    """
    while True:
        try:
            return await journal.answer(head, answer, row_id)
        except JournalUnavailable as error:
            activity.logger.warning("an answer waits for the journal: %s", error.message)
            await asyncio.sleep(1)
