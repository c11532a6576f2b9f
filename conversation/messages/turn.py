"""The start and the result of a turn: `Thread` and `TurnResult`."""

from typing import Literal

from ...resources.base import JsonModel
from ..failure import Failure
from .message import Head, Message, TokenUsage, last_spoken

StopReason = Literal[
    "completed", "terminated", "condition", "no_progress", "max_turns", "canceled", "timeout", "failed"
]


class Thread(JsonModel):
    """A place in a conversation, and the id of the pinned catalog. ``question`` is the id of the question's row."""

    catalog: str
    question: str
    head: Head


class TurnResult(JsonModel):
    """The result of a turn of a member, or of a whole team or agent.

    ``messages`` are the latest messages. ``ended`` tells that an agent has ended its team. ``failure`` is set exactly
    when ``stop_reason`` is ``failed``, ``timeout``, or ``max_turns`` with ``onMaxTurns: fail``. ``answer`` is set if
    the answer is not the last message: after ``terminate``, or from a parallel team. ``unread`` are messages of people
    that came too late for a child workflow: its parent takes them back.
    """

    head: Head
    messages: tuple[Message, ...] = ()
    turns: int = 1
    ended: bool = False
    stop_reason: StopReason = "completed"
    note: str | None = None
    failure: Failure | None = None
    usage: TokenUsage = TokenUsage()
    answer: str | None = None
    unread: tuple[Message, ...] = ()

    @property
    def message(self) -> str:
        """The answer; without an explicit one, the last text of an assistant."""
        if self.answer is not None:
            return self.answer
        word = last_spoken(self.messages)
        return word.content if word else ""
