"""The activity ``delegate``: begins a conversation for whom a tool asks, with the call's arguments as the question."""

from temporalio import activity

from ..conversation.contracts.tool_requests import UseToolRequest
from ..conversation.messages.message import Head, Message
from ..conversation.messages.turn import Thread
from .journal.journal import Journal
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key
from .tool.tools import Tools
from .tool_calls import ToolCalls, use


class Delegate:
    """The activity ``delegate``."""

    def __init__(self, journal: Journal, tools: Tools, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets
        self._calls = ToolCalls(journal, tools, secrets)

    @activity.defn(name="delegate")
    async def delegate(self, request: UseToolRequest) -> Thread:
        """The new conversation, in which the agent or the team takes its turn."""
        key = idempotency_key()
        question = Message(role="user", content=await use(*await self._calls.resolve(request, key)))
        await self._calls.charge(request, key)
        head = await self._journal.append(Head(), [await self._secrets.redact_message(question)], key)
        thread = request.thread.under(request.speaker) if request.thread.account else request.thread
        return thread.model_copy(update={"question": head.id, "head": head})
