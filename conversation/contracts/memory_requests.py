"""Requests and results of the activities that read and write the conversations that queries go on with."""

from ...resources.base import JsonModel
from ..messages.message import Head
from ..messages.turn import Thread
from ..text import Text
from .conversation_plan import ConversationPlan
from .requests import ConversationItem


class RecallRequest(JsonModel):
    """``recall``: put a query's question after what a Memory's service has of its conversation."""

    thread: Thread
    conversation: ConversationPlan


class RecallResult(JsonModel):
    """The result of ``recall``: the thread of the query, and the place ``before`` the question.

    ``known`` is how many messages a Memory's server has given. ``notice`` says why there are none.
    """

    thread: Thread
    before: Head = Head()
    known: int = 0
    notice: Text | None = None


class RememberRequest(JsonModel):
    """``remember``: add to a conversation what a query has added, which stands in the journal after ``before``.

    ``catalog`` is the id of the query's catalog, and ``known`` how many messages the Memory's server has given.
    """

    conversation: ConversationPlan
    catalog: str
    before: Head
    items: tuple[ConversationItem, ...]
    known: int = 0


class RememberResult(JsonModel):
    """The result of ``remember``."""
