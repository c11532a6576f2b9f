"""Ends a discussion that has reached ``maxTurns``."""

from ...conversation.messages.message import Message
from .discussion import Discussion


async def reach_max_turns(team: Discussion) -> None:
    """Ends it as its plan says; in ARK's dialect a normal end is told by a system message (ARK: today's dialect)."""
    if team.plan.dialect == "ark" and team.plan.on_max_turns == "complete":
        text = f"Team conversation reached maximum turns limit ({team.turns})"
        message = Message(role="system", content=text)
        await team.append([message])
        team.result.add_message(message)
    team.result.reach_max_turns()
