"""Spans of runs and turns: their names and attributes, and how they are reported to the worker."""

from datetime import datetime

from temporalio.exceptions import ActivityError, TimeoutError  # noqa: A004 - the SDK's name

from ...contracts.plan import AgentPlan, TeamPlan
from ...contracts.status import Status
from ...contracts.trace import OpenSpan, call_span_id
from ..state.run_state import RunState
from ..state.run_trace import RunSpan

OPERATIONS = {
    "ask_model": "chat",
    "select": "chat",
    "execute_agent": "invoke_agent",
    "use_tool": "execute_tool",
    "perform": "execute_tool",
}
"""The activities that report spans of their calls, and the operation of the call (OpenTelemetry: GenAI)."""


def end_trace(run: RunState, status: Status | None = None) -> None:
    """Reports all spans of a run that ends with that status, or continues as new."""
    if status and (span := run.trace.run_span):
        span.finish(status.stop_reason, status.failure)
        run.trace.end(span)
    run.trace.report()


def team_span(run: RunState, team: TeamPlan, since: datetime | None) -> RunSpan:
    """The span of a team's discussion: an ``invoke_workflow``."""
    span = run.trace.new_span(f"invoke_workflow {team.name}", "team", team.id, since=since)
    span.attributes = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": team.name,
        "baton.strategy": team.strategy,
    }
    return span


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


def tool_span(run: RunState, name: str) -> RunSpan:
    """The span of a tool that delegates to an agent or a team, with its child run below: an ``execute_tool``."""
    span = run.trace.new_span(f"execute_tool {name}")
    span.attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
    }
    return span


def add_lost_call(run: RunState, activity: str, error: ActivityError, since: datetime) -> None:
    """Adds the span of a call whose last attempt never ended because its worker crashed: nothing else reports it."""
    operation = OPERATIONS.get(activity)
    if operation and isinstance(error.cause, TimeoutError):
        span = run.trace.new_span(operation, since=since)
        span.id = call_span_id(f"{run.trace.run_id}/{error.activity_id}")
        span.attributes["gen_ai.operation.name"] = operation
        span.error = "timeout"
        span.message = str(error.cause)
        run.trace.end(span, run.trace.here)
