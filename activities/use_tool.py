"""The activity ``use_tool``: uses one tool, and writes the result to the journal before it returns it."""

from temporalio import activity

from ..conversation.contracts.requests import UseToolRequest, UseToolResult
from ..conversation.messages.message import Message, ToolCall
from .context.untrusted_content import new_fence
from .journal.journal import Journal
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key
from .tool.tool import CallableTool
from .tool.tools import Tools
from .tool_calls import ToolCalls, use


class UseTool:
    """The activity ``use_tool``."""

    def __init__(self, journal: Journal, tools: Tools, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets
        self._calls = ToolCalls(journal, tools, secrets)

    @activity.defn(name="use_tool")
    async def use_tool(self, request: UseToolRequest) -> UseToolResult:
        """Returns the result that the journal holds for this activity; uses the tool only if there is none."""
        key = idempotency_key()
        call, tool = await self._calls.resolve(request, key)
        row = await self._journal.find(f"{key}/reply")
        if row is None:
            answer = request.answer
            if answer is None:
                await self._calls.charge(request, key)
                answer = await use(call, tool)
            message = _reply(call, tool, await tool.finish(answer), to_model=request.reply is not None)
            message = message.model_copy(update={"decision": request.decision}) if request.decision else message
            clean = self._secrets.redact_message(message)
            row = await self._journal.append_once(request.thread.head, clean, f"{key}/reply")
        shown = row.message.truncated().model_copy(update={"fence": None})  # which only the model needs
        return UseToolResult(message=shown, head=row.head, ends=tool.ends)


def _reply(call: ToolCall, tool: CallableTool, text: str, *, to_model: bool) -> Message:
    """A tool's result: the answer to a model's call, or, for a query that is put to the tool, its own message."""
    if to_model:
        fence = new_fence() if tool.untrusted else None
        return Message(role="tool", content=text, name=call.name, tool_call_id=call.id, fence=fence)
    return Message(role="assistant", content=text, name=call.name)
