"""Choosing the next speaker of a selector's team. Where only one member may speak, no model is asked."""

from temporalio import workflow

from ...conversation.contracts.plan import SelectorPlan
from ...conversation.contracts.requests import SelectRequest, SelectResult
from ..calls import effects
from ..state.constants import SELECTOR_READS_MESSAGES
from .discussion import Discussion


async def select_speaker(team: Discussion) -> int | None:
    """The index of who speaks next; None where the discussion is over."""
    candidates = _candidates(team)
    may_end = team.plan.chooser and team.plan.chooser.can_end and team.turns
    if not candidates or (len(candidates) == 1 and not may_end):
        return candidates[0] if candidates else None
    await team.attempt(_read_inbox(team))
    if not team.can_continue():
        return None
    selected = await team.attempt(_select(team, candidates))
    if selected is None:
        return None
    team.result.add_usage(selected.usage)
    if selected.said:
        await team.append([selected.said])
        team.result.add_message(selected.said)
    if selected.how == "terminated":
        team.result.terminate()
    return selected.seat


def _candidates(team: Discussion) -> list[int]:
    """Who may speak now: all, or those to whom an edge leads, without who spoke last if there is another."""
    indexes = [*range(len(team.members))]
    if team.plan.edges and team.last_member is not None:
        indexes = list(dict.fromkeys(edge.to for edge in team.plan.edges if edge.from_ == team.last_member))
    return [index for index in indexes if index != team.last_member] or indexes


async def _read_inbox(team: Discussion) -> None:
    """Waits while the run is paused, and adds what people said to the conversation that the selector reads."""
    inbox = team.run.inbox
    if (inbox.pause or not inbox.is_empty) and workflow.patched(SELECTOR_READS_MESSAGES):
        await team.run.ready()
        if messages := inbox.drain():
            await team.append(messages)


async def _select(team: Discussion, candidates: list[int]) -> SelectResult:
    request = SelectRequest(thread=team.thread, team=team.plan.id, candidates=tuple(candidates), turn=team.turns + 1)
    chooser = team.plan.chooser or SelectorPlan(models=())
    return await effects.select(team.run, request, chooser.models, chooser.model_timeout)
