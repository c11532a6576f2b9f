"""The requests and results of activities for agents that are executed elsewhere."""

from ...resources.base import JsonModel
from ..messages.turn import Thread


class CancelAgentRequest(JsonModel):
    """``cancel_agent``: cancel at its server what a canceled ``execute_agent`` with the id ``activity`` has left open.

    ``thread`` and ``speaker`` are those of its request.
    """

    thread: Thread
    speaker: str
    activity: str


class CancelAgentResult(JsonModel):
    """The result of ``cancel_agent``: whether the server was asked to cancel a task."""

    asked: bool = False
