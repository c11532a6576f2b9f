"""A turn of a member: its number, its place in the conversation, and where it is continued."""

from dataclasses import dataclass

from ...conversation.contracts.continuation import AgentState
from ...conversation.contracts.panel_requests import SpeakerBrief
from ...conversation.messages.turn import Thread


@dataclass(frozen=True)
class MemberTurn:
    """Turn ``number`` of at most ``of``, taken by the member that is called ``name``, at a place in the conversation.

    In a panel the member reads a ``brief`` instead of the conversation. With an ``index`` no other member speaks at the
    same time: a long run may continue as new in the middle of an agent's turn, which then goes on from ``state``.
    """

    name: str
    number: int
    of: int | None
    thread: Thread
    brief: SpeakerBrief | None = None
    index: int | None = None
    state: AgentState | None = None
