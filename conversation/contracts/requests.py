"""What is asked of the activities, and what do they reply? One pair of types for each effect."""

from typing import Literal

from ...resources.base import JsonModel, JsonObject
from ...resources.window import ContextWindow
from ..messages.message import Head, Message, Quote, Span, TokenUsage
from ..messages.turn import Thread
from ..text import Text
from .panel_requests import SpeakerBrief
from .plan import Plan

ConversationItem = Message | Span | Quote
"""What joins a conversation: a message, the span that another branch has written, or a row of it, said again."""


MISSED_HEARTBEATS = 20
"""Attempts of a model's call beyond those that may fail: in them a failure is final, and a missed heartbeat is not."""


class PinRequest(JsonModel):
    """``pin``: resolve what a run needs, once, and find its place in a conversation.

    A run that was started from outside brings a ``spec`` or an ``input``; one that was started by its parent brings
    the ``thread``. ``workflow`` is the type of the run, which must fit what it is to run.
    """

    kind: Literal["query", "team", "agent", "model", "tool"]
    workflow: str
    name: str | None = None
    namespace: str = "default"
    spec: JsonObject | None = None
    input: str | None = None
    resources: tuple[JsonObject, ...] = ()
    thread: Thread | None = None


class TaskQueues(JsonModel):
    """Where a run's calls wait, if not on its own task queue, and when it is their turn.

    ``limited`` are the task queues of models with a rate of their own, by their names. ``priority`` is 1, the first, to
    5; ``tenant`` is who shares fairly with others. Child runs inherit both.
    """

    models: str | None = None
    tools: str | None = None
    limited: dict[str, str] = {}
    priority: int | None = None
    tenant: str | None = None

    def for_model(self, name: str) -> str | None:
        """The task queue of a model's calls."""
        return self.limited.get(name, self.models)


class Pinned(JsonModel):
    """The reply to ``pin``; ``searchable``: the server knows the attributes by which runs are searched."""

    thread: Thread
    plan: Plan
    searchable: bool = False
    route: TaskQueues = TaskQueues()


class AskModelRequest(JsonModel):
    """``ask_model``: let a speaker's model speak at the head of a thread.

    ``speaker`` is the id of an Agent, or of a Model that is asked by itself. The turn's own messages begin after depth
    ``begun``. ``pending`` joins the conversation first. ``fallback`` counts along the speaker's models. ``turn`` of
    ``turns`` (if bounded) is what a watcher is told.
    """

    thread: Thread
    speaker: str
    begun: int
    pending: tuple[ConversationItem, ...] = ()
    fallback: int = 0
    turn: int = 1
    turns: int | None = None
    window: ContextWindow | None = None
    brief: SpeakerBrief | None = None


class AskModelResult(JsonModel):
    """The reply to ``ask_model``: the model's message, cut if it is very long, and the head after it.

    ``wrong`` says what a final answer has instead of the form it was asked for in, as in ``is not JSON: …``.
    """

    message: Message
    head: Head
    wrong: Text | None = None


class UseToolRequest(JsonModel):
    """``use_tool``: carry out one call of the reply that stands in the journal under the id ``reply``.

    ``speaker`` is the id of the Agent that calls, or of a Tool that is put to the question itself, without a reply.
    """

    thread: Thread
    speaker: str
    reply: str | None = None
    call: int = 0


class UseToolResult(JsonModel):
    """The reply to ``use_tool``: the tool's message, the head after it, and whether the tool ends the turn."""

    message: Message
    head: Head
    ends: bool = False


class SelectRequest(JsonModel):
    """``select``: let a team's selector choose who speaks next, of ``candidates``, the places of members."""

    thread: Thread
    team: str
    candidates: tuple[int, ...]
    fallback: int = 0
    turn: int = 1


class SelectResult(JsonModel):
    """The reply to ``select``: whose turn it is, how that came about, and what it has cost.

    Without a ``seat`` the selector has ended the team, with ``said`` as the final words if it had any.
    """

    seat: int | None = None
    member: str | None = None
    how: Literal["chosen", "matched", "fallback", "only_candidate", "terminated"]
    usage: TokenUsage = TokenUsage()
    said: Message | None = None


class EvaluateRequest(JsonModel):
    """``evaluate``: judge a team's conditions after a turn of the member at ``seat``; ``elapsed`` in seconds."""

    thread: Thread
    team: str
    seat: int | None = None
    turn: int
    tokens: int
    elapsed: float
    brief: SpeakerBrief | None = None


class EvaluateResult(JsonModel):
    """The reply to ``evaluate``: whether the team ends, and the place of the edge that leads on, if one does."""

    ends: bool = False
    edge: int | None = None


class Bookmark(JsonModel):
    """Under which key of a session a transcript is read; of several owners of one key the latest has it."""

    session: str
    key: str
    owner: str
    begun: int


class AppendRequest(JsonModel):
    """``append``: put on top of a head what joins the conversation after it, and move a bookmark there."""

    head: Head
    items: tuple[ConversationItem, ...]
    bookmark: Bookmark | None = None


class LiveText(JsonModel):
    """The heartbeat of ``ask_model`` and ``select``: the last part of the text so far, and where in it that begins."""

    offset: int = 0
    text: Text = ""
