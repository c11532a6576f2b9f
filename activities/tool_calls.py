"""The activities of tool calls: ``use_tool``, ``review``, ``delegate`` and ``check_arguments``."""

import json
from collections.abc import Sequence
from dataclasses import replace

from temporalio import activity

from ..contracts.attachment import Attachment
from ..contracts.decisions import MAX_ARGUMENTS, Question
from ..contracts.errors import BadArguments, JournalLost, NotApproved, ToolFailed, UnknownResource, UnknownTool
from ..contracts.message import Head, Message, PersonDecision, ToolCall
from ..contracts.requests import CheckedArguments, ReviewResult, UseToolRequest, UseToolResult
from ..contracts.text import parse_json, repair_surrogates, truncate
from ..contracts.turn import Thread
from ..journal.accounts import Charge
from ..journal.journal import Journal
from ..journal.leases import Lease
from ..journal.rows import Row
from ..observability.spans import call_span, note_call, note_content, recorded_call
from ..resources import tool as resources
from ..resources.agent import Agent
from ..resources.base import JsonModel, JsonObject
from ..resources.content import ContentPart, part_of_bytes
from ..temporal.activity import idempotency_key, workflow_id
from .context.call_record import CallRecord, new_fence
from .context.metering import Meters
from .context.output_schema import schema_errors
from .context.outside import Outside, OutsideCall, canonical_request, raise_recorded
from .context.value_resolver import ValueResolver
from .panel import find_speaker
from .runtime.functions import CallPlace, calling_at
from .runtime.secrets import SecretStore
from .tool.tool import Answered, AsksPerson, CallableTool, ResultWithFiles, ToolDefinition
from .tool.tools import Tools

MAX_QUESTION = 8_000
"""Bytes of a question."""


class QuestionNote(JsonModel):
    """A tool's question. ``state`` is what the tool needs to continue, ``decision`` the approval of the call."""

    text: str
    reply_schema: JsonObject | None = None
    state: JsonObject
    decision: PersonDecision | None = None
    authorizes: bool = False


