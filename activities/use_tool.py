"""The activities of tool calls: ``use_tool``, ``review`` and ``delegate``."""

import contextlib
import json
from collections.abc import Iterator
from functools import partial

from temporalio import activity

from ..contracts.decisions import MAX_ARGUMENTS, Question
from ..contracts.errors import BadArguments, JournalLost, NotApproved, ToolFailed, UnknownResource, UnknownTool
from ..contracts.message import Head, Message, PersonDecision, ToolCall
from ..contracts.requests import ReviewResult, UseToolRequest, UseToolResult
from ..contracts.text import parse_json, repair_surrogates, truncate
from ..contracts.turn import Thread
from ..journal.accounts import Amount
from ..journal.journal import Journal
from ..journal.rows import Row
from ..observability.spans import call_span, found_call, note_call, note_content
from ..resources import tool as resources
from ..resources.agent import Agent
from ..resources.base import JsonModel, JsonObject
from ..temporal.activity import idempotency_key
from .context.call_record import CallRecord, new_fence
from .context.metering import Meter
from .context.output_schema import schema_errors
from .context.value_resolver import ValueResolver
from .panel import find_speaker
from .runtime.secrets import SecretStore
from .tool.tool import Answered, AsksPerson, BeginOnce, CallableTool, ToolDefinition
from .tool.tools import Tools

MAX_QUESTION = 8_000
"""Bytes of a question."""


class AskedNote(JsonModel):
    """What a tool has asked, what it needs to go on (``state``), and the ``decision`` by which the call was allowed."""

    text: str
    reply_schema: JsonObject | None = None
    state: JsonObject
    decision: PersonDecision | None = None


class ToolQuestions:
    """Reads and writes the notes."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets

    async def asked(self, request: UseToolRequest, key: str) -> UseToolResult | None:
        """The question with which an earlier attempt of the use ``key`` has ended; None if there is none."""
        note = await self._read(request, key)
        return _result(request, note, key) if note else None

    async def ask(self, request: UseToolRequest, key: str, asks: AsksPerson) -> UseToolResult:
        """Notes what the use ``key`` asks."""
        text = truncate(await self._secrets.redact_long(asks.text), MAX_QUESTION)
        note = AskedNote(text=text, reply_schema=asks.reply_schema, state=asks.state, decision=request.decision)
        await self._record(request, key).write("asked", note.model_dump_json())
        return _result(request, note, key)

    async def allowed(self, request: UseToolRequest) -> UseToolRequest:
        """The request; if it goes on, with the decision by which the call was allowed when it began."""
        if request.answered is None:
            return request
        return request.model_copy(update={"decision": (await self._earlier(request)).decision})

    async def answered(self, request: UseToolRequest) -> Answered | None:
        """What the use goes on with, if an earlier one has asked."""
        if request.answered is None:
            return None
        return Answered((await self._earlier(request)).state, request.answered.decision)

    async def _earlier(self, request: UseToolRequest) -> AskedNote:
        record = request.answered.record if request.answered else ""
        if note := await self._read(request, record):
            return note
        raise JournalLost(f"the journal does not hold what was asked by {record}")

    async def _read(self, request: UseToolRequest, key: str) -> AskedNote | None:
        text = await self._record(request, key).read("asked")
        return AskedNote.model_validate_json(text) if text else None

    def _record(self, request: UseToolRequest, key: str) -> CallRecord:
        return CallRecord(self._journal, self._secrets, request.thread.head, key)


def _result(request: UseToolRequest, note: AskedNote, key: str) -> UseToolResult:
    number = request.answered.number + 1 if request.answered else 1
    question = Question(id=request.question_id(number), text=note.text, reply_schema=note.reply_schema, record=key)
    return UseToolResult(message=Message(role="tool"), head=request.thread.head, question=question)


class ToolCalls:
    """Finds tool calls in the journal."""

    def __init__(self, journal: Journal, tools: Tools, secrets: SecretStore) -> None:
        self._journal, self._tools, self._secrets = journal, tools, secrets
        self._questions = ToolQuestions(journal, secrets)

    async def resolve(self, request: UseToolRequest, key: str) -> tuple[ToolCall, CallableTool]:
        """The call and the tool. Raises NotApproved for a call that needs a person's yes and has none."""
        call, tool = await self.find(request, key)
        approved = request.decision is not None and request.decision.approved
        if tool.approval and not approved and tool.approval.is_needed(_parsed(call.arguments)):
            raise NotApproved(f"{call.name} needs the approval of a person")
        return call, tool

    async def find(self, request: UseToolRequest, key: str) -> tuple[ToolCall, CallableTool]:
        """The call, with the arguments that a person has changed, and the tool.

        The call is read from the journal: the history may hold only a part of it.
        """
        call, tool = await self._find(request, key)
        changed = request.decision.arguments if request.decision else None
        return (call if changed is None else call.model_copy(update={"arguments": changed})), tool

    async def _find(self, request: UseToolRequest, key: str) -> tuple[ToolCall, CallableTool]:
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        speaker = find_speaker(values.catalog, request.speaker)
        if isinstance(speaker, resources.Tool):
            question = values.with_secrets((await self._row(request.thread.question)).message)
            begin_once = self._begin_once(request, speaker.name, key)
            tool = await self._tools.of_manifest(speaker, values, begin_once, await self._questions.answered(request))
            built_in = speaker.spec.type in resources.BUILT_IN_TYPES
            arguments = _as_arguments(question.content, _only_argument(tool.definition) if built_in else "input")
            return ToolCall(id="", name=speaker.name, arguments=arguments), tool
        if not isinstance(speaker, Agent):
            raise UnknownResource(f"{request.speaker} uses no tools")
        call = (await self._row(request.reply or "")).message.tool_calls[request.call]
        begin_once = self._begin_once(request, call.name, key)
        given = await self._tools.of_agent(speaker, values, begin_once, await self._questions.answered(request))
        tools = {tool.definition.name: tool for tool in given}
        if call.name not in tools:
            known = f"your tools: {', '.join(tools)}" if tools else "you have no tools"
            raise UnknownTool(f"there is no tool '{call.name}'; {known}")
        return call, tools[call.name]

    async def charge(self, request: UseToolRequest, key: str) -> None:
        """Charges a use of a tool, also of one that fails, to the budgets above it. Raises BudgetExceeded."""
        if request.thread.account:
            catalog = await self._journal.catalog(request.thread.catalog)
            await Meter(self._journal, request.thread, request.speaker, catalog, key).charge(Amount(tool_calls=1))

    def _begin_once(self, request: UseToolRequest, name: str, key: str) -> BeginOnce:
        """Lets only one attempt use a tool."""
        record = CallRecord(self._journal, self._secrets, request.thread.head, key)
        return partial(record.begin_once, name)

    async def _row(self, row_id: str) -> Row:
        if row := await self._journal.find(row_id):
            return row
        raise JournalLost(f"the journal does not hold {row_id}")


