"""The activity ``remember``: adds to a conversation what a query has added."""

from temporalio import activity

from ..conversation.contracts.memory_requests import RememberRequest, RememberResult
from ..conversation.messages.turn import Thread
from .context.call_record import CallRecord
from .context.value_resolver import ValueResolver
from .journal.conversations import Conversations
from .journal.journal import Journal
from .memory.http_memory import HttpMemory
from .memory.lookup import find_memory
from .memory.stored_messages import holds
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key, workflow_id


class Remember:
    """The activity ``remember``."""

    def __init__(self, journal: Journal, memory: HttpMemory, secrets: SecretStore) -> None:
        self._journal, self._memory, self._secrets = journal, memory, secrets

    @activity.defn(name="remember")
    async def remember(self, request: RememberRequest) -> RememberResult:
        """Adds the items after whatever others have added meanwhile; another attempt adds nothing twice."""
        if request.conversation.remote:
            await self._add_remotely(request, idempotency_key())
        else:
            conversations = Conversations(self._journal)
            await conversations.add(request.conversation, request.before, request.items, idempotency_key())
        return RememberResult()

    async def _add_remotely(self, request: RememberRequest, key: str) -> None:
        """Sends the messages, unless an earlier attempt has begun to, and they are there.

        Summaries are not sent: nobody said them, and whoever reads the service would take them for messages.
        """
        conversation, before = request.conversation, request.before
        head = await self._journal.append(before, request.items, key)
        rows = await self._journal.read(head, lambda row: row.parent == before.id)
        said = [row.message for row in rows if row.message.summarizes is None]
        thread = Thread(catalog=request.catalog, question="", head=head)
        values = await ValueResolver.of(self._journal, thread, self._secrets)
        memory, record = find_memory(values.catalog, conversation), CallRecord(self._journal, self._secrets, head, key)
        if await record.read("sent") is not None:
            stored = await self._memory.read(memory, values, conversation)
            if holds(stored, said, request.known):
                return
        await record.write("sent")
        await self._memory.add(memory, values, conversation, said, workflow_id())