class ToolActivities:
    """The activities of tool calls. Calls are read from the journal, as the history may have them truncated."""

    def __init__(
        self, journal: Journal, tools: Tools, secrets: SecretStore, meters: Meters, outside: Outside | None = None
    ) -> None:
        self._journal = journal
        self._tools = tools
        self._secrets = secrets
        self._meters = meters
        self._outside = outside

    @activity.defn(name="use_tool")
    async def use_tool(self, request: UseToolRequest) -> UseToolResult:
        """Returns the result that the journal has for this activity; calls the tool only if there is none."""
        key = idempotency_key()
        earlier: QuestionNote | None = None
        if request.answered:
            # The call was approved when it started, before it asked its question.
            earlier = await self._earlier_question(request, request.answered.record)
            request = request.allowed_by(earlier.decision)
        call, tool = await self._approved(request, earlier)
        row = await self._journal.find(f"{key}/reply")
        if row and request.answer is None:
            recorded_call("execute_tool", tool.definition.name, lambda: _attributes(tool, call), kind="internal")
        if row and self._outside:
            await self._note(request, call, tool, await self._answer_json(row.message))
        if row is None:
            if note := await self._question(request, key):
                await self._note(request, call, tool, _question_json(note))
                return _question_result(request, note, key)
            async with self._journal.leases.hold(f"{key}/reply", await self._charge(request)) as lease:
                try:
                    if not lease.is_answered:
                        place = CallPlace(request.speaker.rpartition("/")[2], request.turn, request.session)
                        with calling_at(place):
                            answer = await self._answer(request, lease, call, tool)
                        reply = _reply(request, call, tool, _text(answer))
                        reply = await self._secrets.redact_message(reply)
                        if isinstance(answer, ResultWithFiles) and reply.role == "tool":
                            reply = await self._with_files(reply, answer)
                        await self._journal.answer(lease, request.thread.head, reply)
                except AsksPerson as asks:
                    await self._note_question(request, key, asks)
            if note := await self._question(request, key):
                return _question_result(request, note, key)
            row = await self._journal.row(f"{key}/reply")
        # A tool that ends the turn gives its answer. Only the model needs the fence.
        message = row.message.truncated() if tool.ends else row.message.in_history
        return UseToolResult(message=message.without_fence, head=row.head, ends=tool.ends)

    @activity.defn(name="review")
    async def review(self, request: UseToolRequest) -> ReviewResult:
        """Whether a call requires approval. Raises the same errors as the call: UnknownTool and BadArguments."""
        call, tool = await self._find(request)
        arguments = await checked_arguments(tool.definition, call.arguments)
        if tool.approval is None or not tool.approval.is_needed(arguments):
            return ReviewResult(needed=False)
        shown = await self._secrets.redact_long(json.dumps(arguments, ensure_ascii=False))
        return ReviewResult(
            needed=True, arguments=truncate(shown, MAX_ARGUMENTS), approvers=tool.approval.approvers
        ).without_defaults

    @activity.defn(name="delegate")
    async def delegate(self, request: UseToolRequest) -> Thread:
        """A new conversation for the agent or team that a tool delegates to."""
        row, _, _ = await self._prepared(request)
        thread = request.thread.under(request.speaker) if request.thread.account else request.thread
        return thread.asking(row.head)

    @activity.defn(name="check_arguments")
    async def check_arguments(self, request: UseToolRequest) -> CheckedArguments:
        """The arguments of the application's activity that a tool calls, or of the client's tool.

        In the replay of a recording also the application's result. Raises UnknownTool, BadArguments, NotRecorded, and
        the error of a recorded call.
        """
        row, call, tool = await self._prepared(request)
        arguments = json.loads(row.message.content)
        recorded: str | None = None
        if self._outside and tool.application:
            answer = await self._outside.answer(await self._call(request, call, tool), None)
            recorded = _text(_recorded_result(answer))
        return CheckedArguments(arguments=arguments, by_client=tool.by_client, recorded=recorded).without_defaults

    async def _prepared(self, request: UseToolRequest) -> tuple[Row, ToolCall, CallableTool]:
        """The row of a call that the workflow itself makes, with the text of its tool. The call is charged here."""
        key = idempotency_key()
        call, tool = await self._approved(request)
        row = await self._journal.find(f"{key}/0")
        if row:
            return row, call, tool
        async with self._journal.leases.hold(f"{key}/0", await self._charge(request)) as lease:
            if not lease.is_answered:
                message = Message(role="user", content=_text(await use(lease, call, tool)))
                await self._journal.answer(lease, Head(), await self._secrets.redact_message(message))
        return await self._journal.row(f"{key}/0"), call, tool

    async def _with_files(self, reply: Message, answer: ResultWithFiles) -> Message:
        """The reply with the images and files whose stand-ins are still in its text."""
        files = [file for file in answer.files if file.data and file.shown in reply.content]
        run = activity.info().workflow_run_id or ""
        stored = await self._journal.attach(run, [file.data.content for file in files if file.data])
        return reply.with_attachments(Attachment.of(file, id_) for file, id_ in zip(files, stored, strict=True))

    async def _answer(
        self, request: UseToolRequest, lease: Lease, call: ToolCall, tool: CallableTool
    ) -> str | ResultWithFiles:
        """The tool's answer as it is stored: that of the request, a recorded one, or that of a call."""
        if request.answer is not None:
            return await _finished(tool, request.answer)
        if self._outside is None or tool.inside:
            return await _finished(tool, await self._use(lease, call, tool))

        async def live() -> JsonObject:
            try:
                return _result_json(await _finished(tool, await self._use(lease, call, tool)))
            except AsksPerson as asks:
                return _question_json(QuestionNote(text=asks.text, reply_schema=asks.reply_schema, state=asks.state))

        return _recorded_result(await self._outside.answer(await self._call(request, call, tool), live))

    async def failed_call(self, request: UseToolRequest, called: str | None = None) -> OutsideCall | None:
        """The call of a tool that the current activity has made, and that has failed; None if nobody was called.

        ``called`` is the type of the application's activity or workflow that has failed: None if it is not the tool's.
        """
        earlier = await self._earlier_question(request, request.answered.record) if request.answered else None
        call, tool = await self._find(request.allowed_by(earlier.decision) if earlier else request, earlier)
        if tool.inside or request.answer is not None or (called and called != tool.application):
            return None
        return await self._call(request, call, tool)

    async def _call(self, request: UseToolRequest, call: ToolCall, tool: CallableTool) -> OutsideCall:
        """The call as a recording holds it. Raises BadArguments."""
        answered = request.answered.decision if request.answered else None
        rendered: JsonObject = {
            "tool": call.name,
            "arguments": await checked_arguments(tool.definition, call.arguments),
            "reply": {"approved": answered.approved, "text": answered.text} if answered else None,
        }
        return OutsideCall(
            kind="tool",
            caller=request.speaker,
            purpose=call.name,
            run=workflow_id(),
            request=canonical_request(rendered, self._secrets.redact),
        )

    async def _note(self, request: UseToolRequest, call: ToolCall, tool: CallableTool, answer: JsonObject) -> None:
        """Takes note of a call that was made earlier, if anybody was called: not of one of a client's tool."""
        if self._outside and not tool.inside and (request.answer is None or tool.application):
            await self._outside.note(await self._call(request, call, tool), answer)

    async def _answer_json(self, reply: Message) -> JsonObject:
        """The recorded form of a stored result."""
        files = []
        for attachment in reply.attachments:
            content = await self._journal.attachment(attachment.stored) if attachment.stored else b""
            files.append(part_of_bytes(content, attachment.media_type or "", attachment.name))
        return _result_json(ResultWithFiles(reply.content, tuple(files)) if files else reply.content)

    async def _use(self, lease: Lease, call: ToolCall, tool: CallableTool) -> str | ResultWithFiles:
        """The tool's answer."""
        with call_span("execute_tool", tool.definition.name, lambda: _attributes(tool, call), kind="internal"):
            try:
                return await use(lease, call, tool)
            except AsksPerson as question:
                note_call(lambda: {"baton.tool.asks": True})
                asks = question  # raised after the span: a call that ends with a question has not failed
        raise asks

    async def _approved(
        self, request: UseToolRequest, earlier: QuestionNote | None = None
    ) -> tuple[ToolCall, CallableTool]:
        """The call and its tool. Raises NotApproved for a call that requires human approval and has none."""
        call, tool = await self._find(request, earlier)
        approved = request.decision is not None and request.decision.approved
        if tool.approval and not approved and tool.approval.is_needed(_parsed(call.arguments)):
            raise NotApproved(f"{call.name} requires human approval")
        return call, tool

    async def _find(
        self, request: UseToolRequest, earlier: QuestionNote | None = None
    ) -> tuple[ToolCall, CallableTool]:
        """The call, with any arguments that a person changed, and its tool. ``earlier`` is its answered question."""
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        answered = Answered(earlier.state, request.answered.decision) if earlier and request.answered else None
        speaker = find_speaker(values.catalog, request.speaker)
        if isinstance(speaker, resources.Tool):
            question = values.with_secrets((await self._journal.row(request.thread.question)).message)
            tool = await self._tools.of_manifest(speaker, values, answered)
            arguments = _as_arguments(question.content, tool.definition)
            call = ToolCall(id="", name=speaker.name, arguments=arguments)
        elif isinstance(speaker, Agent):
            call = (await self._journal.row(request.reply or "")).message.tool_calls[request.call]
            tool = _named(call.name, await self._tools.of_agent(speaker, values, answered, request.member))
        else:
            raise UnknownResource(f"{request.speaker} can't use tools")
        changed = request.decision.arguments if request.decision else None
        return (call if changed is None else call.with_arguments(changed)), tool

    async def _charge(self, request: UseToolRequest) -> Charge | None:
        """The charge of a tool call: once, also if it fails, is retried, or continues after a question."""
        thread = request.thread
        if request.answered or request.answer is not None or not (thread.account or thread.tenant):
            return None
        meter = await self._meters.of(thread, request.speaker, await self._journal.catalog(thread.catalog))
        return meter.tool_charge()

    async def _question(self, request: UseToolRequest, key: str) -> QuestionNote | None:
        """The question with which an earlier attempt of the call ``key`` has ended."""
        text = await self._record(request, key).read("asked")
        return QuestionNote.model_validate_json(text) if text else None

    async def _earlier_question(self, request: UseToolRequest, key: str) -> QuestionNote:
        """The question of the earlier call ``key``, which this one continues."""
        if note := await self._question(request, key):
            return note
        raise JournalLost(f"the journal has no question of the call {key}")

    async def _note_question(self, request: UseToolRequest, key: str, asks: AsksPerson) -> QuestionNote:
        asked = Message(role="tool", content=await self._secrets.redact_long(asks.text))
        text = truncate((await self._journal.redacted([asked]))[0].content, MAX_QUESTION)
        note = QuestionNote(
            text=text,
            reply_schema=asks.reply_schema,
            state=asks.state,
            decision=request.decision,
            authorizes=asks.authorizes,
        )
        await self._record(request, key).write("asked", note.model_dump_json())
        return note

    def _record(self, request: UseToolRequest, key: str) -> CallRecord:
        return CallRecord(self._journal, self._secrets, request.thread.head, key)


