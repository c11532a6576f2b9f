"""Where does a turn begin, and what comes out of it?"""

from typing import Literal

from ...resources.base import JsonModel
from ..failure import Failure
from .message import Head, Message, TokenUsage, last_spoken

StopReason = Literal[
    "completed", "terminated", "condition", "no_progress", "max_turns", "canceled", "timeout", "failed"
]


class Thread(JsonModel):
    """A place in a conversation under a pinned catalog. ``question`` is the id of the question's row."""

    catalog: str
    question: str
    head: Head


class TurnResult(JsonModel):
    """What a member, a team or an agent asked alone has said.

    ``messages`` are the latest of them, ``ended`` tells that an agent has ended its team, and ``failure`` is there
    exactly when ``stop_reason`` is ``failed``, ``timeout`` or an unwanted ``max_turns``. ``answer`` is the answer where
    it is not the last words: the final words of ``terminate``, or what a parallel team has said.
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

    @property
    def message(self) -> str:
        """The answer: the last words, if there is no other."""
        if self.answer is not None:
            return self.answer
        word = last_spoken(self.messages)
        return word.content if word else ""
