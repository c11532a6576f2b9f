"""Spans of runs and turns: what they say, and how they come to the worker, which exports them."""

from collections.abc import Awaitable, Callable
from datetime import datetime

from pydantic import JsonValue
from temporalio.exceptions import ActivityError, TimeoutError  # noqa: A004 - the SDK's name

from ...contracts.errors import Failure
from ...contracts.plan import AgentPlan, TeamPlan
from ...contracts.status import Status
from ...contracts.trace import OpenSpan, call_span_id
from ...contracts.turn import TurnResult
from ..state.run_state import RunState
from ..state.run_trace import CANCELED, RunSpan

OPERATIONS = {
    "ask_model": "chat",
    "select": "chat",
    "execute_agent": "invoke_agent",
    "use_tool": "execute_tool",
    "perform": "execute_tool",
}
"""The activities that report the call they make, and the operation that it is (OpenTelemetry: GenAI)."""


def end_trace(run: RunState, status: Status | None = None) -> None:
    """Reports all spans of a run that ends with that status, or is continued by another run."""
    if status and (span := run.trace.run_span):
        span.error, span.message = _error_of(status.stop_reason, status.failure)
        run.trace.end(span)
    run.trace.report()


async def in_team_span(
    run: RunState, team: TeamPlan, since: datetime | None, work: Callable[[], Awaitable[TurnResult]]
) -> TurnResult:
    """The result of a team's discussion, which is one span: an ``invoke_workflow``."""
    span = run.trace.new_span(f"invoke_workflow {team.name}", "team", team.id, since=since)
    span.attributes = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": team.name,
        "baton.strategy": team.strategy,
    }
    return await _in_span(run, span, work)


def agent_span(run: RunState, agent: AgentPlan, turn: int, open_: OpenSpan | None) -> RunSpan:
    """The span of an agent's turn: an ``invoke_agent``."""
    span = run.trace.new_span(f"invoke_agent {agent.name}", open_=open_)
    span.attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": agent.name,
        "gen_ai.agent.id": agent.speaker,
        "baton.turn": turn,
    }
    return span


async def in_agent_span(
    run: RunState, agent: AgentPlan, span: RunSpan, work: Callable[[], Awaitable[TurnResult]]
) -> TurnResult:
    """The result of an agent's turn, which is one span. A model that is asked without an agent has only its call."""
    return await (work() if agent.kind == "model" else _in_span(run, span, work))


def tool_span(run: RunState, name: str) -> RunSpan:
    """The span of a tool that asks an agent or a team, whose run is a part of it: an ``execute_tool``."""
    span = run.trace.new_span(f"execute_tool {name}")
    given: dict[str, JsonValue] = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    span.attributes = {**given, "gen_ai.tool.type": "function"}
    return span


def add_lost_call(run: RunState, activity: str, error: ActivityError, since: datetime) -> None:
    """Adds the span of a call whose last attempt has never ended, as its worker has died: nobody else reports it."""
    operation = OPERATIONS.get(activity)
    if operation and isinstance(error.cause, TimeoutError):
        span = run.trace.new_span(operation, since=since)
        span.id = call_span_id(f"{run.trace.run_id}/{error.activity_id}")
        span.attributes["gen_ai.operation.name"] = operation
        span.error, span.message = "timeout", str(error.cause)
        run.trace.end(span, run.trace.here)


async def _in_span(run: RunState, span: RunSpan, work: Callable[[], Awaitable[TurnResult]]) -> TurnResult:
    with run.trace.inside(span):
        result = await work()
        span.error, span.message = _error_of(result.stop_reason, result.failure)
        span.attributes["baton.stop_reason"] = result.stop_reason
    return result


def _error_of(reason: str | None, failure: Failure | None) -> tuple[str | None, str]:
    if failure:
        return failure.type, failure.message
    return (CANCELED, "") if reason == "canceled" else (None, "")
