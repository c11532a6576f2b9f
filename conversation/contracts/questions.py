"""Questions to people that come from elsewhere, in the middle of a call: from a server of tools or of agents."""

from ...resources.base import JsonModel, JsonObject
from ..messages.person_decision import PersonDecision
from ..text import Text


class QuestionsPlan(JsonModel):
    """A ``server`` (an id) may ask a person, who has ``timeout`` seconds to answer, or all the time.

    Without an answer in time the call fails, or goes on without one if it ``skips``.
    """

    server: str
    timeout: float | None = None
    skips: bool = False


class Question(JsonModel):
    """What a server asks: the ``id`` under which the run waits for the answer, and what a person gets to read.

    The answer has to fit ``reply_schema``, if there is one. ``record`` is the idempotency key of the call that notes
    in the journal what the server needs to go on; None if it needs nothing but the conversation.
    """

    id: str
    text: Text
    reply_schema: JsonObject | None = None
    record: str | None = None


class Answer(JsonModel):
    """What became of a question: a reply, a refusal to reply, or nothing in time. ``number`` counts those of one call.

    ``record`` is that of the question.
    """

    record: str
    number: int
    decision: PersonDecision
