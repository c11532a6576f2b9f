"""The activity ``conclude``: writes a panel's result to the journal as JSON, without asking a synthesizer."""

from temporalio import activity

from ..conversation.contracts.panel_requests import ConcludeRequest
from ..conversation.contracts.requests import AskModelResult
from ..conversation.messages.message import Message
from ..conversation.messages.panel import Contribution, Critique, DebateShape, PanelShape
from ..conversation.text import MAX_MESSAGE, byte_size, truncate
from .context.value_resolver import ValueResolver
from .journal.journal import Journal
from .panel.speaker_context import SpeakerContext
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key


class Conclude:
    """The activity ``conclude``."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets

    @activity.defn(name="conclude")
    async def conclude(self, request: ConcludeRequest) -> AskModelResult:
        """Writes the panel's result, and returns it with shorter texts where it would be too long for a history."""
        thread, brief = request.thread, request.brief
        rows = await self._journal.read(thread.head)
        values = await ValueResolver.of(self._journal, thread, self._secrets)
        panel = SpeakerContext.of(brief, values, rows, thread.question)
        shape = panel.transcript.shape(brief.round)
        message = Message(role="assistant", content=_json(shape), name=panel.team.name)
        message = message.model_copy(update={"part": "deliverable", "round": brief.round})
        row = await self._journal.append_once(thread.head, message, f"{idempotency_key()}/reply")
        return AskModelResult(message=message.model_copy(update={"content": _json(shortened(shape))}), head=row.head)


def _json(shape: PanelShape | DebateShape) -> str:
    return shape.model_dump_json(by_alias=True)


def shortened(shape: PanelShape | DebateShape) -> PanelShape | DebateShape:
    """The result with its texts cut to one length that fits into a history: to cut the JSON itself would break it."""
    limit = MAX_MESSAGE
    while byte_size(_json(shape)) > MAX_MESSAGE and limit > 1:
        limit //= 2
        shape = _cut(shape, limit)
    return shape


def _cut(shape: PanelShape | DebateShape, limit: int) -> PanelShape | DebateShape:
    if isinstance(shape, DebateShape):
        return shape.model_copy(update={"transcript": tuple(_cut_entry(each, limit) for each in shape.transcript)})
    critiques = tuple(
        Critique(round=each.round, critique=truncate(each.critique, limit)) for each in shape.referee_critiques
    )
    contributions = tuple(_cut_entry(each, limit) for each in shape.contributions)
    return shape.model_copy(update={"contributions": contributions, "referee_critiques": critiques})


def _cut_entry(entry: Contribution, limit: int) -> Contribution:
    return entry.model_copy(update={"text": truncate(entry.text, limit)})
