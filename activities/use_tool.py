"""``use_tool``: one tool call is carried out, and its result kept before anybody is told of it."""

import json

from pydantic import JsonValue
from temporalio import activity

from ..conversation.contracts.requests import Used, UseRequest
from ..conversation.errors import BadArguments, JournalLost, OutcomeUnknown, ToolFailed, UnknownResource, UnknownTool
from ..conversation.messages.message import Message, ToolCall, whole
from ..resources import tool as resources
from ..resources.agent import Agent
from ..resources.base import JsonObject
from .context.schema_errors import misfits
from .context.value_resolver import Values
from .journal import Journal
from .journal.row import Row
from .panel.default_agents import speaker_of
from .process.secrets import Vault
from .runtime.heartbeat import Pulse
from .runtime.ids import call_id
from .runtime.single_flight import InFlight
from .tool.tools import Once, Tool, Tools


class UseTool:
    """The activity ``use_tool``."""

    def __init__(self, journal: Journal, tools: Tools, vault: Vault, calls: InFlight) -> None:
        self._journal, self._tools, self._vault, self._calls = journal, tools, vault, calls

    @activity.defn(name="use_tool")
    async def use_tool(self, request: UseRequest) -> Used:
        """Returns the result that stands in the journal, and uses the tool only if none does."""

        async def used(_pulse: Pulse) -> Used:
            return await self._used(request, f"{call_id()}/reply")

        return await self._calls.once(used)

    async def _used(self, request: UseRequest, row_id: str) -> Used:
        call, tool = await self._call(request)
        row = await self._journal.find(row_id)
        if row is None:
            said = _says(tool, await _use(tool, call), None if request.reply is None else call.id)
            row = await self._journal.answer(request.thread.head, self._vault.redact_message(said), row_id)
        return Used(message=row.message.cut(), head=row.head, ends=tool.ends)

    async def _call(self, request: UseRequest) -> tuple[ToolCall, Tool]:
        """What is to be done; the journal holds all of a model's call, the history perhaps not."""
        catalog = await self._journal.catalog(request.thread.catalog)
        values = await Values.of(self._journal, catalog, self._vault)
        speaker = speaker_of(catalog, request.speaker)
        if isinstance(speaker, resources.Tool):
            asked = values.whole((await self._said(request.thread.question)).message)
            call = ToolCall(id="", name=speaker.name, arguments=_as_arguments(asked.content))
            return call, self._tools.by(speaker, values, self._once(request, speaker.name))
        if not isinstance(speaker, Agent):
            raise UnknownResource(f"{request.speaker} uses no tools")
        call = (await self._said(request.reply or "")).message.tool_calls[request.call]
        once = self._once(request, call.name)
        tools = {tool.name: tool for tool in self._tools.of(speaker, values, once)}
        if call.name not in tools:
            known = f"your tools: {', '.join(tools)}" if tools else "you have no tools"
            raise UnknownTool(f"there is no tool '{call.name}'; {known}")
        return call, tools[call.name]

    def _once(self, request: UseRequest, name: str) -> Once:
        """Lets a call be made by one attempt alone: a row beside the conversation says that it was begun."""
        row_id = f"{call_id()}/begun"

        async def once() -> None:
            if await self._journal.find(row_id):
                raise OutcomeUnknown(f"{name} was begun by a worker that died; whether it was carried out is unknown")
            await self._journal.answer(request.thread.head, Message(role="tool", name=name), row_id)

        return once

    async def _said(self, row_id: str) -> Row:
        if row := await self._journal.find(row_id):
            return row
        raise JournalLost(f"the journal does not hold {row_id}")


def _says(tool: Tool, text: str, answered: str | None) -> Message:
    """A tool's answer to a model's call; to a question that was put to the tool itself, it is the tool that speaks."""
    if answered is None:
        return Message(role="assistant", content=text, name=tool.name)
    return Message(role="tool", content=text, name=tool.name, tool_call_id=answered)


async def _use(tool: Tool, call: ToolCall) -> str:
    arguments = _arguments(tool, call.arguments)
    try:
        return await tool.use(arguments)
    except ToolFailed as failed:
        retryable = tool.retries or not failed.non_retryable
        raise ToolFailed(failed.message, retryable=retryable, retry_after=failed.next_retry_delay) from None


def _as_arguments(text: str) -> str:
    """A question's text as a tool's arguments: a JSON object is one, any other text is its ``input``."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        value = None
    return text if isinstance(value, dict) else json.dumps({"input": text})


def _arguments(tool: Tool, text: str) -> JsonObject:
    """A call's arguments, checked against the tool's schema; none at all count as an empty object."""
    try:
        value: JsonValue = json.loads(whole(json.dumps(json.loads(text or "{}"), ensure_ascii=False)))
    except ValueError as error:
        raise BadArguments(f"the arguments of {tool.name} are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments of {tool.name} must be a JSON object")
    if wrong := misfits(value, tool.parameters):
        raise BadArguments(f"the arguments of {tool.name} don't fit its schema: {'; '.join(wrong)}")
    return value | {name: each for name, each in _defaults(tool.parameters).items() if name not in value}


def _defaults(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    given = properties.items() if isinstance(properties, dict) else ()
    return {name: each["default"] for name, each in given if isinstance(each, dict) and "default" in each}
