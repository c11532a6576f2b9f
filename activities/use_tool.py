"""``use_tool``: one tool call of a model is carried out, and its result kept before anybody is told of it."""

import json

from jsonschema import Draft202012Validator
from pydantic import JsonValue
from temporalio import activity

from activities.call import call_id
from activities.heartbeat import heartbeats
from activities.journal import Journal
from activities.tool import Tool, tools_of
from conversation.errors import BadArguments, JournalLost, ToolFailed, UnknownResource, UnknownTool
from conversation.message import Message, ToolCall
from conversation.requests import Used, UseRequest
from resources.agent import Agent
from resources.base import JsonObject


class UseTool:
    """The activity ``use_tool``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="use_tool")
    async def use_tool(self, request: UseRequest) -> Used:
        """Returns the result that stands in the journal, and uses the tool only if none does."""
        row_id = f"{call_id()}/reply"
        async with heartbeats():
            call, tool = await self._call(request)
            row = await self._journal.find(row_id)
            if row is None:
                result = await _use(tool, call)
                message = Message(role="tool", content=result, name=call.name, tool_call_id=call.id)
                row = await self._journal.answer(request.thread.head, message, row_id)
        return Used(message=row.message.cut(), head=row.head, ends=tool.ends)

    async def _call(self, request: UseRequest) -> tuple[ToolCall, Tool]:
        """What the model has called for; the journal holds all of it, the history perhaps not."""
        catalog = await self._journal.catalog(request.thread.catalog)
        agent = catalog.get("Agent", *request.agent.split("/"))
        if not isinstance(agent, Agent):
            raise UnknownResource(f"the run's catalog has no Agent {request.agent}")
        reply = await self._journal.find(request.reply)
        if reply is None:
            raise JournalLost(f"the journal does not hold the reply {request.reply}")
        call = reply.message.tool_calls[request.call]
        tools = {tool.name: tool for tool in tools_of(agent)}
        if call.name not in tools:
            known = f"your tools: {', '.join(tools)}" if tools else "you have no tools"
            raise UnknownTool(f"there is no tool '{call.name}'; {known}")
        return call, tools[call.name]


async def _use(tool: Tool, call: ToolCall) -> str:
    arguments = _arguments(tool, call.arguments)
    try:
        return await tool.use(arguments)
    except ToolFailed as error:
        raise ToolFailed(error.message, retryable=tool.retries) from None


def _arguments(tool: Tool, text: str) -> JsonObject:
    """A call's arguments, checked against the tool's schema; none at all count as an empty object."""
    try:
        value: JsonValue = json.loads(text or "{}")
    except ValueError as error:
        raise BadArguments(f"the arguments of {tool.name} are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments of {tool.name} must be a JSON object")
    wrong = [
        f"{error.json_path}: {error.message}" for error in Draft202012Validator(tool.parameters).iter_errors(value)
    ]
    if wrong:
        raise BadArguments(f"the arguments of {tool.name} don't fit its schema: {'; '.join(sorted(wrong))}")
    return value
