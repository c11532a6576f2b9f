"""Running the turn of one member, of any kind: an agent or model, a team as a child workflow, a function."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import workflow

from ...conversation.contracts.inputs import TurnInput
from ...conversation.contracts.panel_requests import BriefRequest, PerformRequest
from ...conversation.contracts.plan import ActivityMember, AgentPlan, MemberPlan, TeamMember
from ...conversation.messages.message import Message, TokenUsage
from ...conversation.messages.turn import TurnResult
from ..calls import effects
from ..calls.child_workflows import ChildWorkflows
from ..state.cancellation import uncancelled
from ..state.errors import ActivityFailed, ActivityInterrupted
from ..state.run_state import RunState
from .agent_turn import AgentTurn
from .member_turn import MemberTurn


class MemberRunner:
    """Runs the turns of a team's members.

    ``agent_turn`` is the turn under way that a continued run would go on with, and the index of its member. ``warned``
    are the functions of which the log already says that they return no text.
    """

    def __init__(self, team: str, run: RunState, children: ChildWorkflows) -> None:
        self._team, self._run, self._children = team, run, children
        self.agent_turn: tuple[int, AgentTurn] | None = None
        self.warned = set[str]()

    async def run_member(self, member: MemberPlan, turn: MemberTurn) -> TurnResult:
        """What the member has said. A turn that failed or was stopped before it began has said nothing."""
        try:
            return await _RUN[member.kind](self, member, turn)
        except (ActivityInterrupted, asyncio.CancelledError):
            return TurnResult(head=turn.thread.head, turns=0, stop_reason=self._run.stop.reason or "canceled")
        except ActivityFailed as failed:
            return TurnResult(head=turn.thread.head, turns=0, stop_reason="failed", failure=failed.failure)

    async def _run_agent(self, agent: AgentPlan, turn: MemberTurn) -> TurnResult:
        running = AgentTurn(agent, self._run, turn)
        if turn.index is not None:
            self.agent_turn = turn.index, running
        result = await running.execute()
        if turn.index is not None:
            self.agent_turn = None
        return result

    async def _run_team(self, team: TeamMember, turn: MemberTurn) -> TurnResult:
        thread, place = turn.thread, f"turn-{turn.number}"
        if brief := turn.brief:
            thread = await effects.brief(self._run, BriefRequest(thread=thread, brief=brief), turn.name)
            place = f"round-{brief.round}/{brief.part if brief.seat is None else brief.seat + 1}"
        given = TurnInput(team=team.name, namespace=team.namespace, thread=thread)
        result = await self._children.execute(team.strategy, given, place, turn.thread.head)
        if turn.brief or team.joins == "conversation":
            return result
        return await self._joined(team, result, turn)

    async def _joined(self, team: TeamMember, result: TurnResult, turn: MemberTurn) -> TurnResult:
        """The turn of a panel, of which only the result joins the conversation, or nothing."""
        head = turn.thread.head
        if result.failure:
            return result.model_copy(update={"head": head})
        if team.joins == "nothing" or not result.message:
            return result.model_copy(update={"head": head, "messages": ()})
        message = Message(role="assistant", content=result.message, name=team.name)
        task = asyncio.create_task(effects.append(self._run, head, (message,)))
        return result.model_copy(update={"head": await uncancelled(task), "messages": (message,)})

    async def _run_function(self, member: ActivityMember, turn: MemberTurn) -> TurnResult:
        assert turn.brief, "the loader accepts functions as members of panels only"
        request = PerformRequest(thread=turn.thread, brief=turn.brief, function=member.function, name=turn.name)
        performed = await effects.perform(self._run, request)
        if performed.coerced and turn.name not in self.warned:
            self.warned.add(turn.name)
            text = "panel %s: %s gave neither a text nor {text}: made one by str()"
            workflow.logger.warning(text, self._team, turn.name)
        usage = TokenUsage(tool_calls=1)
        return TurnResult(head=performed.head, messages=(performed.message,), usage=usage)


_RUN: dict[str, Callable[[MemberRunner, Any, MemberTurn], Awaitable[TurnResult]]] = {
    "agent": MemberRunner._run_agent,
    "model": MemberRunner._run_agent,
    "team": MemberRunner._run_team,
    "activity": MemberRunner._run_function,
}
"""How each kind of member takes its turn."""
