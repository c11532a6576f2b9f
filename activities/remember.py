"""The activity ``remember``: adds to a conversation what a query has added."""

from temporalio import activity

from ..conversation.contracts.memory_requests import RememberRequest, RememberResult
from .journal.conversations import Conversations
from .journal.journal import Journal
from .runtime.ids import idempotency_key


class Remember:
    """The activity ``remember``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="remember")
    async def remember(self, request: RememberRequest) -> RememberResult:
        """Adds the items after whatever others have added meanwhile; another attempt adds nothing twice."""
        conversations = Conversations(self._journal)
        await conversations.add(request.conversation, request.before, request.items, idempotency_key())
        return RememberResult()
