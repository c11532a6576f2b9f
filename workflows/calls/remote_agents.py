"""The activities by which workflows let agents be executed elsewhere, and cancel what these have begun."""

import asyncio
import contextlib
from datetime import timedelta

from temporalio import workflow

from ...conversation.contracts.plan import AgentPlan
from ...conversation.contracts.remote_requests import CancelAgentRequest, CancelAgentResult
from ...conversation.contracts.requests import AskModelRequest, AskModelResult
from ..state.cancellation import uncancelled
from ..state.constants import CANCEL_AGENT
from ..state.errors import ActivityFailed, ActivityInterrupted
from ..state.run_state import RunState
from . import effects
from .fallback_chain import attempts
from .options import CALL, CANCEL, ActivityOptions


async def ask_agent(run: RunState, request: AskModelRequest, agent: AgentPlan) -> AskModelResult:
    """Asks an agent for its next message: by its model, or where it is executed."""
    if agent.engine:
        return await _execute_agent(run, request, agent)
    return await effects.ask_model(run, request, agent.models, agent.model_timeout)


async def _execute_agent(run: RunState, request: AskModelRequest, agent: AgentPlan) -> AskModelResult:
    """Lets an agent be executed elsewhere, for its ``timeout`` at most; that call itself gives up first."""
    place = f"round {request.brief.round}" if request.brief else f"turn {request.turn}"
    summary = f"{place} · {request.speaker.rpartition('/')[2]} · {agent.engine}"
    once = timedelta(seconds=(agent.timeout or 0) + 10)
    options: ActivityOptions = {
        **attempts(10),
        "start_to_close_timeout": once,
        "schedule_to_close_timeout": 6 * max(CALL["start_to_close_timeout"], once),
    }
    queue = run.task_queues.models
    try:
        return await effects.execute_activity(run, "execute_agent", request, AskModelResult, options, summary, queue)
    except ActivityInterrupted as interrupted:
        if interrupted.activity and workflow.patched(CANCEL_AGENT):
            canceling = _cancel_agent(run, request, interrupted.activity)
            await uncancelled(asyncio.create_task(canceling))
        raise


async def _cancel_agent(run: RunState, request: AskModelRequest, activity: str) -> None:
    """Cancels what a canceled call has left open at its server: the worker that would have done it may be dead."""
    summary = f"cancel what {request.speaker.rpartition('/')[2]} has begun"
    asked = CancelAgentRequest(thread=request.thread, speaker=request.speaker, activity=activity)
    queue = run.task_queues.models
    with contextlib.suppress(ActivityFailed, ActivityInterrupted):  # nobody waits for the answer any more
        await effects.execute_activity(run, "cancel_agent", asked, CancelAgentResult, CANCEL, summary, queue)