def _named(name: str, tools: Sequence[CallableTool]) -> CallableTool:
    by_name = {tool.definition.name: tool for tool in tools}
    if name in by_name:
        return by_name[name]
    known = f"your tools: {', '.join(by_name)}" if by_name else "you have no tools"
    raise UnknownTool(f"there is no tool '{name}'; {known}")


def _question_result(request: UseToolRequest, note: QuestionNote, key: str) -> UseToolResult:
    number = request.answered.number + 1 if request.answered else 1
    question = Question(
        id=request.question_id(number),
        text=note.text,
        reply_schema=note.reply_schema,
        record=key,
        authorizes=note.authorizes,
    ).without_defaults
    return UseToolResult(message=Message(role="tool"), head=request.thread.head, question=question)


def _reply(request: UseToolRequest, call: ToolCall, tool: CallableTool, text: str) -> Message:
    """A tool's result: a tool message for a model's call, or an assistant message if the tool is a query's target."""
    decision = request.decision
    if decision is None and request.answered:
        decision = request.answered.decision.to_remember()
    if request.reply is None:
        return Message(role="assistant", content=text, name=call.name, decision=decision)
    return Message(
        role="tool",
        content=text,
        name=call.name,
        tool_call_id=call.id,
        fence=new_fence() if tool.untrusted else None,
        decision=decision,
        handoff=tool.handoff,
    )


