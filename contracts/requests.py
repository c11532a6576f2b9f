"""Requests and results of the activities."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, Self

from pydantic import Field, JsonValue

from ..resources.approval import Approvers
from ..resources.base import JsonModel, JsonObject
from ..resources.manifest import ContextWindow
from .decisions import Answer, Question, decision_id
from .errors import Cause
from .message import Head, Message, PersonDecision, Quote, RowRange, TokenUsage
from .panel import SpeakerBrief
from .plan import AgentPlan, ConversationPlan, MemberPlace, Plan
from .text import Text
from .turn import Thread


class JournalName(JsonModel):
    """A journal: its random id, and its address in the worker's settings, without a password."""

    id: str
    place: str


ConversationItem = Message | RowRange | Quote
"""What can be appended to a conversation: a message, the rows of another branch, or a copy of one row."""


class CallRequest(JsonModel):
    """The request of a call of a server. The workflow waits for the end of an outage of it, unless it ``gives_up``."""

    gives_up: bool = False

    def giving_up(self, gives_up: bool) -> Self:  # the name says what it is
        """The same request for a call that does not wait for the end of an outage, or that does."""
        return self.model_copy(update={"gives_up": gives_up})


class PinRequest(CallRequest):
    """``pin``: store the manifests that a run needs, and return its plan and its place in a conversation.

    A run that a client has started has a ``spec`` or an ``input``; a child workflow has a ``thread``. ``workflow`` is
    the workflow type, which must fit the resource. The question of a query follows ``after``, if that is set. A fork
    has the ``thread`` of the forked run, and the ``resources`` and ``changes`` of fields that replace its manifests; or
    it ``pins_anew``, with the worker's manifests.
    ``redacted``: the client has redacted personal data, so the worker must do so as well.
    """

    kind: Literal["query", "team", "agent", "model", "tool"]
    workflow: str
    name: str | None = None
    namespace: str = "default"
    spec: JsonObject | None = None
    input: str | None = None
    resources: tuple[JsonObject, ...] = ()
    after: Head | None = None
    thread: Thread | None = None
    changes: JsonObject = {}
    redacted: bool | None = None
    pins_anew: bool = False

    def with_resources(self, more: tuple[JsonObject, ...]) -> "PinRequest":
        """The request with more inline manifests."""
        return self.model_copy(update={"resources": (*self.resources, *more)})

    def for_fork(self, forked: Thread, changes: JsonObject, *, pins_anew: bool) -> "PinRequest":
        """The request for a fork, with the thread of the forked run and changed fields of its manifests."""
        return self.model_copy(update={"thread": forked, "changes": changes, "pins_anew": pins_anew})


class TaskQueues(JsonModel):
    """The task queues of a run's activities, if not the run's own, and their priority, which child workflows inherit.

    ``limited``: for models with a rate limit, by name. ``priority``: 1 (first) to 5. ``tenant``: the fairness key, and
    ``weight`` that of the key.
    """

    models: str | None = None
    tools: str | None = None
    limited: dict[str, str] = {}
    priority: int | None = None
    tenant: str | None = None
    weight: float | None = None

    def ordered(self, priority: int, tenant: str, weight: float) -> "TaskQueues":
        """The same queues with the priority and the fairness key of a run, which replace those of its client."""
        return self.model_copy(update={"priority": priority, "tenant": tenant, "weight": weight})

    def for_model(self, name: str) -> str | None:
        """The task queue for the calls of a model."""
        return self.limited.get(name, self.models)


DAY = 86_400.0
"""Seconds."""

ROOT_RUN_FIELDS = ("question", "before", "journal", "notices", "ineffective", "forked_from", "admission")
"""The fields of ``Pinned`` that only a run has that a client has started."""


class ForkedFrom(JsonModel):
    """The run that a fork has gone on from, and the place in it, as users name both.

    ``searchable``: the server has the search attribute for it.
    """

    run: str
    at: str
    searchable: bool = False


