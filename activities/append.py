"""The activity ``append``: adds messages to a conversation in the journal."""

from temporalio import activity

from ..conversation.contracts.requests import AppendRequest
from ..conversation.messages.message import Head
from .journal.journal import Journal
from .runtime.ids import idempotency_key


class Append:
    """The activity ``append``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="append")
    async def append(self, request: AppendRequest) -> Head:
        """Adds the items after the head and returns the new head; another attempt returns the same one.

        With a bookmark it is moved to the new head; without items it is set for the first time.
        """
        head = await self._journal.append(request.head, request.items, idempotency_key())
        if request.bookmark:
            await self._journal.set_bookmark(request.bookmark, head, new=not request.items)
        return head
