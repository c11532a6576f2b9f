"""``ask_model``: an agent's model speaks, and its answer is kept before anybody is told of it."""

from temporalio import activity

from ..conversation.contracts.requests import Asked, AskRequest
from ..conversation.errors import UnknownResource
from ..resources.agent import Agent
from ..resources.base import JsonObject
from ..resources.model import Model
from .context.context_window import conversation, reach
from .context.planning import models_of
from .context.structured_output import plain, schema_of, told, wrong
from .context.value_resolver import Values
from .journal import Journal
from .journal.row import Row
from .model.models import Models
from .panel.default_agents import deliverable, speaker_of
from .panel.speaker_context import Room
from .process.functions import Functions
from .process.secrets import Vault
from .runtime.heartbeat import Pulse
from .runtime.ids import call_id
from .runtime.single_flight import InFlight
from .tool.tools import Tools


class AskModel:
    """The activity ``ask_model``."""

    def __init__(
        self, journal: Journal, models: Models, tools: Tools, functions: Functions, vault: Vault, calls: InFlight
    ) -> None:
        self._journal, self._models, self._tools = journal, models, tools
        self._functions, self._vault, self._calls = functions, vault, calls

    @activity.defn(name="ask_model")
    async def ask_model(self, request: AskRequest) -> Asked:
        """Returns the answer that stands in the journal, and asks the model only if none does."""
        row_id = f"{call_id()}/reply"

        async def answered(pulse: Pulse) -> Row:
            return await self._journal.find(row_id) or await self._ask(request, row_id, pulse)

        row = await self._calls.once(answered, self._vault.redact_growing)
        schema = await self._schema(request)
        return Asked(message=row.message.cut(), head=row.head, wrong=wrong(row.message, schema))

    async def _speaker(self, request: AskRequest) -> Agent | Model:
        speaker = speaker_of(await self._journal.catalog(request.thread.catalog), request.speaker)
        if not isinstance(speaker, Agent | Model):
            raise UnknownResource(f"{request.speaker} can't be asked")
        return speaker

    async def _schema(self, request: AskRequest) -> JsonObject | None:
        """The form of the answer: the speaker's own, or that of what its panel delivers."""
        catalog = await self._journal.catalog(request.thread.catalog)
        return schema_of(await self._speaker(request)) or deliverable(catalog, request.brief)

    async def _ask(self, request: AskRequest, row_id: str, pulse: Pulse) -> Row:
        thread = request.thread
        catalog = await self._journal.catalog(thread.catalog)
        speaker = await self._speaker(request)
        schema = await self._schema(request)
        values = await Values.of(self._journal, catalog, self._vault)
        head = await self._journal.append(thread.head, request.pending, call_id())
        enough = None if request.brief else reach(thread.question, request.begun, request.window)
        rows = await self._journal.read(head, enough)
        agent = speaker if isinstance(speaker, Agent) else None
        tools = self._tools.of(agent, values) if agent else []
        if agent and request.brief:
            room = Room.at(request.brief, values, rows[: request.begun], thread.question)
            briefed = await room.told(agent, request.speaker, values, self._functions)
            messages = [*briefed, *(row.message for row in rows[request.begun :])]
        else:
            prompt = values.prompt(agent) if agent else None
            question = await self._journal.row(thread.question)
            messages = conversation(prompt, rows, question, request.begun, request.window)
        model, name = models_of(speaker, catalog)[request.fallback]
        endpoint = self._models.endpoint(model, name, values)
        asked = told(map(values.whole, messages), schema)
        answer = await self._models.ask(endpoint, asked, tools, pulse.hear, schema=schema)
        clean = self._vault.redact_message(answer).model_copy(update={"name": speaker.name})
        return await self._journal.answer(head, plain(clean, schema), row_id)
