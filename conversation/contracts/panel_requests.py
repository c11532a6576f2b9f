"""Requests and results of the activities for panels: `brief`, `perform` and `conclude`."""

from typing import Literal

from ...resources.base import JsonModel, JsonObject
from ..messages.message import Head, Message
from ..messages.turn import Thread

SpeakerRole = Literal["member", "referee", "moderator", "judge", "synthesizer"]


class SpeakerBrief(JsonModel):
    """A speaker's place in a panel.

    From it the worker writes the prompt that the speaker reads in place of the conversation.
    ``team`` is the id of the panel's manifest, ``part`` the role of the speaker, ``seat`` the index of a member. The
    panel's own messages begin after depth ``begun``. ``hidden`` keeps the speaker's words from those who watch the run.
    """

    team: str
    part: SpeakerRole = "member"
    seat: int | None = None
    round: int
    begun: int
    session: JsonObject = {}
    hidden: bool = False


class BriefRequest(JsonModel):
    """``brief``: write the prompt of a team that is a member of a panel, as the question of a new conversation."""

    thread: Thread
    brief: SpeakerBrief


class PerformRequest(JsonModel):
    """``perform``: call a registered function as a member of a panel."""

    thread: Thread
    brief: SpeakerBrief
    function: str
    name: str


class PerformResult(JsonModel):
    """The result of ``perform``: the message, the head after it, and whether the value was converted to text."""

    message: Message
    head: Head
    coerced: bool = False


class ConcludeRequest(JsonModel):
    """``conclude``: write the result of a panel without a synthesizer, as JSON."""

    thread: Thread
    brief: SpeakerBrief
