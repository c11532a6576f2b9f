"""Lets the activities of a run wait while this worker has another journal than the one that the run began with."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ...conversation.errors import JournalLost
from ...conversation.messages.message import Head
from ...conversation.messages.turn import Thread
from .ids import workflow_id

INTERVAL = 1.0
"""Seconds between two looks."""

_log = logging.getLogger(__name__)


class OwnJournal(Interceptor):
    """Tells a journal that is not the run's own from one that has lost a row of the run.

    A run's journal has the first row of its conversation. Where that is missing too, this worker was started with
    another journal, or with an empty one: its activities wait here until the row is there, or the worker ends and
    another one with the right journal takes them. ``find_row`` gives a row of the journal at ``place``, or None.
    Nothing ``waits`` where the journal takes the place of one that is lost.
    """

    def __init__(self, find_row: Callable[[str], Awaitable[object]], place: str, *, waits: bool) -> None:
        self._find_row, self._place, self.waits = find_row, place, waits

    async def has(self, row: str) -> bool:
        """Whether the journal has a row."""
        return await self._find_row(row) is not None

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _WaitingActivities(super().intercept_activity(next), self)

    async def wait_for(self, row: str) -> None:
        """Returns when the journal has a row."""
        _log.warning(
            "%s waits: its conversation is not in the journal at %s. Start this worker with the BATON_HOME or the "
            "BATON_JOURNAL_URL with which the run began, or restore that journal",
            workflow_id(),
            self._place,
        )
        while not await self.has(row):
            await asyncio.sleep(INTERVAL)


class _WaitingActivities(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, journal: OwnJournal) -> None:
        super().__init__(next_interceptor)
        self._journal = journal

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        try:
            return await super().execute_activity(input)
        except JournalLost:
            row = _first_row(input.args[0]) if input.args else ""
            if not row or not self._journal.waits or await self._journal.has(row):
                raise
        await self._journal.wait_for(row)
        return await super().execute_activity(input)


def _first_row(request: object) -> str:
    """The id of a row that a run's own journal has: the question of the run, or what an activity goes on from."""
    thread, head = getattr(request, "thread", None), getattr(request, "head", None)
    if isinstance(thread, Thread):
        return thread.question
    return head.id if isinstance(head, Head) else ""