def _text(answer: str | ResultWithFiles) -> str:
    return answer if isinstance(answer, str) else answer.text


async def _finished(tool: CallableTool, answer: str | ResultWithFiles) -> str | ResultWithFiles:
    """The answer as it is stored."""
    text = await tool.finish(_text(answer))
    return text if isinstance(answer, str) else replace(answer, text=text)


def _result_json(answer: str | ResultWithFiles) -> JsonObject:
    """A tool's result as a recording holds it."""
    if isinstance(answer, str):
        return {"text": answer}
    files = [file.model_dump(mode="json", by_alias=True, exclude_defaults=True) for file in answer.files]
    return {"text": answer.text, "files": [*files]}


def _question_json(note: QuestionNote) -> JsonObject:
    """A tool's question as a recording holds it."""
    return {"asks": note.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"decision"})}


def _recorded_result(answer: JsonObject) -> str | ResultWithFiles:
    """The result in a recording. Raises AsksPerson for a question, and the error of a failed call."""
    raise_recorded(answer)
    if "asks" in answer:
        note = QuestionNote.model_validate(answer["asks"])
        raise AsksPerson(note.text, note.reply_schema, note.state, authorizes=note.authorizes)
    text = str(answer.get("text", ""))
    files = answer.get("files")
    if not isinstance(files, list):
        return text
    return ResultWithFiles(text, tuple(ContentPart.model_validate(file) for file in files))


async def use(lease: Lease, call: ToolCall, tool: CallableTool) -> str | ResultWithFiles:
    """Calls the tool and returns its answer. Raises BadArguments and the tool's errors."""
    arguments = await checked_arguments(tool.definition, call.arguments)
    try:
        note_content(lambda: {"gen_ai.tool.call.arguments": json.dumps(arguments, ensure_ascii=False)})
        answer = await tool.use(arguments, lease)
        note_content(lambda: {"gen_ai.tool.call.result": _text(answer)})
        return answer
    except ToolFailed as failed:
        retryable = tool.retries or not failed.non_retryable
        wait = failed.next_retry_delay
        raise ToolFailed(failed.message, retryable=retryable, retry_after=wait, unsent=failed.unsent) from None


def _as_arguments(text: str, tool: ToolDefinition) -> str:
    """A question's text as a tool's arguments: a JSON object unchanged, any other text as one argument.

    Raises BadArguments if it could be any of several arguments.
    """
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return text
    try:
        return json.dumps({resources.argument_for_text(tool.parameters): text})
    except ValueError as error:
        raise BadArguments(f"the input of {tool.name} {error}") from None


def _parsed(text: str) -> JsonObject:
    """The arguments of a call; empty if they are invalid, as the call fails then."""
    try:
        value = parse_json(text or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


async def checked_arguments(tool: ToolDefinition, text: str) -> JsonObject:
    """The validated arguments of a call, with the defaults of the tool's schema. An empty text means no arguments."""
    try:
        value = parse_json(repair_surrogates(json.dumps(parse_json(text or "{}"), ensure_ascii=False)))
    except ValueError as error:
        raise BadArguments(f"the arguments of {tool.name} are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments of {tool.name} must be a JSON object")
    if wrong := await schema_errors(value, tool.parameters):
        raise BadArguments(f"the arguments of {tool.name} don't match its schema: {'; '.join(wrong)}")
    return value | {name: default for name, default in _defaults(tool.parameters).items() if name not in value}


def _defaults(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    property_schemas = properties.items() if isinstance(properties, dict) else ()
    return {
        name: schema["default"] for name, schema in property_schemas if isinstance(schema, dict) and "default" in schema
    }


def _attributes(tool: CallableTool, call: ToolCall) -> JsonObject:
    attributes: JsonObject = {"gen_ai.tool.name": tool.definition.name, "gen_ai.tool.type": "function"}
    if call.id:
        attributes["gen_ai.tool.call.id"] = call.id
    if tool.definition.description:
        attributes["gen_ai.tool.description"] = tool.definition.description[:500]
    return attributes
