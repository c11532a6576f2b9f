"""What is asked of the activities for a panel, and what do they reply? Whoever speaks there does so on a brief."""

from typing import Literal

from ...resources.base import JsonObject, Plain
from ..messages.message import Head, Message
from ..messages.turn import Thread

PanelRole = Literal["member", "referee", "moderator", "judge", "synthesizer"]


class SpeakerBrief(Plain):
    """What a speaker of a panel is told of, in place of the conversation: the panel of ``team`` in a round.

    It speaks on a ``seat``, or in another ``part``. The panel's own messages begin after depth ``begun``.
    """

    team: str
    part: PanelRole = "member"
    seat: int | None = None
    round: int
    begun: int
    session: JsonObject = {}
    hidden: bool = False


class BriefRequest(Plain):
    """``brief``: put down what a team is told in a panel, as the question of a conversation of its own."""

    thread: Thread
    brief: SpeakerBrief


class PerformRequest(Plain):
    """``perform``: let a registered function speak in a panel."""

    thread: Thread
    brief: SpeakerBrief
    function: str
    name: str


class PerformResult(Plain):
    """The reply to ``perform``: the message, the head after it, and whether it had to be made a text."""

    message: Message
    head: Head
    coerced: bool = False


class ConcludeRequest(Plain):
    """``conclude``: put down what a panel has come to, as it is."""

    thread: Thread
    brief: SpeakerBrief
