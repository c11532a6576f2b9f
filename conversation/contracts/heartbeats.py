"""The heartbeats of activities: what they say, and how often one may be missed."""

from ...resources.base import JsonModel
from ..text import Text

MISSED_HEARTBEATS = 20
"""Extra attempts of a call of a model, a tool or an agent: in them only a missed heartbeat is retried."""


class LiveText(JsonModel):
    """The heartbeat of a model's or an agent's call: the last part of the text so far, and the offset of that part."""

    offset: int = 0
    text: Text = ""
