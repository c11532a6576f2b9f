"""Requests and results of the activities."""

from typing import Literal

from ...resources.base import JsonModel, JsonObject
from ...resources.window import ContextWindow
from ..messages.message import Head, Message, Quote, Span, TokenUsage
from ..messages.turn import Thread
from ..text import Text
from .journal_name import JournalName
from .panel_requests import SpeakerBrief
from .plan import Plan
from .questions import Question

ConversationItem = Message | Span | Quote
"""What can be appended to a conversation: a message, the rows of another branch, or a copy of one row."""


class PinRequest(JsonModel):
    """``pin``: store the manifests that a run needs, and return its plan and its place in a conversation.

    A run that a client has started has a ``spec`` or an ``input``; a child workflow has a ``thread``. ``workflow`` is
    the type of the run, which must fit the resource. ``takes_turn``: a query can take the turn of its only target.
    """

    kind: Literal["query", "team", "agent", "model", "tool"]
    workflow: str
    name: str | None = None
    namespace: str = "default"
    spec: JsonObject | None = None
    input: str | None = None
    resources: tuple[JsonObject, ...] = ()
    thread: Thread | None = None
    takes_turn: bool = False


class TaskQueues(JsonModel):
    """The task queues of a run's activities, if not the run's own, and their priority. Child workflows inherit it.

    ``limited``: for models with a rate limit, by name. ``priority``: 1 (first) to 5. ``tenant``: the fairness key.
    """

    models: str | None = None
    tools: str | None = None
    limited: dict[str, str] = {}
    priority: int | None = None
    tenant: str | None = None

    def for_model(self, name: str) -> str | None:
        """The task queue for the calls of a model."""
        return self.limited.get(name, self.models)


class Pinned(JsonModel):
    """The result of ``pin``; ``searchable``: the server has Baton's attributes, ``shows_cost``: also the cost.
    For a root run: the beginning of its ``question``, for Temporal's UI, the place ``before`` it, its ``journal``, and
    as ``notices`` what it goes on without. ``hands_spans``: the run hands its spans to its worker;
    ``traced``: it reports them by an activity, as those did that began before that.
    """

    thread: Thread
    plan: Plan
    searchable: bool = False
    shows_cost: bool = False
    route: TaskQueues = TaskQueues()
    question: str = ""
    before: Head | None = None
    journal: JournalName | None = None
    notices: tuple[str, ...] = ()
    traced: bool = False
    hands_spans: bool = False


class AskModelRequest(JsonModel):
    """``ask_model``: ask the model of a speaker, and append its reply after the head of a thread.

    ``execute_agent`` takes the same for an agent that is executed elsewhere. ``speaker`` is the id of an Agent, or of a
    Model that is asked directly. The turn's own messages begin after depth ``begun``. ``pending`` comes before it.
    ``fallback`` is an index into the speaker's models. ``turn`` and ``turns``, the limit, are for those who watch.
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
    """The result of ``ask_model``: the model's message, truncated if it is very long, and the head after it.

    ``wrong`` says why a final answer does not fit the output schema, as in ``is not JSON: …``. ``earlier`` are the
    messages before it that one execution of an agent elsewhere gave. ``summaries`` is the usage of the summaries that
    were made before the model was asked. With a ``question`` the agent waits for the answer of a person.
    """

    message: Message
    head: Head
    wrong: Text | None = None
    earlier: tuple[Message, ...] = ()
    summaries: TokenUsage | None = None
    question: Question | None = None


class SelectRequest(JsonModel):
    """``select``: let the selector of a team choose the next speaker among ``candidates``, indexes of members."""

    thread: Thread
    team: str
    candidates: tuple[int, ...]
    fallback: int = 0
    turn: int = 1


class SelectResult(JsonModel):
    """The result of ``select``: the index of the next speaker (``seat``), how it was chosen, and the token usage.

    Without a ``seat`` the selector has ended the team; ``said`` may be its final message.
    """

    seat: int | None = None
    member: str | None = None
    how: Literal["chosen", "matched", "fallback", "only_candidate", "terminated"]
    usage: TokenUsage = TokenUsage()
    said: Message | None = None


class EvaluateRequest(JsonModel):
    """``evaluate``: evaluate a team's conditions after a turn of member ``seat``; ``elapsed`` is in seconds.

    ``silent``: the turn has added nothing to the conversation, so the last message there is another member's.
    """

    thread: Thread
    team: str
    seat: int | None = None
    turn: int
    tokens: int
    elapsed: float
    brief: SpeakerBrief | None = None
    silent: bool = False


class EvaluateResult(JsonModel):
    """The result of ``evaluate``: whether the team ends, and the index of the edge to follow, if there is one."""

    ends: bool = False
    edge: int | None = None


class Bookmark(JsonModel):
    """A transcript under a key of a session, for others to read; if several runs use a key, the latest has it."""

    session: str
    key: str
    owner: str
    begun: int


class AppendRequest(JsonModel):
    """``append``: append items to a conversation after a head, and move a bookmark there."""

    head: Head
    items: tuple[ConversationItem, ...]
    bookmark: Bookmark | None = None
