"""The activities ``ask_model`` and ``select``, which write a model's answer to the journal and return it."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from temporalio import activity

from ..contracts.errors import BatonError, EmptyReply, UnknownResource
from ..contracts.message import Head, Message, TokenUsage
from ..contracts.requests import AskModelRequest, AskModelResult, SelectRequest, SelectResult
from ..contracts.text import truncate
from ..journal.journal import Journal
from ..journal.leases import Lease
from ..journal.rows import Row
from ..resources.agent import Agent
from ..resources.base import JsonObject, Reference
from ..resources.manifest import ContextWindow
from ..resources.model import Model
from ..resources.team import SelectorSpec
from ..temporal.activity import idempotency_key, is_restated, key_of, on_text
from .attachments import contents_for
from .context.context_window import history_within, summarized, summary_end, unsummarized, window_end
from .context.lookup import find, find_team
from .context.metering import ChainedModel, Meters, model_chain, selector_model_chain
from .context.output_schema import normalized, output_error, output_schema, with_schema
from .context.value_resolver import ValueResolver
from .model.provider import ModelRequest
from .model.providers import Providers
from .panel import find_speaker, panel_output_schema, speaker_messages
from .runtime.functions import FunctionRegistry
from .runtime.secrets import SecretStore
from .selector import SpeakerSelection, read_choice, selector_tools
from .tool.tools import Tools


@dataclass(frozen=True)
class _Speaker:
    """The speaker of an ``ask_model`` request, its model, and the JSON Schema of the final answer."""

    resource: Agent | Model
    model: ChainedModel
    schema: JsonObject | None
    values: ValueResolver


class ModelActivities:
    """The activities that call a model."""

    def __init__(
        self,
        journal: Journal,
        providers: Providers,
        tools: Tools,
        functions: FunctionRegistry,
        secrets: SecretStore,
        meters: Meters,
    ) -> None:
        self._journal = journal
        self._providers = providers
        self._tools = tools
        self._functions = functions
        self._secrets = secrets
        self._meters = meters
        self._summaries = Summaries(journal, providers, secrets, meters)

    @activity.defn(name="ask_model")
    async def ask_model(self, request: AskModelRequest) -> AskModelResult:
        """Returns the answer that the journal has for this activity; calls the model only if there is none."""
        key = idempotency_key()
        speaker = await self._speaker(request)
        # Also on the first attempt: after a restore of Temporal's database, the call may already have been answered.
        row = await self._journal.find(f"{key}/reply")
        if row:
            render = partial(self._rendered_again, request, row.before, speaker)
            await self._providers.note_earlier(row.message, request.speaker, speaker.model, speaker.values, render)
        else:
            head = await self._journal.append(request.thread.head, request.pending, key)
            head = await self._summaries.make(request, head, speaker.values, speaker.model)
            model_request = await self._model_request(request, head, speaker)
            meter = await self._meters.of(request.thread, request.speaker, speaker.values.catalog)
            charge = await meter.model_charge(model_request.messages, model_request.tools, speaker.model)
            async with self._journal.leases.hold(f"{key}/reply", charge, sent=True) as lease:
                if not lease.is_answered:
                    answer = await self._providers.ask(
                        lease, request.speaker, speaker.model, speaker.values, model_request, on_text
                    )
                    answer = (await self._secrets.redact_message(answer)).named(speaker.resource.name)
                    await self._journal.answer(lease, head, await normalized(answer, speaker.schema))
            row = await self._journal.row(f"{key}/reply")
        result = AskModelResult(
            message=row.message.in_history,
            head=row.head,
            wrong=await output_error(row.message, speaker.schema),
            summaries=await self._summaries.cost(request),
            restated=await is_restated(row.message.content),
        )
        return result.without_defaults

    async def _rendered_again(self, request: AskModelRequest, head: Head, speaker: _Speaker) -> ModelRequest:
        """The request that was answered after ``head``. The summaries before it are noted, too."""
        begun = await self._journal.append(request.thread.head, request.pending, idempotency_key())
        await self._summaries.make(request, begun, speaker.values, speaker.model)
        return await self._model_request(request, head, speaker)

    async def _speaker(self, request: AskModelRequest) -> _Speaker:
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        speaker = find_speaker(values.catalog, request.speaker)
        if not isinstance(speaker, Agent | Model):
            raise UnknownResource(f"{request.speaker} is neither an agent nor a model")
        model = model_chain(speaker, values.catalog)[request.fallback]
        schema = output_schema(speaker) or panel_output_schema(values.catalog, request.brief)
        return _Speaker(speaker, model, schema, values.used_by(speaker))

    async def _model_request(self, request: AskModelRequest, head: Head, speaker: _Speaker) -> ModelRequest:
        resource = speaker.resource
        values = speaker.values
        messages = await speaker_messages(request, head, resource, values, self._journal, self._functions)
        messages, contents = await contents_for(self._journal, speaker.model, messages)
        tools = (
            await self._tools.of_agent(resource, values, member=request.member) if isinstance(resource, Agent) else []
        )
        return ModelRequest(
            messages=with_schema(messages, speaker.schema),
            tools=[tool.definition for tool in tools],
            schema=speaker.schema,
            speaker=resource.name,
            contents=contents,
        )

    @activity.defn(name="select")
    async def select(self, request: SelectRequest) -> SelectResult:
        """Asks a team's selector who speaks next.

        If the answer names no candidate, the selector is asked once more, unless its manifest says ``onNoChoice:
        first``; then the first candidate speaks. A second
        request that fails with a non-retryable error counts as an answer without a candidate.
        """
        selection = await self._selection(request)
        messages = selection.messages(await self._team_history(selection))
        instruction = messages[-1].content
        usage = TokenUsage()
        for label in ("choice", "second-choice"):
            try:
                answer = await self._choice(selection, messages, label)
            except BatonError as error:
                if not usage.model_calls or not error.non_retryable:
                    raise
                usage += error.paid
                break  # the first answer is charged: a failure would lose its tokens
            usage += (answer.usage or TokenUsage()) + TokenUsage(model_calls=1)
            if choice := read_choice(answer, selection.names, may_end=selection.selector.enable_terminate_tool):
                return selection.result(choice, usage)
            if selection.selector.on_no_choice == "first":
                break
            correction = f"That names none of: {', '.join(selection.names)}. {instruction}"
            invalid_answer = Message(role="assistant", content=answer.content or "(nobody)")
            messages = [*messages, invalid_answer, Message(role="user", content=correction)]
        return selection.fallback(usage)

    async def _selection(self, request: SelectRequest) -> SpeakerSelection:
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        team = find_team(values.catalog, request.team)
        return SpeakerSelection(
            request=request,
            team=team,
            selector=team.spec.selector or SelectorSpec(),
            model=selector_model_chain(team, values.catalog)[request.fallback],
            names=[team.spec.members[index].name_in_team for index in request.candidates],
            values=values.used_by(values.catalog.find(team.selector_reference())),
        )

    async def _team_history(self, selection: SpeakerSelection) -> list[Message]:
        """The question, the newest summary, and the part of the conversation that the team's context window selects."""
        thread = selection.request.thread
        window = selection.team.spec.context_window
        question = await self._journal.row(thread.question)
        rows = await self._journal.read(thread.head, window_end(thread.question, thread.head.depth, window))
        summary, history = history_within(rows, thread.question, thread.head.depth, window)
        first, *spoken = (selection.values.message_of(row, question) for row in (question, *history))
        return [first, *summary, *spoken]

    async def _choice(self, selection: SpeakerSelection, messages: Sequence[Message], label: str) -> Message:
        """The selector's answer, stored in a row outside the conversation; calls the model only if there is none."""
        row_id = f"{idempotency_key()}/{label}"
        thread = selection.request.thread
        row = await self._journal.find(row_id)
        by_tool = selection.selector.style == "tool"
        tools = selector_tools(selection.names, may_end=selection.selector.enable_terminate_tool) if by_tool else []
        request = ModelRequest(messages, tools, must_use=by_tool, label=label)
        if row:

            async def render() -> ModelRequest:
                return request

            await self._providers.note_earlier(
                row.message, selection.team.id, selection.model, selection.values, render, label
            )
        else:
            meter = await self._meters.of(thread, selection.team.id, selection.values.catalog)
            charge = await meter.model_charge(messages, tools, selection.model)
            async with self._journal.leases.hold(row_id, charge, sent=True) as lease:
                if not lease.is_answered:
                    answer = await self._providers.ask(
                        lease, selection.team.id, selection.model, selection.values, request, on_text
                    )
                    await self._journal.answer(lease, thread.head, await self._secrets.redact_message(answer))
            row = await self._journal.row(row_id)
        return row.message


