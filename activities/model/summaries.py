"""Sums up what is older than a context window: each summary is written to the journal, and never asked for twice."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...conversation.contracts.requests import AskModelRequest
from ...conversation.errors import EmptyReply
from ...conversation.messages.message import Head, Message, TokenUsage
from ...resources.base import Reference
from ...resources.model import Model
from ...resources.window import ContextWindow
from ..context.context_window import CHARACTERS, apply_window, summarized, summary_end
from ..context.lookup import find
from ..context.metering import Meter, estimate
from ..context.model_chain import ChainedModel, model_chain
from ..context.value_resolver import ValueResolver
from ..journal.journal import Journal
from ..journal.row import Row
from ..process.secrets import SecretStore
from ..runtime.ids import key_of
from .provider import ModelRequest
from .providers import Providers

PROMPT = """Sum up the conversation below for those who continue it without having read it. Keep names, numbers,
decisions, open questions, what the user wants, and what tools have found. Write only the summary, in the language of
the conversation."""

MAX_CHARACTERS = 200_000
"""Characters that one summary sums up at most, besides the summary before it; a longer history takes several."""


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
        if sum(row.message.byte_size for row in history) <= window.summary_limit * CHARACTERS:
            return ()
        kept = apply_window(history, window.model_copy(update={"summarize": None}))
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
        if size > MAX_CHARACTERS and place and row.message.role != "tool":
            return older[:place]
    return older


def _lines(messages: Iterable[Message]) -> Iterable[str]:
    for each in messages:
        calls = "".join(f"\n(calls {call.name} {call.arguments})" for call in each.tool_calls)
        who = "summary so far" if each.summarizes is not None else each.name or each.role
        yield f"{who}: {each.content[:MAX_CHARACTERS]}{calls[:MAX_CHARACTERS]}"


def _model(window: ContextWindow, values: ValueResolver) -> ChainedModel | None:
    """The Model that the window names."""
    if window.summarize is None or window.summarize.model is None:
        return None
    ref = window.summarize.model
    found = find(values.catalog, Reference((), ("Model",), ref.namespace or "default", ref.name))
    assert isinstance(found, Model)
    return model_chain(found, values.catalog)[0]
