"""The activities that read and write the conversation that a query goes on with."""

from ...conversation.contracts.memory_requests import RecallRequest, RecallResult, RememberRequest, RememberResult
from ..state.run_state import RunState
from .effects import execute_activity
from .options import JOURNAL, MEMORY


async def recall(run: RunState, request: RecallRequest) -> RecallResult:
    """Puts a query's question after what a Memory's service has of its conversation."""
    return await execute_activity(run, "recall", request, RecallResult, MEMORY, "what was said before")


async def remember(run: RunState, request: RememberRequest) -> RememberResult:
    """Adds to a conversation what a query has added."""
    options = MEMORY if request.conversation.remote else JOURNAL
    return await execute_activity(run, "remember", request, RememberResult, options, "what was said now")