class Pinned(JsonModel):
    """The result of ``pin``.

    ``searchable``: the server has Baton's search attributes; ``shows_cost``: also that of the cost. For a root run: the
    beginning of its ``question`` for Temporal's UI, the place ``before`` it, its ``journal``, ``notices`` about
    missing tools, and ``ineffective``: sentences about fields of the query without effect on this worker. ``traced``:
    the run passes its spans to its worker. ``max_outage`` is the number of seconds for which a call waits for the end
    of an outage. ``forked_from`` is the run that this one has gone on from. ``audited``: the worker keeps an audit log.
    ``admission``: the number of open runs of its tenant is limited, so it asks whether it may begin.
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
    ineffective: tuple[str, ...] = ()
    traced: bool = False
    max_outage: float = DAY
    forked_from: ForkedFrom | None = None
    audited: bool = False
    admission: bool = False

    def of_root_run(
        self,
        question: str,
        before: Head | None,
        journal: JournalName,
        notices: tuple[str, ...],
        ineffective: tuple[str, ...],
        *,
        admission: bool,
    ) -> "Pinned":
        """The result for a run that a client has started."""
        root = {
            "question": question,
            "before": before,
            "journal": journal,
            "notices": notices,
            "ineffective": ineffective,
            "admission": admission,
        }
        return self.model_copy(update=root).without_defaults

    def for_fork(self, thread: Thread, forked_from: "ForkedFrom | None") -> "Pinned":
        """The same in a fork, with its own thread; ``forked_from`` is for the fork itself, not for runs below it."""
        return self.model_copy(update={"thread": thread, "forked_from": forked_from}).without_defaults

    def changed_to(self, other: "Pinned") -> "Pinned":
        """What is pinned for a fork with other manifests, at the same place in the conversation."""
        kept = {name: getattr(self, name) for name in ("question", "before", "journal", "forked_from", "admission")}
        thread = other.thread.placed_as(self.thread)
        return other.model_copy(update={**kept, "thread": thread}).without_defaults

    def for_member(self, plan: AgentPlan, thread: Thread) -> "Pinned":
        """What is pinned for the run of a member that takes its turn at a place in the conversation.

        It keeps everything but what belongs to a root run alone.
        """
        of_root_runs = {name: Pinned.model_fields[name].default for name in ROOT_RUN_FIELDS}
        return self.model_copy(update={**of_root_runs, "thread": thread, "plan": plan}).without_defaults


class AskModelRequest(CallRequest):
    """``ask_model``: call the model of a speaker, and append its reply after the head of a thread.

    ``execute_agent`` takes the same for an agent that is executed elsewhere. ``speaker`` is the id of an Agent, or of a
    Model that is called directly. The turn's own messages begin after depth ``begun``. ``pending`` items are appended
    first. ``fallback`` is an index into the speaker's models. ``turn`` and its limit ``turns`` are shown to clients.
    ``member`` is the place of a member that can transfer the conversation, which has tools for that.
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
    member: MemberPlace | None = None

    def for_fallback(self, index: int) -> "AskModelRequest":
        """The same request to another of the speaker's models."""
        return self.model_copy(update={"fallback": index})


class AskModelResult(JsonModel):
    """The result of ``ask_model``: the model's message as a history holds it, and the head after it.

    ``wrong`` says why a final answer does not fit the output schema, as in ``is not JSON: …``. ``earlier`` are the
    earlier messages returned by the same execution of an agent elsewhere. ``summaries`` is the usage of the summaries
    made before the model call, and ``failed`` that of models that were asked first. With a ``question`` the agent waits
    for the answer of a person. ``restated``: the message does not begin with the text that this attempt has streamed.
    """

    message: Message
    head: Head
    wrong: Text | None = None
    earlier: tuple[Message, ...] = ()
    summaries: TokenUsage | None = None
    failed: TokenUsage | None = None
    question: Question | None = None
    restated: bool = False

    @property
    def usage(self) -> TokenUsage:
        """What the call adds to the usage of its run: the answered call, and what was asked before it."""
        answered = (self.message.usage or TokenUsage()) + TokenUsage(model_calls=1)
        return answered + (self.summaries or TokenUsage()) + (self.failed or TokenUsage())

    def after_failures(self, usage: TokenUsage) -> "AskModelResult":
        """The result of a fallback, with the usage of the models before it."""
        return self.model_copy(update={"failed": usage}) if usage.model_calls else self


class SelectRequest(CallRequest):
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

    def after_failures(self, usage: TokenUsage) -> "SelectResult":
        """The result of a fallback, with the usage of the models before it as well."""
        return self.model_copy(update={"usage": self.usage + usage}) if usage.model_calls else self


class EvaluateRequest(JsonModel):
    """``evaluate``: evaluate a team's conditions after a turn of member ``member_index``; ``elapsed`` is in seconds.

    ``silent``: nobody has said anything in the turn, so the last message is that of an earlier one. ``answer`` is that
    of the turn if it is not its last message. With ``candidates``, the indexes of members, the function that is the
    team's selector chooses one of them instead. ``session`` has the run's values for functions.
    """

    thread: Thread
    team: str
    member_index: int | None = None
    turn: int
    tokens: int
    elapsed: float
    brief: SpeakerBrief | None = None
    silent: bool = False
    answer: Text | None = None
    candidates: tuple[int, ...] | None = None
    session: JsonObject = {}

    def on_thread(self, thread: Thread) -> "EvaluateRequest":
        """The same request at its place, with the catalog and the accounts of ``thread``."""
        return self.model_copy(update={"thread": thread.at(self.thread.head)})


