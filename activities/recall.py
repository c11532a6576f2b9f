"""The activity ``recall``: puts a query's question after what was said in its conversation until now."""

from temporalio import activity

from ..conversation.contracts.memory_requests import RecallRequest, RecallResult
from ..conversation.messages.message import Head
from .journal.conversations import Conversations
from .journal.journal import Journal
from .runtime.ids import idempotency_key


class Recall:
    """The activity ``recall``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="recall")
    async def recall(self, request: RecallRequest) -> RecallResult:
        """The thread with the question in the conversation; another attempt returns the same place."""
        thread, row_id = request.thread, f"{idempotency_key()}/question"
        before = await Conversations(self._journal).head(request.conversation)
        if not before.id:
            return RecallResult(thread=thread)
        question = await self._journal.row(thread.question)
        row = await self._journal.append_once(before, question.message, row_id)
        place = Head(id=row.parent, depth=row.depth - 1)  # where an earlier attempt has put it
        return RecallResult(thread=thread.model_copy(update={"question": row.id, "head": row.head}), before=place)
