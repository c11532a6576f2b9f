"""The activities of a person's turn that workflows call."""

from ...conversation.contracts.replies import AskPersonRequest, AskPersonResult, CheckReplyRequest, CheckReplyResult
from ..state.run_state import RunState
from .effects import execute_activity
from .options import JOURNAL


async def ask_person(run: RunState, request: AskPersonRequest) -> AskPersonResult:
    """What a member that is a person gets to read."""
    place = f"round {request.brief.round}" if request.brief else f"turn {request.turn}"
    summary = f"{place} · {request.member} is asked"
    return await execute_activity(run, "ask_person", request, AskPersonResult, JOURNAL, summary)


async def check_reply(run: RunState, request: CheckReplyRequest) -> CheckReplyResult:
    """What is wrong with a person's reply."""
    return await execute_activity(run, "check_reply", request, CheckReplyResult, JOURNAL, "does the reply fit?")