class EvaluateResult(JsonModel):
    """The result of ``evaluate``: whether the team ends, and the index of the edge to follow, if there is one.

    ``member`` is the index of the chosen candidate; None if the selector ends the team.
    """

    ends: bool = False
    edge: int | None = None
    member: int | None = None


class Bookmark(JsonModel):
    """A transcript that is shared under a key of a session; if several runs use one key, the latest owns it."""

    session: str
    key: str
    owner: str
    begun: int


class AppendRequest(JsonModel):
    """``append``: append items to a conversation after a head, and move a bookmark there."""

    head: Head
    items: tuple[ConversationItem, ...]
    bookmark: Bookmark | None = None


class UseToolRequest(CallRequest):
    """``use_tool``: execute one tool call, number ``call`` of the message with the id ``reply`` in the journal.

    ``speaker`` is the id of the calling Agent, or of a Tool that is a query's target (then there is no ``reply``).
    ``answer`` is the answer of the agent or team that the tool delegates to, or the result of the application's
    activity that it calls, or of the client. ``decision`` is the approval of the call, if it needs one, or says who has
    given that result. ``answered`` is the answer to the
    tool's previous question. ``member`` is that of ``ask_model``. Three more activities take this request: ``delegate``
    begins the conversation for the agent or team; ``check_arguments`` returns the arguments for the application's
    activity; ``review`` determines whether approval is needed. A function gets the number of the ``turn`` and the
    values of the ``session``.
    """

    thread: Thread
    speaker: str
    reply: str | None = None
    call: int = 0
    answer: Text | None = None
    decision: PersonDecision | None = None
    answered: Answer | None = None
    member: MemberPlace | None = None
    turn: int | None = None
    session: JsonObject = {}

    def with_answer(self, answer: str) -> "UseToolRequest":
        """The request with the answer of the agent or team that the tool delegates to, or with an activity's result."""
        return self.model_copy(update={"answer": answer})

    def in_turn(self, turn: int, session: JsonObject) -> "UseToolRequest":
        """The request with the turn and the values of the session."""
        return self.model_copy(update={"turn": turn, "session": session} if session else {"turn": turn})

    def after_question(self, answered: Answer) -> "UseToolRequest":
        """The request with the answer to the tool's question."""
        return self.model_copy(update={"answered": answered})

    def allowed_by(self, decision: PersonDecision | None) -> "UseToolRequest":
        """The request with the decision that approved the call."""
        return self.model_copy(update={"decision": decision})

    @property
    def decision_id(self) -> str:
        """The id under which the call waits for a decision."""
        return decision_id(self.reply or self.thread.question, str(self.call))

    def question_id(self, number: int) -> str:
        """The id under which the call waits for the answer to the question with that number, from 1."""
        return decision_id(self.reply or self.thread.question, str(self.call), f"question-{number}")


class UseToolResult(JsonModel):
    """The result of ``use_tool``: the tool's message as a history holds it, the head after it, and whether the tool
    ends the turn.

    With a ``question`` there is no message yet: the call continues with the answer.
    """

    message: Message
    head: Head
    ends: bool = False
    question: Question | None = None


class CheckedArguments(JsonModel):
    """The result of ``check_arguments``: the positional arguments of the application's activity.

    ``by_client``: the client executes the call, and gets its arguments as the only one. ``recorded`` is the result in a
    recording that is replayed: then the application is not called.
    """

    arguments: tuple[JsonValue, ...] = ()
    by_client: bool = False
    recorded: Text | None = None


class ReviewResult(JsonModel):
    """The result of ``review``: whether the call needs human approval, and its arguments as JSON text for display.

    Only ``approvers`` may decide, if there are any.
    """

    needed: bool
    arguments: Text = "{}"
    approvers: tuple[Approvers, ...] = ()


class RecallRequest(CallRequest):
    """``recall``: read a query's conversation from a Memory's service, and append the query's question to it."""

    thread: Thread
    conversation: ConversationPlan


class RecallResult(JsonModel):
    """The result of ``recall``: the thread of the query, and the place ``before`` the question.

    ``known`` is the number of messages that the Memory's server returned. ``notice`` says why there are none.
    """

    thread: Thread
    before: Head = Head()
    known: int = 0
    notice: Text | None = None

    def on_thread(self, thread: Thread) -> "RecallResult":
        """The same place in the conversation, with the catalog and the accounts of ``thread``."""
        return self.model_copy(update={"thread": thread.placed_as(self.thread)})


