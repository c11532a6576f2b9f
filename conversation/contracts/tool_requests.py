"""Requests and results of the activities of a tool call."""

from ...resources.base import JsonModel
from ..messages.message import Head, Message
from ..messages.person_decision import PersonDecision
from ..messages.turn import Thread
from ..text import Text
from .decisions import decision_id
from .questions import Answer, Question


class UseToolRequest(JsonModel):
    """``use_tool``: execute one tool call, number ``call`` of the message with the id ``reply`` in the journal.

    ``speaker`` is the id of the Agent that calls, or of a Tool that is a query's target (then there is no ``reply``).
    ``answer`` is what the agent or the team that the tool asks has answered. ``delegate`` takes the same: begin the
    conversation in which they answer. ``decision`` is the one that allows the call, where one is needed. ``review``
    takes the same, to find out whether it is. ``answered`` is the answer to what the tool has asked before.
    """

    thread: Thread
    speaker: str
    reply: str | None = None
    call: int = 0
    answer: Text | None = None
    decision: PersonDecision | None = None
    answered: Answer | None = None

    @property
    def decision_id(self) -> str:
        """The id under which the call waits for a decision."""
        return decision_id(self.reply or self.thread.question, str(self.call))

    def question_id(self, number: int) -> str:
        """The id under which the call waits for the answer to the question with that number, from 1."""
        return decision_id(self.reply or self.thread.question, str(self.call), f"question-{number}")


class UseToolResult(JsonModel):
    """The result of ``use_tool``: the tool's message, the head after it, and whether the tool ends the turn.

    With a ``question`` there is no message yet: the call goes on with the answer.
    """

    message: Message
    head: Head
    ends: bool = False
    question: Question | None = None


class ReviewResult(JsonModel):
    """The result of ``review``: whether the call needs a person's yes, and its arguments as JSON text to be shown."""

    needed: bool
    arguments: Text = "{}"
