"""What is asked of the activities for a panel, and what do they reply? Whoever speaks there does so on a brief."""

from typing import Literal

from ...resources.base import JsonModel, JsonObject
from ..messages.message import Head, Message
from ..messages.turn import Thread

SpeakerRole = Literal["member", "referee", "moderator", "judge", "synthesizer"]


class SpeakerBrief(JsonModel):
    """What a speaker of a panel is told of, in place of the conversation: the panel of ``team`` in a round.

    It speaks on a ``seat``, or in another ``part``. The panel's own messages begin after depth ``begun``.
    """

    team: str
    part: SpeakerRole = "member"
    seat: int | None = None
    round: int
    begun: int
    session: JsonObject = {}
    hidden: bool = False


class BriefRequest(JsonModel):
    """``brief``: put down what a team is told in a panel, as the question of a conversation of its own."""

    thread: Thread
    brief: SpeakerBrief


class PerformRequest(JsonModel):
    """``perform``: let a registered function speak in a panel."""

    thread: Thread
    brief: SpeakerBrief
    function: str
    name: str


class PerformResult(JsonModel):
    """The reply to ``perform``: the message, the head after it, and whether it had to be made a text."""

    message: Message
    head: Head
    coerced: bool = False


class ConcludeRequest(JsonModel):
    """``conclude``: put down what a panel has come to, as it is."""

    thread: Thread
    brief: SpeakerBrief
