"""``append``: what joins a conversation without a model being asked."""

from temporalio import activity

from ..conversation.contracts.requests import AppendRequest
from ..conversation.messages.message import Head
from .journal import Journal
from .runtime.heartbeat import heartbeats
from .runtime.ids import call_id


class Append:
    """The activity ``append``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="append")
    async def append(self, request: AppendRequest) -> Head:
        """Puts the items on top of the head; done twice, it gives the same head. Without items a bookmark is new."""
        async with heartbeats():
            head = await self._journal.append(request.head, request.items, call_id())
            if request.bookmark:
                await self._journal.bookmark(request.bookmark, head, anew=not request.items)
            return head
