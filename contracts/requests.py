"""Requests and results of the activities."""

from typing import Literal

from pydantic import Field

from ..resources.base import JsonModel, JsonObject
from ..resources.manifest import ContextWindow
from .decisions import Answer, Question, decision_id
from .errors import Cause
from .message import Head, Message, PersonDecision, Quote, RowRange, TokenUsage
from .panel import SpeakerBrief
from .plan import ConversationPlan, Plan
from .text import Text
from .turn import Thread


class JournalName(JsonModel):
    """A journal: its random id, and its address, without a password, as a worker knows it."""

    id: str
    place: str


ConversationItem = Message | RowRange | Quote
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
    """The task queues of a run's activities, if not the run's own, and their priority. Child workflows inherit it.

    ``limited``: for models with a rate limit, by name. ``priority``: 1 (first) to 5. ``tenant``: the fairness key.
    """

    models: str | None = None
    tools: str | None = None
    limited: dict[str, str] = {}
    priority: int | None = None
    tenant: str | None = None

    def ordered(self, priority: int | None, tenant: str | None) -> "TaskQueues":
        """The same queues with the priority and the fairness key of a run, where it has them."""
        order = {"priority": priority, "tenant": tenant}
        return self.model_copy(update={name: value for name, value in order.items() if value})

    def for_model(self, name: str) -> str | None:
        """The task queue for the calls of a model."""
        return self.limited.get(name, self.models)


class Pinned(JsonModel):
    """The result of ``pin``; ``searchable``: the server has Baton's attributes, ``shows_cost``: also the cost.
    For a root run: the beginning of its ``question``, for Temporal's UI, the place ``before`` it, its ``journal``, and
    as ``notices`` what it goes on without. ``traced``: the run hands its spans to its worker.
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

    def of_root_run(
        self, question: str, before: Head | None, journal: JournalName, notices: tuple[str, ...]
    ) -> "Pinned":
        """The result for a run that a client has started."""
        root = {"question": question, "before": before, "journal": journal, "notices": notices}
        return self.model_copy(update=root).without_defaults


class AskModelRequest(JsonModel):
    """``ask_model``: ask the model of a speaker, and append its reply after the head of a thread.

    ``execute_agent`` takes the same for an agent that is executed elsewhere. ``speaker`` is the id of an Agent, or of a
    Model that is asked directly. The turn's own messages begin after depth ``begun``. ``pending`` comes before it.
    ``fallback`` is an index into the speaker's models. ``turn`` and ``turns``, the limit, are shown to watchers.
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

    def for_fallback(self, index: int) -> "AskModelRequest":
        """The same request to another of the speaker's models."""
        return self.model_copy(update={"fallback": index})


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

    def for_fallback(self, index: int) -> "SelectRequest":
        """The same request to another of the selector's models."""
        return self.model_copy(update={"fallback": index})


class SelectResult(JsonModel):
    """The result of ``select``: the index of the next speaker, how it was chosen, and the token usage.

    Without a ``member_index`` the selector has ended the team; ``said`` may be its final message.
    """

    member_index: int | None = None
    member: str | None = None
    how: Literal["chosen", "matched", "fallback", "only_candidate", "terminated"]
    usage: TokenUsage = TokenUsage()
    said: Message | None = None


class EvaluateRequest(JsonModel):
    """``evaluate``: evaluate a team's conditions after a turn of member ``member_index``; ``elapsed`` is in seconds.

    ``silent``: the turn has added nothing to the conversation, so the last message there is another member's.
    """

    thread: Thread
    team: str
    member_index: int | None = None
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


class UseToolRequest(JsonModel):
    """``use_tool``: execute one tool call, number ``call`` of the message with the id ``reply`` in the journal.

    ``speaker`` is the id of the Agent that calls, or of a Tool that is a query's target (then there is no ``reply``).
    ``answer`` is what the agent or the team that the tool asks has answered. ``delegate`` takes the same: begin the
    conversation in which they answer. ``decision`` is the one that allows the call, where one is needed. ``review``
    takes the same, to find out whether it is. ``answered`` is the answer to what the tool has asked before.
    """

    thread: Thread
    speaker: str
    reply: str | None = None
    call: int = 0
    answer: Text | None = None
    decision: PersonDecision | None = None
    answered: Answer | None = None

    def with_answer(self, answer: str) -> "UseToolRequest":
        """The request with the answer of whom the tool asks."""
        return self.model_copy(update={"answer": answer})

    def after_question(self, answered: Answer) -> "UseToolRequest":
        """The request with the answer to what the tool has asked."""
        return self.model_copy(update={"answered": answered})

    def allowed_by(self, decision: PersonDecision | None) -> "UseToolRequest":
        """The request with the decision that allowed the call."""
        return self.model_copy(update={"decision": decision})

    @property
    def decision_id(self) -> str:
        """The id under which the call waits for a decision."""
        return decision_id(self.reply or self.thread.question, str(self.call))

    def question_id(self, number: int) -> str:
        """The id under which the call waits for the answer to the question with that number, from 1."""
        return decision_id(self.reply or self.thread.question, str(self.call), f"question-{number}")


class UseToolResult(JsonModel):
    """The result of ``use_tool``: the tool's message, the head after it, and whether the tool ends the turn.

    With a ``question`` there is no message yet: the call continues with the answer.
    """

    message: Message
    head: Head
    ends: bool = False
    question: Question | None = None


class ReviewResult(JsonModel):
    """The result of ``review``: whether the call needs human approval, and its arguments as JSON text to be shown."""

    needed: bool
    arguments: Text = "{}"


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


class CancelAgentRequest(JsonModel):
    """``cancel_agent``: cancel at its server what a canceled ``execute_agent`` with the id ``activity`` has left open.

    ``thread`` and ``speaker`` are those of its request.
    """

    thread: Thread
    speaker: str
    activity: str


class CancelAgentResult(JsonModel):
    """The result of ``cancel_agent``: whether a request to cancel a task was sent to the server."""

    requested: bool = False


class LastFailuresRequest(JsonModel):
    """``last_failures``: what has failed last in runs, given by their workflow ids."""

    runs: tuple[str, ...]


class LastFailures(JsonModel):
    """The result of ``last_failures``: the runs in which a call has failed and is being tried again."""

    by_run: dict[str, Cause] = {}


MAX_SECONDS = 3650 * 86_400.0
"""The longest duration that manifests and settings take: ten years."""


class ExpireInput(JsonModel):
    """``expire``: what the run above has left is deleted after so many seconds."""

    seconds: float = Field(ge=0, le=MAX_SECONDS)


class ExpireRequest(JsonModel):
    """The run to delete, by its workflow id and the id of its last execution."""

    workflow_id: str
    run_id: str


class ExpireResult(JsonModel):
    """How many executions were deleted, and whether the journal keeps their rows because other runs use them."""

    runs: int
    journal_kept: bool = False


MISSED_HEARTBEATS = 20
"""Extra attempts of a call of a model, a tool or an agent: in them only a missed heartbeat is retried."""


class LiveText(JsonModel):
    """The heartbeat of a model's or an agent's call: the last part of the text so far, and the offset of that part."""

    offset: int = 0
    text: Text = ""
