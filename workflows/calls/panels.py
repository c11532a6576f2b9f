"""The activities of panels that workflows call."""

from ...conversation.contracts.panel_requests import BriefRequest, ConcludeRequest, PerformRequest, PerformResult
from ...conversation.contracts.requests import AskModelResult
from ...conversation.messages.turn import Thread
from ..state.run_state import RunState
from .effects import execute_activity
from .options import CALL, JOURNAL


async def brief(run: RunState, request: BriefRequest, member: str) -> Thread:
    """Begins a conversation of its own for a team in a panel, with that team's briefing as the question."""
    summary = f"round {request.brief.round} · what {member} is told"
    return await execute_activity(run, "brief", request, Thread, JOURNAL, summary)


async def perform(run: RunState, request: PerformRequest) -> PerformResult:
    """Calls a registered function that is a member of a panel."""
    summary = f"round {request.brief.round} · {request.name} · {request.function}"
    return await execute_activity(run, "perform", request, PerformResult, CALL, summary, run.task_queues.tools)


async def conclude(run: RunState, request: ConcludeRequest) -> AskModelResult:
    """Writes the result of a panel that has no synthesizer."""
    summary = f"after {request.brief.round} rounds"
    return await execute_activity(run, "conclude", request, AskModelResult, JOURNAL, summary)
