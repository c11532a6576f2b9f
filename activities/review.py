"""The activity ``review``: checks a tool call before it is made, and whether it needs a person's yes."""

import json

from temporalio import activity

from ..conversation.contracts.decisions import MAX_ARGUMENTS
from ..conversation.contracts.tool_requests import ReviewResult, UseToolRequest
from ..conversation.text import truncate
from .journal.journal import Journal
from .process.secrets import SecretStore
from .runtime.ids import idempotency_key
from .tool.tools import Tools
from .tool_calls import ToolCalls, checked_arguments


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
