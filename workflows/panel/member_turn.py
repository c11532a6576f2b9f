"""How does somebody take a turn in a panel? On a brief, away from the conversation, which only the result joins."""

import asyncio

from temporalio import workflow

from ...conversation.contracts.inputs import TurnInput
from ...conversation.contracts.panel_requests import Brief, BriefRequest, PerformRequest
from ...conversation.contracts.plan import ActivityMember, AgentPlan, MemberPlan, TeamMember
from ...conversation.messages.message import TokenUsage
from ...conversation.messages.turn import Turn
from ..calls import effects
from ..calls.execute_activity import Failed, Interrupted
from ..discussion.agent_turn import AgentTurn
from ..discussion.discussion import Discussion


async def take(team: Discussion, speaker: MemberPlan, brief: Brief, name: str) -> Turn:
    """The turn of a speaker, who is told what the brief says and nothing else."""
    try:
        if isinstance(speaker, AgentPlan):
            return await AgentTurn(speaker, team.thread, team.stop, team.turn + 1, team.turns, brief).take()
        if isinstance(speaker, TeamMember):
            return await _team(team, speaker, brief, name)
        return await _function(team, speaker, brief, name)
    except (Interrupted, asyncio.CancelledError):
        return Turn(head=team.so_far.head, turns=0, stop_reason=team.stop.reason or "canceled")
    except Failed as failed:
        return Turn(head=team.so_far.head, turns=0, stop_reason="failed", failure=failed.failure)


async def _team(team: Discussion, speaker: TeamMember, brief: Brief, name: str) -> Turn:
    thread = await effects.brief(BriefRequest(thread=team.thread, brief=brief), name)
    given = TurnInput(team=speaker.name, namespace=speaker.namespace, thread=thread)
    place = f"round-{brief.round}/{brief.part if brief.seat is None else brief.seat + 1}"
    return await team.children.take(speaker.strategy, given, place, team.so_far.head)


async def _function(team: Discussion, speaker: ActivityMember, brief: Brief, name: str) -> Turn:
    request = PerformRequest(thread=team.thread, brief=brief, function=speaker.function, name=name)
    performed = await effects.perform(request)
    if performed.coerced and name not in team.warned:
        team.warned.add(name)
        workflow.logger.warning("panel %s: %s gave neither a text nor {text}: made one by str()", team.plan.name, name)
    usage = TokenUsage(tool_calls=1)
    return Turn(head=performed.head, messages=(performed.message,), usage=usage)
