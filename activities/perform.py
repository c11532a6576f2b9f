"""``perform``: a registered function speaks in a panel, and what it says is kept before anybody is told of it."""

from pydantic import BaseModel
from pydantic_core import to_json
from temporalio import activity

from ..conversation.contracts.panel_requests import Performed, PerformRequest
from ..conversation.errors import OutputRejected
from ..conversation.messages.message import Message
from .context.structured_output import wrong
from .context.value_resolver import Values
from .journal import Journal
from .panel.default_agents import deliverable
from .panel.speaker_context import Room
from .process.functions import Functions
from .process.secrets import Vault
from .runtime.heartbeat import Pulse
from .runtime.ids import call_id
from .runtime.single_flight import InFlight


class Perform:
    """The activity ``perform``."""

    def __init__(self, journal: Journal, functions: Functions, vault: Vault, calls: InFlight) -> None:
        self._journal, self._functions, self._vault, self._calls = journal, functions, vault, calls

    @activity.defn(name="perform")
    async def perform(self, request: PerformRequest) -> Performed:
        """Returns what stands in the journal, and calls the function only if nothing does."""

        async def performed(_pulse: Pulse) -> Performed:
            return await self._performed(request, f"{call_id()}/reply")

        return await self._calls.once(performed)

    async def _performed(self, request: PerformRequest, row_id: str) -> Performed:
        thread = request.thread
        if (row := await self._journal.find(row_id)) is None:
            rows = await self._journal.read(thread.head)
            values = await Values.of(self._journal, thread.catalog, self._vault)
            room = Room.at(request.brief, values, rows, thread.question)
            given = room.transcript.shape(request.brief.round) if room.brief.part == "synthesizer" else room.briefing
            value = await self._functions.call(request.function, given)
            text, coerced = as_text(value) if room.brief.part == "member" else as_answer(value)
            said = self._vault.redact_message(Message(role="assistant", content=text, name=request.name))
            if what := wrong(said, deliverable(values.catalog, request.brief)):
                raise OutputRejected(f"what the function '{request.function}' gives {what}")
            row = await self._journal.answer(thread.head, said, row_id)
            return Performed(message=row.message.cut(), head=row.head, coerced=coerced)
        return Performed(message=row.message.cut(), head=row.head)


def as_text(value: object) -> tuple[str, bool]:
    """What counts as the text of a contribution, and whether it had to be made one (seed 002, Customizing)."""
    if isinstance(value, str):
        return value, False
    if isinstance(value, dict) and isinstance(text := value.get("text"), str):
        return text, False
    if isinstance(text := getattr(value, "text", None), str):
        return text, False
    return str(value), True


def as_answer(value: object) -> tuple[str, bool]:
    """What counts as the answer of who is no member: a text, ``{text}``, or what it has to answer with, as JSON."""
    if isinstance(value, BaseModel | dict | list) and not (isinstance(value, dict) and value.keys() == {"text"}):
        return to_json(value, by_alias=True, exclude_none=True, fallback=str).decode(), False
    return as_text(value)
