"""A tool call of a run: finds the call and its tool, checks the arguments, and uses the tool."""

import json
from functools import partial

from ..conversation.contracts.tool_requests import UseToolRequest
from ..conversation.errors import BadArguments, JournalLost, NotApproved, ToolFailed, UnknownResource, UnknownTool
from ..conversation.messages.message import ToolCall
from ..conversation.text import parse_json, repair_surrogates
from ..resources import tool as resources
from ..resources.agent import Agent
from ..resources.base import JsonObject
from .context.call_record import CallRecord
from .context.metering import Meter
from .context.schema_errors import schema_errors
from .context.value_resolver import ValueResolver
from .journal.accounts import Amount
from .journal.journal import Journal
from .journal.row import Row
from .panel.default_agents import find_speaker
from .process.secrets import SecretStore
from .runtime.call_spans import note_content
from .tool.tool import BeginOnce, CallableTool, ToolDefinition
from .tool.tools import Tools
from .tool_questions import ToolQuestions


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
