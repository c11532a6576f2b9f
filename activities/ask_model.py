"""The activity ``ask_model``: asks an agent's model, and writes the answer to the journal before it returns it."""

from dataclasses import dataclass

from temporalio import activity

from ..conversation.contracts.requests import AskModelRequest, AskModelResult
from ..conversation.errors import UnknownResource
from ..resources.agent import Agent
from ..resources.base import JsonObject
from ..resources.model import Model
from .context.metering import Meter, estimate
from .context.model_chain import ChainedModel, model_chain
from .context.structured_output import normalized, output_error, output_schema, with_schema
from .context.value_resolver import ValueResolver
from .journal.journal import Journal
from .model.provider import ModelRequest
from .model.providers import Providers
from .model.summaries import Summaries
from .panel.default_agents import find_speaker, panel_output_schema
from .panel.speaker_messages import speaker_messages
from .process.functions import FunctionRegistry
from .process.secrets import SecretStore
from .runtime.heartbeat import on_text
from .runtime.ids import idempotency_key
from .tool.tools import Tools


@dataclass(frozen=True)
class _Context:
    """What a request refers to: who is asked, by which model, and the JSON Schema that the final answer has to fit."""

    speaker: Agent | Model
    model: ChainedModel
    schema: JsonObject | None
    values: ValueResolver


class AskModel:
    """The activity ``ask_model``."""

    def __init__(
        self,
        journal: Journal,
        providers: Providers,
        tools: Tools,
        functions: FunctionRegistry,
        secrets: SecretStore,
    ) -> None:
        self._journal, self._providers, self._tools = journal, providers, tools
        self._functions, self._secrets = functions, secrets
        self._summaries = Summaries(journal, providers, secrets)

    @activity.defn(name="ask_model")
    async def ask_model(self, request: AskModelRequest) -> AskModelResult:
        """Returns the answer that the journal holds for this activity; asks the model only if there is none."""
        key, context = idempotency_key(), await self._context(request)
        meter = Meter(self._journal, request.thread, request.speaker, context.values.catalog, key)
        row = await self._journal.find(f"{key}/reply")
        if row:
            self._providers.found(row.message, context.model, context.values)
        else:
            head = await self._journal.append(request.thread.head, request.pending, key)
            head = await self._summaries.make(request, head, context.values, context.model)
            messages = await speaker_messages(
                request, head, context.speaker, context.values, self._journal, self._functions
            )
            agent = context.speaker if isinstance(context.speaker, Agent) else None
            tools = await self._tools.of_agent(agent, context.values) if agent else []
            definitions = [each.definition for each in tools]
            messages = with_schema(messages, context.schema)
            asked = ModelRequest(messages, definitions, context.schema, speaker=context.speaker.name)
            async with meter.reserved(estimate(messages, definitions, context.model)):
                answer = await self._providers.ask(context.model, context.values, asked, on_text)
            clean = (await self._secrets.redact_message(answer)).model_copy(update={"name": context.speaker.name})
            row = await self._journal.append_once(head, await normalized(clean, context.schema), f"{key}/reply")
        await meter.settle(row.message.usage)
        wrong = await output_error(row.message, context.schema)
        result = AskModelResult(message=row.message.truncated(), head=row.head, wrong=wrong)
        cost = await self._summaries.cost(request)
        return result.model_copy(update={"summaries": cost}) if cost else result

    async def _context(self, request: AskModelRequest) -> _Context:
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        speaker = find_speaker(values.catalog, request.speaker)
        if not isinstance(speaker, Agent | Model):
            raise UnknownResource(f"{request.speaker} can't be asked")
        model, values = model_chain(speaker, values.catalog)[request.fallback], values.used_by(speaker)
        schema = output_schema(speaker) or panel_output_schema(values.catalog, request.brief)
        return _Context(speaker, model, schema, values)
