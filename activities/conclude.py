"""``conclude``: what a panel has come to is put down as it is, without anybody being asked to put it into words."""

from temporalio import activity

from ..conversation.contracts.panel_requests import ConcludeRequest
from ..conversation.contracts.requests import Asked
from ..conversation.messages.message import MAX_RESULT, Message, cut, weight
from ..conversation.messages.panel import Contribution, Critique, DebateShape, PanelShape
from .context.value_resolver import Values
from .journal import Journal
from .panel.speaker_context import Room
from .process.secrets import Vault
from .runtime.heartbeat import heartbeats
from .runtime.ids import call_id


class Conclude:
    """The activity ``conclude``."""

    def __init__(self, journal: Journal, vault: Vault) -> None:
        self._journal, self._vault = journal, vault

    @activity.defn(name="conclude")
    async def conclude(self, request: ConcludeRequest) -> Asked:
        """Writes the panel's shape as JSON; the history gets shorter texts where it would be too long."""
        async with heartbeats():
            thread, brief = request.thread, request.brief
            rows = await self._journal.read(thread.head)
            values = await Values.of(self._journal, thread.catalog, self._vault)
            room = Room.at(brief, values, rows, thread.question)
            shape = room.transcript.shape(brief.round)
            said = Message(role="assistant", content=_json(shape), name=room.team.name)
            said = said.model_copy(update={"part": "deliverable", "round": brief.round})
            row = await self._journal.answer(thread.head, said, f"{call_id()}/reply")
            return Asked(message=said.model_copy(update={"content": _json(shortened(shape))}), head=row.head)


def _json(shape: PanelShape | DebateShape) -> str:
    return shape.model_dump_json(by_alias=True)


def shortened(shape: PanelShape | DebateShape) -> PanelShape | DebateShape:
    """The shape with its texts cut evenly, as little as makes it fit into a history, so that it is still JSON."""
    room = MAX_RESULT
    while weight(_json(shape)) > MAX_RESULT and room > 1:
        room //= 2
        shape = _cut(shape, room)
    return shape


def _cut(shape: PanelShape | DebateShape, limit: int) -> PanelShape | DebateShape:
    if isinstance(shape, DebateShape):
        return shape.model_copy(update={"transcript": tuple(_shorter(each, limit) for each in shape.transcript)})
    critiques = tuple(
        Critique(round=each.round, critique=cut(each.critique, limit)) for each in shape.referee_critiques
    )
    contributions = tuple(_shorter(each, limit) for each in shape.contributions)
    return shape.model_copy(update={"contributions": contributions, "referee_critiques": critiques})


def _shorter(entry: Contribution, limit: int) -> Contribution:
    return entry.model_copy(update={"text": cut(entry.text, limit)})