SUMMARY_PROMPT = """Summarize the conversation below for those who continue it without having read it. Keep names,
numbers, decisions, open questions, the user's goals, and the results of tools. Write only the summary, in the language
of the conversation."""

MAX_BYTES = 200_000
"""Bytes of conversation in one summary request, besides the previous summary; a longer history needs several."""


@dataclass(frozen=True)
class Summaries:
    """Creates the summaries that a context window requires before a model call."""

    journal: Journal
    providers: Providers
    secrets: SecretStore
    meters: Meters

    async def make(
        self, request: AskModelRequest, head: Head, values: ValueResolver, agent_model: ChainedModel
    ) -> Head:
        """The head after the summaries that the window requires.

        A summary for the same request is reused: from an earlier attempt, from the model before a fallback, or from
        before a budget was raised.
        """
        window = request.window
        if window is None or window.summarize is None or request.brief:
            return head
        model = _summary_model(window, values) or agent_model.without_agent
        number = 0
        while rows := await self._rows_to_summarize(request, head, window):
            row_id = f"{_summary_key(request)}/{number}"
            label = f"summary/{number}"
            row = await self.journal.find(row_id)
            summary = _summary_request(rows, label)
            if row:

                async def render(summary: ModelRequest = summary) -> ModelRequest:
                    return summary

                answer = row.message
                await self.providers.note_earlier(answer, request.speaker, model, values, render, label)
            else:
                meter = await self.meters.of(request.thread, request.speaker, values.catalog)
                charge = await meter.model_charge(summary.messages, (), model)
                async with self.journal.leases.hold(row_id, charge, sent=True) as lease:
                    if not lease.is_answered:
                        answer = await self._ask(lease, request.speaker, summary, rows[-1].depth, values, model)
                        await self.journal.answer(lease, head, answer)
                row = await self.journal.row(row_id)
            head = row.head
            number += 1
        return head

    async def cost(self, request: AskModelRequest) -> TokenUsage | None:
        """The usage of all summaries for a request, from any activity; None if there are none."""
        total = TokenUsage()
        while request.window and request.window.summarize:
            row = await self.journal.find(f"{_summary_key(request)}/{total.model_calls}")
            if row is None:
                break
            total += (row.message.usage or TokenUsage()) + TokenUsage(model_calls=1)
        return total if total.model_calls else None

    async def _rows_to_summarize(self, request: AskModelRequest, head: Head, window: ContextWindow) -> Sequence[Row]:
        """The previous summary, and the rows after it that the window omits; empty if it omits none."""
        rows = await self.journal.read(head, summary_end())
        summary, history = summarized(rows, request.thread.question, request.begun)
        selected = unsummarized(history, window)
        older = _portion(history[: len(history) - len(selected)])
        if not older:
            return ()
        first = (summary.message.summarizes or 0) + 1 if summary else 1
        depths = range(first, older[-1].depth + 1)
        unread = [row for row in rows if row.depth in depths and row.message.summarizes is None]
        return [summary, *unread] if summary else unread

    async def _ask(
        self,
        lease: Lease,
        caller: str,
        request: ModelRequest,
        summarizes: int,
        values: ValueResolver,
        model: ChainedModel,
    ) -> Message:
        answer = await self.providers.ask(lease, caller, model, values, request, lambda _: None)
        if not answer.content.strip():
            raise EmptyReply(f"{model.name} returned an empty summary", usage=answer.usage)
        answer = await self.secrets.redact_message(answer)
        return Message(
            role="system",
            content=answer.content,
            summarizes=summarizes,
            model=answer.model,
            usage=answer.usage,
        )


