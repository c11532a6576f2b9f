"""The activity ``brief``: writes the briefing of a team in a panel as the question of a new conversation."""

from temporalio import activity

from ..conversation.contracts.panel_requests import BriefRequest
from ..conversation.messages.message import Head, Message
from ..conversation.messages.turn import Thread
from .context.value_resolver import ValueResolver
from .journal.journal import Journal
from .panel.speaker_context import SpeakerContext
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key


class Brief:
    """The activity ``brief``."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets

    @activity.defn(name="brief")
    async def brief(self, request: BriefRequest) -> Thread:
        """The new conversation, in which the team takes its turn."""
        thread = request.thread
        rows = await self._journal.read(thread.head)
        values = await ValueResolver.of(self._journal, thread, self._secrets)
        text = SpeakerContext.of(request.brief, values, rows, thread.question).as_json()
        head = await self._journal.append(
            Head(), [await self._secrets.redact_message(Message(role="user", content=text))], idempotency_key()
        )
        return thread.model_copy(update={"question": head.id, "head": head})
