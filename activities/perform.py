"""The activity ``perform``: calls a registered function that speaks in a panel, and journals its answer."""

from functools import partial

from pydantic import BaseModel
from pydantic_core import to_json
from temporalio import activity

from ..conversation.contracts.panel_requests import PerformRequest, PerformResult
from ..conversation.errors import OutputRejected
from ..conversation.messages.message import Message
from ..resources.base import JsonObject
from .context.structured_output import output_error
from .context.value_resolver import ValueResolver
from .journal.journal import Journal
from .panel.default_agents import panel_output_schema
from .panel.speaker_context import SpeakerContext
from .process.functions import FunctionRegistry
from .process.secrets import SecretStore
from .runtime.call_spans import call_span, found_call
from .runtime.ids import idempotency_key


class Perform:
    """The activity ``perform``."""

    def __init__(self, journal: Journal, functions: FunctionRegistry, secrets: SecretStore) -> None:
        self._journal, self._functions, self._secrets = journal, functions, secrets

    @activity.defn(name="perform")
    async def perform(self, request: PerformRequest) -> PerformResult:
        """Returns what the journal holds for this activity; calls the function only if there is nothing."""
        thread, brief, row_id = request.thread, request.brief, f"{idempotency_key()}/reply"
        attributes = partial(_attributes, request.function)
        if row := await self._journal.find(row_id):
            found_call("execute_tool", request.function, attributes, kind="internal")
            return PerformResult(message=row.message.truncated(), head=row.head)
        rows = await self._journal.read(thread.head)
        values = await ValueResolver.of(self._journal, thread, self._secrets)
        panel = SpeakerContext.of(brief, values, rows, thread.question)
        given = panel.transcript.shape(brief.round) if brief.part == "synthesizer" else panel.briefing
        with call_span("execute_tool", request.function, attributes, kind="internal"):
            value = await self._functions.invoke(request.function, given)
        text, coerced = as_text(value) if brief.part == "member" else as_answer(value)
        message = await self._secrets.redact_message(Message(role="assistant", content=text, name=request.name))
        if wrong := await output_error(message, panel_output_schema(values.catalog, brief)):
            raise OutputRejected(f"what the function '{request.function}' gives {wrong}")
        row = await self._journal.append_once(thread.head, message, row_id)
        return PerformResult(message=row.message.truncated(), head=row.head, coerced=coerced)


def _attributes(function: str) -> JsonObject:
    return {"gen_ai.tool.name": function, "gen_ai.tool.type": "function"}


def as_text(value: object) -> tuple[str, bool]:
    """A member's contribution from what its function returned, and whether it had to be converted to a text.

    (Round-robin pattern: customizing members)
    """
    if isinstance(value, str):
        return value, False
    if isinstance(value, dict) and isinstance(text := value.get("text"), str):
        return text, False
    if isinstance(text := getattr(value, "text", None), str):
        return text, False
    return str(value), True


def as_answer(value: object) -> tuple[str, bool]:
    """The answer of a role that is no member: a text, an object ``{text}``, or any other value as JSON."""
    if isinstance(value, BaseModel | dict | list) and not (isinstance(value, dict) and value.keys() == {"text"}):
        return to_json(value, by_alias=True, exclude_none=True, fallback=str).decode(), False
    return as_text(value)
