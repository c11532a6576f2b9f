"""Requests and results of the activities."""

from typing import Literal

from ...resources.base import JsonModel, JsonObject
from ...resources.window import ContextWindow
from ..messages.message import Head, Message, Quote, Span, TokenUsage
from ..messages.person_decision import PersonDecision
from ..messages.turn import Thread
from ..text import Text
from .decisions import decision_id
from .panel_requests import SpeakerBrief
from .plan import Plan

ConversationItem = Message | Span | Quote
"""What can be appended to a conversation: a message, the rows of another branch, or a copy of one row."""


class PinRequest(JsonModel):
    """``pin``: store the manifests that a run needs, and return its plan and its place in a conversation.

    A run that a client has started has a ``spec`` or an ``input``; a child workflow has a ``thread``. ``workflow`` is
    the type of the run, which must fit the resource.
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
    """The task queues of a run's activities, if not the run's own, and their priority.

    ``limited`` are the task queues of models with a rate limit, by the name of the model. ``priority`` is 1 (first) to
    5; ``tenant`` is the fairness key. Child workflows inherit both.
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
    ``question`` begins what a root run was asked, for Temporal's UI; ``before`` is the place before it.
    """

    thread: Thread
    plan: Plan
    searchable: bool = False
    shows_cost: bool = False
    route: TaskQueues = TaskQueues()
    question: str = ""
    before: Head | None = None


class AskModelRequest(JsonModel):
    """``ask_model``: ask the model of a speaker, and append its reply after the head of a thread.

    ``execute_agent`` takes the same for an agent that is executed elsewhere.
    ``speaker`` is the id of an Agent, or of a Model that is asked directly. The turn's own messages begin after depth
    ``begun``. ``pending`` is appended before the reply. ``fallback`` is an index into the speaker's models. ``turn``
    and ``turns`` (the limit, if there is one) are for those who watch the run.
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
    were made before the model was asked.
    """

    message: Message
    head: Head
    wrong: Text | None = None
    earlier: tuple[Message, ...] = ()
    summaries: TokenUsage | None = None


class UseToolRequest(JsonModel):
    """``use_tool``: execute one tool call, number ``call`` of the message with the id ``reply`` in the journal.

    ``speaker`` is the id of the Agent that calls, or of a Tool that is a query's target (then there is no ``reply``).
    ``answer`` is what the agent or the team that the tool asks has answered. ``delegate`` takes the same: begin the
    conversation in which they answer. ``decision`` is the one that allows the call, where one is needed. ``review``
    takes the same, to find out whether it is.
    """

    thread: Thread
    speaker: str
    reply: str | None = None
    call: int = 0
    answer: Text | None = None
    decision: PersonDecision | None = None

    @property
    def decision_id(self) -> str:
        """The id under which the call waits for a decision."""
        return decision_id(self.reply or self.thread.question, str(self.call))


class UseToolResult(JsonModel):
    """The result of ``use_tool``: the tool's message, the head after it, and whether the tool ends the turn."""

    message: Message
    head: Head
    ends: bool = False


class ReviewResult(JsonModel):
    """The result of ``review``: whether the call needs a person's yes, and its arguments as JSON text to be shown."""

    needed: bool
    arguments: Text = "{}"


class SelectRequest(JsonModel):
    """``select``: let the selector of a team choose the next speaker among ``candidates``, indexes of members."""

    thread: Thread
    team: str
    candidates: tuple[int, ...]
    fallback: int = 0
    turn: int = 1


class SelectResult(JsonModel):
    """The result of ``select``: the index of the next speaker (``seat``), how it was chosen, and the token usage.

    Without a ``seat`` the selector has ended the team; ``said`` is its final message, if there is one.
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
