"""The activity ``use_tool``: uses one tool, and writes the result to the journal before it returns it."""

from temporalio import activity

from ..conversation.contracts.tool_requests import UseToolRequest, UseToolResult
from ..conversation.messages.message import Message, ToolCall
from .context.untrusted_content import new_fence
from .journal.journal import Journal
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key
from .tool.tool import AsksPerson, CallableTool
from .tool.tool_span import found_use, tool_span
from .tool.tools import Tools
from .tool_calls import ToolCalls, use
from .tool_questions import ToolQuestions


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