class RememberRequest(JsonModel):
    """``remember``: add a query's messages, which are in the journal after ``before``, to its conversation.

    ``catalog`` is the id of the query's catalog, and ``known`` the number of messages that its server returned. If the
    query retries a failed run, ``added`` are the places up to which that one has added its messages.
    """

    conversation: ConversationPlan
    catalog: str
    before: Head
    items: tuple[ConversationItem, ...]
    known: int = 0
    added: tuple[Head, ...] = ()

    def with_items(self, items: Iterable[ConversationItem]) -> "RememberRequest":
        """The same request for other items."""
        return self.model_copy(update={"items": tuple(items)})


class RememberResult(JsonModel):
    """The result of ``remember``."""


class CancelAgentRequest(JsonModel):
    """``cancel_agent``: cancel the remote task that a canceled ``execute_agent`` with the id ``activity`` left open.

    ``thread`` and ``speaker`` are those of its request.
    """

    thread: Thread
    speaker: str
    activity: str


class CancelAgentResult(JsonModel):
    """The result of ``cancel_agent``: whether a request to cancel a task was sent to the server."""

    requested: bool = False


class ReadFailedRunRequest(JsonModel):
    """``read_failed_run``: read the state of a failed run with the same workflow id, to retry it.

    ``run`` is the run id of its first execution.
    """

    run: str


class LastFailuresRequest(JsonModel):
    """``last_failures``: find the latest failures in the runs with these workflow ids."""

    runs: tuple[str, ...]


class LastFailures(JsonModel):
    """The result of ``last_failures``: the runs in which a failed call is being retried, by workflow id."""

    by_run: dict[str, Cause] = {}


MAX_SECONDS = 3650 * 86_400.0
"""The longest duration that manifests and settings accept: ten years."""


class ExpireInput(JsonModel):
    """``expire``: the data of the parent run is deleted after so many seconds."""

    seconds: float = Field(ge=0, le=MAX_SECONDS)


class ExpireRequest(JsonModel):
    """The run to delete, by its workflow id and the id of its last execution."""

    workflow_id: str
    run_id: str


class ExpireResult(JsonModel):
    """The number of deleted executions, and whether the journal keeps their rows because other runs use them."""

    runs: int
    journal_kept: bool = False


class AdmitRequest(JsonModel):
    """``admit_run``: whether a root run of a tenant may begin.

    ``run`` is the id of its first execution, and ``since`` the time at which it has asked first.
    """

    tenant: str
    run: str
    since: datetime | None = None


class AdmitResult(JsonModel):
    """The run is admitted: until its end it counts as one of the tenant's open runs."""


class ReleaseRequest(JsonModel):
    """``release_run``: a run that has asked for admission ends. ``run`` is the id of its first execution."""

    run: str


class ReleaseResult(JsonModel):
    """The number of waiting runs that were told to ask again."""

    woken: int = 0


class NotifyInput(JsonModel):
    """``notify``: send an event about the parent run to some webhooks of its query.

    ``catalog`` is the name of the run's catalog in the journal, ``query`` the id of the Query, ``hooks`` are indexes of
    its ``spec.notify``, and ``event`` is a CloudEvent.
    """

    catalog: str
    query: str
    hooks: tuple[int, ...]
    event: JsonObject

    @property
    def requests(self) -> "tuple[NotifyRequest, ...]":
        """The request for each webhook."""
        return tuple(
            NotifyRequest(catalog=self.catalog, query=self.query, hook=hook, event=self.event) for hook in self.hooks
        )


class NotifyRequest(JsonModel):
    """``notify``: send an event to one webhook of a query; the fields are those of ``NotifyInput``."""

    catalog: str
    query: str
    hook: int
    event: JsonObject


class NotifyResult(JsonModel):
    """The number of webhooks that have accepted the event."""

    delivered: int


MISSED_HEARTBEATS = 20
"""Extra attempts of a model, tool or agent call, for retries after a missed heartbeat only."""


class LiveText(JsonModel):
    """The heartbeat of a model's or an agent's call: the last part of the text so far, and the offset of that part."""

    offset: int = 0
    text: Text = ""


class AuditRequest(JsonModel):
    """``audit``: write into the audit log what clients have done to this run until now, by its history.

    ``began`` is how a root run has begun: ``start``, ``retry`` or ``fork``. ``ended`` is the phase in which it ends.
    """

    began: Literal["start", "retry", "fork"] | None = None
    ended: str | None = None


class AuditResult(JsonModel):
    """The empty result of ``audit``."""