def _summary_request(rows: Sequence[Row], label: str) -> ModelRequest:
    text = "\n\n".join(_transcript(row.message for row in rows))
    messages = [Message(role="system", content=SUMMARY_PROMPT), Message(role="user", content=text)]
    return ModelRequest(messages, label=label)


def _summary_key(request: AskModelRequest) -> str:
    """The prefix of the row ids of a request's summaries, which is the same for a model and its fallbacks."""
    text = request.model_dump_json(exclude={"fallback", "gives_up"}, exclude_defaults=True)
    return key_of(f"summary/{hashlib.sha256(text.encode()).hexdigest()[:32]}")


def _portion(older: Sequence[Row]) -> Sequence[Row]:
    """The first rows, up to MAX_BYTES. A tool's results are never separated from the message with the call."""
    size = 0
    for index, row in enumerate(older):
        size += row.message.byte_size
        if size > MAX_BYTES and index and row.message.role != "tool":
            return older[:index]
    return older


def _transcript(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        calls = "".join(f"\n(calls {call.name} {call.arguments})" for call in message.tool_calls)
        speaker = "previous summary" if message.summarizes is not None else message.name or message.role
        yield f"{speaker}: {truncate(message.content, MAX_BYTES)}{truncate(calls, MAX_BYTES)}"


def _summary_model(window: ContextWindow, values: ValueResolver) -> ChainedModel | None:
    """The Model for summaries in the window's manifest, if it names one."""
    if window.summarize is None or window.summarize.model is None:
        return None
    ref = window.summarize.model
    model = find(values.catalog, Reference((), ("Model",), ref.namespace or "default", ref.name))
    assert isinstance(model, Model)
    return model_chain(model, values.catalog)[0]
