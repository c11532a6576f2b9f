"""Replies of people: the update ``reply``, and the check of a reply against its schema."""

from ...resources.base import JsonModel, JsonObject
from ..messages.turn import Thread
from ..text import MAX_MESSAGE, Text, byte_size
from .decisions import MAX_NAME, decision_id
from .panel_requests import SpeakerBrief


class ReplyRequest(JsonModel):
    """The update ``reply``: the ``text`` of a person, ``by`` whom, to the question with the id ``to``.

    Without ``to`` it is the only question that waits in the run. ``declines``: the person refuses to answer a server's
    question, perhaps with a text that says why.
    """

    text: str
    to: str | None = None
    by: str | None = None
    declines: bool = False

    @property
    def problem(self) -> str | None:
        """What makes it unacceptable for a history; None if nothing does."""
        if not (self.text.strip() or self.declines) or byte_size(self.text) > MAX_MESSAGE:
            return f"a reply needs a text of 1 to {MAX_MESSAGE:,} bytes"
        if self.by is not None and not 0 < byte_size(self.by) <= MAX_NAME:
            return f"the name of who replies needs 1 to {MAX_NAME} bytes"
        return None


class AskPersonRequest(JsonModel):
    """``ask_person``: what the ``member`` of a ``team`` (an id), a person, gets to read in turn ``turn``."""

    thread: Thread
    team: str
    member: str
    turn: int
    brief: SpeakerBrief | None = None

    def decision_id(self, run: str) -> str:
        """The id under which the run with the id ``run`` waits for the reply."""
        return decision_id(run, self.thread.head.id, self.member, str(self.turn))


class AskPersonResult(JsonModel):
    """The result of ``ask_person``: what the person is asked, and what was said last."""

    question: Text


class CheckReplyRequest(JsonModel):
    """``check_reply``: does a reply fit the schema of a ``member`` of a ``team`` (an id), or the ``asked`` one?"""

    thread: Thread
    text: Text
    team: str | None = None
    member: str | None = None
    asked: JsonObject | None = None


class CheckReplyResult(JsonModel):
    """The result of ``check_reply``: what is wrong with the reply; None if it fits."""

    wrong: str | None = None
