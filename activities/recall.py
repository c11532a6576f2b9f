"""The activity ``recall``: puts a query's question after what a Memory's service has of its conversation."""

from temporalio import activity

from ..conversation.contracts.memory_requests import RecallRequest, RecallResult
from ..conversation.messages.message import Head
from .context.call_record import CallRecord
from .context.value_resolver import ValueResolver
from .journal.journal import Journal
from .memory.http_memory import HttpMemory
from .memory.lookup import find_memory
from .memory.stored_messages import with_results
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key


class Recall:
    """The activity ``recall``."""

    def __init__(self, journal: Journal, memory: HttpMemory, secrets: SecretStore) -> None:
        self._journal, self._memory, self._secrets = journal, memory, secrets

    @activity.defn(name="recall")
    async def recall(self, request: RecallRequest) -> RecallResult:
        """The thread with the question in the conversation; another attempt returns the same place."""
        thread, row_id = request.thread, f"{idempotency_key()}/question"
        row = await self._journal.find(row_id)
        if row is None:
            before = await self._read(request)
            if not before.id:
                return RecallResult(thread=thread)
            question = await self._journal.row(thread.question)
            row = await self._journal.append_once(before, question.message, row_id)
        known = int(await self._record.read("known") or 0)
        thread = thread.model_copy(update={"question": row.id, "head": row.head})
        return RecallResult(thread=thread, before=row.before, known=known)

    @property
    def _record(self) -> CallRecord:
        return CallRecord(self._journal, self._secrets, Head(), idempotency_key())

    async def _read(self, request: RecallRequest) -> Head:
        """The place after all that was said; what the Memory's service has is written to the journal first."""
        conversation = request.conversation
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        found = await self._memory.read(find_memory(values.catalog, conversation), values, conversation)
        await self._record.write("known", f"{len(found)}")
        said = [await self._secrets.redact_message(each) for each in with_results(found)]
        return await self._journal.append(Head(), said, idempotency_key())