async def use(call: ToolCall, tool: CallableTool) -> str:
    """The tool's answer. Raises BadArguments, and whatever the tool raises."""
    arguments = await checked_arguments(tool.definition, call.arguments)
    try:
        note_content(lambda: {"gen_ai.tool.call.arguments": json.dumps(arguments, ensure_ascii=False)})
        answer = await tool.use(arguments)
        note_content(lambda: {"gen_ai.tool.call.result": answer})
        return answer
    except ToolFailed as failed:
        retryable = tool.retries or not failed.non_retryable
        raise ToolFailed(failed.message, retryable=retryable, retry_after=failed.next_retry_delay) from None


def _as_arguments(text: str, name: str) -> str:
    """A question's text as a tool's arguments: a JSON object as it is, any other text as the argument ``name``."""
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    return text if isinstance(value, dict) else json.dumps({name: text})


def _only_argument(tool: ToolDefinition) -> str:
    """The name of a tool's argument if it has exactly one, else ``input``."""
    properties = tool.parameters.get("properties")
    (name,) = properties if isinstance(properties, dict) and len(properties) == 1 else ("input",)
    return name


def _parsed(text: str) -> JsonObject:
    """The arguments of a call; none where they can't be read, with which it is not carried out."""
    try:
        value = parse_json(text or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


async def checked_arguments(tool: ToolDefinition, text: str) -> JsonObject:
    """The arguments of a call, checked against the tool's schema, with its defaults; an empty text means none."""
    try:
        value = parse_json(repair_surrogates(json.dumps(parse_json(text or "{}"), ensure_ascii=False)))
    except ValueError as error:
        raise BadArguments(f"the arguments of {tool.name} are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments of {tool.name} must be a JSON object")
    if wrong := await schema_errors(value, tool.parameters):
        raise BadArguments(f"the arguments of {tool.name} don't fit its schema: {'; '.join(wrong)}")
    return value | {name: each for name, each in _defaults(tool.parameters).items() if name not in value}


def _defaults(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    given = properties.items() if isinstance(properties, dict) else ()
    return {name: each["default"] for name, each in given if isinstance(each, dict) and "default" in each}


@contextlib.contextmanager
def tool_span(tool: ToolDefinition, call: ToolCall) -> Iterator[None]:
    """Uses a tool in the block. A use that ends with a question to a person has not failed."""
    asks: AsksPerson | None = None
    with call_span("execute_tool", tool.name, lambda: _attributes(tool, call), kind="internal"):
        try:
            yield
        except AsksPerson as question:
            asks = question
            note_call(lambda: {"baton.tool.asks": True})
    if asks:
        raise asks


def found_use(tool: ToolDefinition, call: ToolCall) -> None:
    """Tells the trace of a use whose result an earlier attempt has written down."""
    found_call("execute_tool", tool.name, lambda: _attributes(tool, call), kind="internal")


def _attributes(tool: ToolDefinition, call: ToolCall) -> JsonObject:
    found: JsonObject = {"gen_ai.tool.name": tool.name, "gen_ai.tool.type": "function"}
    if call.id:
        found["gen_ai.tool.call.id"] = call.id
    if tool.description:
        found["gen_ai.tool.description"] = tool.description[:500]
    return found


class UseTool:
    """The activity ``use_tool``."""

    def __init__(self, journal: Journal, tools: Tools, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets
        self._calls = ToolCalls(journal, tools, secrets)
        self._questions = ToolQuestions(journal, secrets)

    @activity.defn(name="use_tool")
    async def use_tool(self, request: UseToolRequest) -> UseToolResult:
        """Returns the result that the journal holds for this activity; uses the tool only if there is none."""
        key = idempotency_key()
        request = await self._questions.allowed(request)
        call, tool = await self._calls.resolve(request, key)
        row = await self._journal.find(f"{key}/reply")
        if row and request.answer is None:
            found_use(tool.definition, call)
        if row is None:
            if asked := await self._questions.asked(request, key):
                return asked
            try:
                answer = request.answer if request.answer is not None else await self._use(request, key, call, tool)
            except AsksPerson as asks:
                return await self._questions.ask(request, key, asks)
            message = _reply(call, tool, await tool.finish(answer), to_model=request.reply is not None)
            decision = request.decision or (request.answered.decision.to_remember() if request.answered else None)
            message = message.model_copy(update={"decision": decision}) if decision else message
            clean = await self._secrets.redact_message(message)
            row = await self._journal.append_once(request.thread.head, clean, f"{key}/reply")
        shown = row.message.truncated().model_copy(update={"fence": None})  # which only the model needs
        return UseToolResult(message=shown, head=row.head, ends=tool.ends)

    async def _use(self, request: UseToolRequest, key: str, call: ToolCall, tool: CallableTool) -> str:
        """The tool's answer; a use that goes on after a question is charged to no budget again."""
        if not request.answered:
            await self._calls.charge(request, key)
        with tool_span(tool.definition, call):
            return await use(call, tool)


def _reply(call: ToolCall, tool: CallableTool, text: str, *, to_model: bool) -> Message:
    """A tool's result: the answer to a model's call, or, for a query that is put to the tool, its own message."""
    if to_model:
        fence = new_fence() if tool.untrusted else None
        return Message(role="tool", content=text, name=call.name, tool_call_id=call.id, fence=fence)
    return Message(role="assistant", content=text, name=call.name)


class Review:
    """The activity ``review``."""

    def __init__(self, journal: Journal, tools: Tools, secrets: SecretStore) -> None:
        self._secrets = secrets
        self._calls = ToolCalls(journal, tools, secrets)

    @activity.defn(name="review")
    async def review(self, request: UseToolRequest) -> ReviewResult:
        """Raises what the call itself would raise: UnknownTool and BadArguments."""
        call, tool = await self._calls.find(request, idempotency_key())
        arguments = await checked_arguments(tool.definition, call.arguments)
        needed = tool.approval is not None and tool.approval.is_needed(arguments)
        shown = await self._secrets.redact_long(json.dumps(arguments, ensure_ascii=False))
        shown = truncate(shown, MAX_ARGUMENTS)
        return ReviewResult(needed=needed, arguments=shown) if needed else ReviewResult(needed=False)


class Delegate:
    """The activity ``delegate``."""

    def __init__(self, journal: Journal, tools: Tools, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets
        self._calls = ToolCalls(journal, tools, secrets)

    @activity.defn(name="delegate")
    async def delegate(self, request: UseToolRequest) -> Thread:
        """The new conversation, in which the agent or the team takes its turn."""
        key = idempotency_key()
        question = Message(role="user", content=await use(*await self._calls.resolve(request, key)))
        await self._calls.charge(request, key)
        head = await self._journal.append(Head(), [await self._secrets.redact_message(question)], key)
        thread = request.thread.under(request.speaker) if request.thread.account else request.thread
        return thread.model_copy(update={"question": head.id, "head": head})
