"""``brief``: what a team is told in a panel becomes the question of a conversation of its own."""

from temporalio import activity

from ..conversation.contracts.panel_requests import BriefRequest
from ..conversation.messages.message import Head, Message
from ..conversation.messages.turn import Thread
from .context.value_resolver import Values
from .journal import Journal
from .panel.speaker_context import Room
from .process.secrets import Vault
from .runtime.heartbeat import heartbeats
from .runtime.ids import call_id


class Brief:
    """The activity ``brief``."""

    def __init__(self, journal: Journal, vault: Vault) -> None:
        self._journal, self._vault = journal, vault

    @activity.defn(name="brief")
    async def brief(self, request: BriefRequest) -> Thread:
        """The thread in which the team takes its turn."""
        async with heartbeats():
            thread = request.thread
            rows = await self._journal.read(thread.head)
            values = await Values.of(self._journal, thread.catalog, self._vault)
            text = Room.at(request.brief, values, rows, thread.question).explicit()
            head = await self._journal.append(Head(), [Message(role="user", content=text)], call_id())
            return Thread(catalog=thread.catalog, question=head.id, head=head)
