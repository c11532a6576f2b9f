"""The heartbeats of activities: what they say, and how often one may be missed."""

from ...resources.base import JsonModel
from ..text import Text

MISSED_HEARTBEATS = 20
"""Extra attempts of a model call: in them only a missed heartbeat is retried, and any other failure is final."""


class LiveText(JsonModel):
    """The heartbeat of a model's or an agent's call: the last part of the text so far, and the offset of that part."""

    offset: int = 0
    text: Text = ""
