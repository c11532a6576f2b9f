"""The activity ``ask_model``: asks an agent's model, and writes the answer to the journal before it returns it."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from temporalio import activity

from ..contracts.errors import EmptyReply, UnknownResource
from ..contracts.message import Head, Message, TokenUsage
from ..contracts.requests import AskModelRequest, AskModelResult
from ..contracts.text import truncate
from ..journal.journal import Journal
from ..journal.rows import Row
from ..resources.agent import Agent
from ..resources.base import JsonObject, Reference
from ..resources.manifest import ContextWindow
from ..resources.model import Model
from ..temporal.activity import idempotency_key, key_of, on_text
from .context.context_window import summarized, summary_end, unsummarized
from .context.lookup import find
from .context.metering import ChainedModel, Meter, estimate, model_chain
from .context.output_schema import normalized, output_error, output_schema, with_schema
from .context.value_resolver import ValueResolver
from .model.provider import ModelRequest
from .model.providers import Providers
from .panel import find_speaker, panel_output_schema, speaker_messages
from .runtime.functions import FunctionRegistry
from .runtime.secrets import SecretStore
from .tool.tools import Tools

PROMPT = """Sum up the conversation below for those who continue it without having read it. Keep names, numbers,
decisions, open questions, what the user wants, and what tools have found. Write only the summary, in the language of
the conversation."""

MAX_BYTES = 200_000
"""Bytes that one summary sums up at most, besides the summary before it; a longer history takes several."""


@dataclass(frozen=True)
class Summaries:
    """Makes the summaries for model calls."""

    journal: Journal
    providers: Providers
    secrets: SecretStore

    async def make(self, request: AskModelRequest, head: Head, values: ValueResolver, own: ChainedModel) -> Head:
        """The head after the summaries that the window asks for.

        One that was made for the same request is kept: by an earlier attempt, before a model whose fallback is asked
        now, or before a person has granted more to a budget.
        """
        window, number = request.window, 0
        if window is None or window.summarize is None or request.brief:
            return head
        while older := await self._too_old(request, head, window):
            row_id, model = f"{_key(request)}/{number}", _model(window, values) or own
            meter = Meter(self.journal, request.thread, request.speaker, values.catalog, row_id)
            label = f"summary/{number}"
            if row := await self.journal.find(row_id):
                self.providers.found(row.message, model, values, label)
            else:
                summary = await self._ask(older, values, model, meter, label)
                row = await self.journal.append_once(head, summary, row_id)
            await meter.settle(row.message.usage)
            head, number = row.head, number + 1
        return head

    async def cost(self, request: AskModelRequest) -> TokenUsage | None:
        """What the summaries for a request have cost, whichever activity has made them; None if there are none."""
        total = TokenUsage()
        while request.window and request.window.summarize:
            row = await self.journal.find(f"{_key(request)}/{total.model_calls}")
            if row is None:
                break
            total += (row.message.usage or TokenUsage()) + TokenUsage(model_calls=1)
        return total if total.model_calls else None

    async def _too_old(self, request: AskModelRequest, head: Head, window: ContextWindow) -> Sequence[Row]:
        """What is to be summed up next: the summary before, and the rows after it that the window does not keep."""
        question, rows = request.thread.question, await self.journal.read(head, summary_end())
        summary, history = summarized(rows, question, request.begun)
        kept = unsummarized(history, window)
        if not (older := _portion(history[: len(history) - len(kept)])):
            return ()
        between = range((summary.message.summarizes or 0) + 1 if summary else 1, older[-1].depth + 1)
        said = [row for row in rows if row.depth in between and row.message.summarizes is None]
        return [*([summary] if summary else []), *said]

    async def _ask(
        self, older: Sequence[Row], values: ValueResolver, model: ChainedModel, meter: Meter, label: str
    ) -> Message:
        text = "\n\n".join(_lines(row.message for row in older))
        messages = [Message(role="system", content=PROMPT), Message(role="user", content=text)]
        asked = ModelRequest(messages, label=label)
        async with meter.reserved(estimate(asked.messages, (), model)):
            answer = await self.providers.ask(model, values, asked, lambda _: None)
            if not answer.content.strip():
                raise EmptyReply(f"{model.name} has given an empty summary")
        answer = await self.secrets.redact_message(answer)
        given = {"model": answer.model, "usage": answer.usage}
        return Message(role="system", content=answer.content, summarizes=older[-1].depth).model_copy(update=given)


def _key(request: AskModelRequest) -> str:
    """What the ids of the rows begin with that hold the summaries for a request, whichever of its models is asked."""
    asked = request.model_dump_json(exclude={"fallback"}, exclude_defaults=True)
    return key_of(f"summary/{hashlib.sha256(asked.encode()).hexdigest()[:32]}")


def _portion(older: Sequence[Row]) -> Sequence[Row]:
    """The first rows, as many as one summary may sum up; a tool's results stay with the message that called it."""
    size = 0
    for place, row in enumerate(older):
        size += row.message.byte_size
        if size > MAX_BYTES and place and row.message.role != "tool":
            return older[:place]
    return older


def _lines(messages: Iterable[Message]) -> Iterable[str]:
    for each in messages:
        calls = "".join(f"\n(calls {call.name} {call.arguments})" for call in each.tool_calls)
        who = "summary so far" if each.summarizes is not None else each.name or each.role
        yield f"{who}: {truncate(each.content, MAX_BYTES)}{truncate(calls, MAX_BYTES)}"


def _model(window: ContextWindow, values: ValueResolver) -> ChainedModel | None:
    """The Model that the window names."""
    if window.summarize is None or window.summarize.model is None:
        return None
    ref = window.summarize.model
    found = find(values.catalog, Reference((), ("Model",), ref.namespace or "default", ref.name))
    assert isinstance(found, Model)
    return model_chain(found, values.catalog)[0]


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
