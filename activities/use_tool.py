"""The activity ``use_tool``: uses one tool, and writes the result to the journal before it returns it."""

import json

from pydantic import JsonValue
from temporalio import activity

from ..conversation.contracts.requests import UseToolRequest, UseToolResult
from ..conversation.errors import BadArguments, JournalLost, OutcomeUnknown, ToolFailed, UnknownResource, UnknownTool
from ..conversation.messages.message import Message, ToolCall
from ..conversation.text import repair_surrogates
from ..resources import tool as resources
from ..resources.agent import Agent
from ..resources.base import JsonObject
from .context.schema_errors import schema_errors
from .context.value_resolver import ValueResolver
from .journal.journal import Journal
from .journal.row import Row
from .panel.default_agents import find_speaker
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key
from .tool.tool import BeginOnce, CallableTool, ToolDefinition
from .tool.tools import Tools


class UseTool:
    """The activity ``use_tool``."""

    def __init__(self, journal: Journal, tools: Tools, secrets: SecretStore) -> None:
        self._journal, self._tools, self._secrets = journal, tools, secrets

    @activity.defn(name="use_tool")
    async def use_tool(self, request: UseToolRequest) -> UseToolResult:
        """Returns the result that the journal holds for this activity; uses the tool only if there is none."""
        key = idempotency_key()
        call, tool = await self._resolve(request, key)
        row = await self._journal.find(f"{key}/reply")
        if row is None:
            message = _reply(call, await _use(tool, call), to_model=request.reply is not None)
            clean = self._secrets.redact_message(message)
            row = await self._journal.append_once(request.thread.head, clean, f"{key}/reply")
        return UseToolResult(message=row.message.truncated(), head=row.head, ends=tool.ends)

    async def _resolve(self, request: UseToolRequest, key: str) -> tuple[ToolCall, CallableTool]:
        """The call and the tool. The call is read from the journal: the history may hold only a part of it."""
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        speaker = find_speaker(values.catalog, request.speaker)
        if isinstance(speaker, resources.Tool):
            question = values.with_secrets((await self._row(request.thread.question)).message)
            tool = await self._tools.of_manifest(speaker, values, self._begin_once(request, speaker.name, key))
            built_in = speaker.spec.type in resources.BUILT_IN_TYPES
            arguments = _as_arguments(question.content, _only_argument(tool.definition) if built_in else "input")
            return ToolCall(id="", name=speaker.name, arguments=arguments), tool
        if not isinstance(speaker, Agent):
            raise UnknownResource(f"{request.speaker} uses no tools")
        call = (await self._row(request.reply or "")).message.tool_calls[request.call]
        begin_once = self._begin_once(request, call.name, key)
        tools = {tool.definition.name: tool for tool in await self._tools.of_agent(speaker, values, begin_once)}
        if call.name not in tools:
            known = f"your tools: {', '.join(tools)}" if tools else "you have no tools"
            raise UnknownTool(f"there is no tool '{call.name}'; {known}")
        return call, tools[call.name]

    def _begin_once(self, request: UseToolRequest, name: str, key: str) -> BeginOnce:
        """Lets only one attempt use a tool: a row outside the conversation records that it has begun."""
        row_id = f"{key}/begun"

        async def begin_once() -> None:
            if await self._journal.find(row_id):
                raise OutcomeUnknown(f"{name} was begun by a worker that died; whether it was carried out is unknown")
            await self._journal.append_once(request.thread.head, Message(role="tool", name=name), row_id)

        return begin_once

    async def _row(self, row_id: str) -> Row:
        if row := await self._journal.find(row_id):
            return row
        raise JournalLost(f"the journal does not hold {row_id}")


def _reply(call: ToolCall, text: str, *, to_model: bool) -> Message:
    """A tool's result: the answer to a model's call, or, for a query that is put to the tool, its own message."""
    if to_model:
        return Message(role="tool", content=text, name=call.name, tool_call_id=call.id)
    return Message(role="assistant", content=text, name=call.name)


async def _use(tool: CallableTool, call: ToolCall) -> str:
    arguments = await _arguments(tool.definition, call.arguments)
    try:
        return await tool.use(arguments)
    except ToolFailed as failed:
        retryable = tool.retries or not failed.non_retryable
        raise ToolFailed(failed.message, retryable=retryable, retry_after=failed.next_retry_delay) from None


def _as_arguments(text: str, name: str) -> str:
    """A question's text as a tool's arguments: a JSON object as it is, any other text as the argument ``name``."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        value = None
    return text if isinstance(value, dict) else json.dumps({name: text})


def _only_argument(tool: ToolDefinition) -> str:
    """The name of a tool's argument if it has exactly one, else ``input``."""
    properties = tool.parameters.get("properties")
    (name,) = properties if isinstance(properties, dict) and len(properties) == 1 else ("input",)
    return name


async def _arguments(tool: ToolDefinition, text: str) -> JsonObject:
    """The arguments of a call, checked against the tool's schema, with its defaults; an empty text means none."""
    try:
        value: JsonValue = json.loads(repair_surrogates(json.dumps(json.loads(text or "{}"), ensure_ascii=False)))
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
