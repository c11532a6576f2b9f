"""The inputs of the workflows, and the state that a run passes to its successor at continue-as-new."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ..resources.base import JsonModel, JsonObject
from ..resources.query import TargetType
from .control_messages import Pause, SteerRequest
from .decisions import DecisionsState
from .errors import Failure
from .message import Head, Message, RowRange, TokenUsage
from .panel import SpeakerRole
from .requests import AskModelResult, ConversationItem, EvaluateRequest, EvaluateResult, Pinned, RecallResult
from .trace import OpenSpan
from .turn import StopReason, Thread, TurnResult

# Conversation length does not grow the state: the messages are in the journal.


class StopRequest(JsonModel):
    """A request to stop a run: the reason, a note, and whether activities in progress are canceled (``now``)."""

    reason: StopReason
    note: str | None = None
    now: bool = False


class InboxState(JsonModel):
    """Messages from people that are not in the conversation yet, and the pause of the run, if any."""

    pause: Pause | None = None
    waiting: tuple[SteerRequest, ...] = ()


class CallOutcome(JsonModel):
    """The result of a tool call, stored in the rows after ``after`` up to ``head``; without ``head`` not stored yet."""

    message: Message
    after: Head
    head: Head | None = None
    ends: bool = False

    @property
    def item(self) -> ConversationItem:
        """The item to append to the conversation."""
        return RowRange(after=self.after, to=self.head) if self.head else self.message


class AgentState(JsonModel):
    """An agent in the middle of its turn.

    ``model_calls`` counts its model calls and ``rejected`` its answers that did not fit the output schema. ``reply`` is
    the last reply if some of its tool calls are not finished; ``done`` counts those that are. The messages of the turn
    are in the conversation up to ``head``, without those that are ``pending``; ``messages`` are the latest of them;
    ``cut`` means there are earlier ones.
    ``outcomes`` are those of finished calls, by call number, while other calls of the same message wait for a person.
    ``handoff`` is the index of the member to which it has transferred the conversation. ``span`` is the span of the
    turn, if the run is traced.
    """

    kind: Literal["agent"]
    head: Head
    model_calls: int
    rejected: int = 0
    reply: AskModelResult | None = None
    done: int = 0
    ends: bool = False
    pending: tuple[ConversationItem, ...] = ()
    messages: tuple[Message, ...] = ()
    cut: bool = False
    usage: TokenUsage = TokenUsage()
    answer: str | None = None
    outcomes: dict[int, CallOutcome] = {}
    handoff: int | None = None
    span: OpenSpan | None = None


class ToolState(JsonModel):
    """A tool that is used by itself, while the call waits for a person."""

    kind: Literal["tool"]


class TeamState(JsonModel):
    """A team after some turns; ``interrupted_turn`` is the open turn of the member at index ``interrupted_member``.

    ``last_speaker`` is the index of the member that spoke last and ``verdict`` the evaluation of its turn. ``said`` and
    ``repeated`` serve to detect a stall. ``strategy_state`` is the strategy's own state, as JSON. ``unevaluated`` is an
    evaluation that has failed.
    """

    kind: Literal["team"]
    so_far: TurnResult
    turns: int | None = None
    last_speaker: int | None = None
    verdict: EvaluateResult = EvaluateResult()
    said: dict[str, tuple[str, ...]] = {}
    repeated: int = 0
    strategy_state: JsonObject = {}
    interrupted_member: int | None = None
    interrupted_turn: AgentState | None = None
    unevaluated: EvaluateRequest | None = None


class PanelProgress(JsonModel):
    """The state of a panel whose own messages begin after ``begun``.

    ``waiting`` are the indexes of the members that have yet to speak in ``round``; ``criticized`` is the last round
    with a critique; ``done``: the moderator has ended the debate; ``warned`` are the members for which the log has the
    warning that they return no text. ``judged``: the judge has spoken. ``speaking`` is the role of the speaker during
    whose turn the run has continued as new; a member is the first one in ``waiting``.
    """

    begun: Head
    round: int = 0
    waiting: tuple[int, ...] = ()
    criticized: int = 0
    done: bool = False
    warned: tuple[str, ...] = ()
    judged: bool = False
    speaking: SpeakerRole | None = None


class ParallelState(JsonModel):
    """The state of a parallel team of which some members have yet to finish; all of them began after ``before``.

    ``spoken`` are the indexes of those that have finished.
    """

    before: Head
    spoken: tuple[int, ...] = ()
    answer: str = ""
    failed: int = 0
    failure: Failure | None = None


class QueryState(JsonModel):
    """A query with the results of its targets so far, by their index; ``until`` is its deadline.

    ``recalled`` is its place in the conversation that it continues, and ``turn`` the state of an agent's turn that it
    takes itself.
    """

    kind: Literal["query"]
    answers: dict[int, TurnResult]
    until: datetime | None = None
    recalled: RecallResult | None = None
    turn: AgentState | None = None


State = Annotated[AgentState | ToolState | TeamState | QueryState, Field(discriminator="kind")]


class Continuation(JsonModel):
    """The whole state of a run at continue-as-new.

    ``since`` is the start of the first run. ``unfinished`` are child runs that failed or were canceled, which a retry
    resumes: their ids, and the run ids of their first executions. The names of these fields are stored in histories.
    """

    pinned: Pinned
    since: datetime
    unfinished: dict[str, str] = {}
    stop_request: StopRequest | None = None
    session: JsonObject = {}
    inbox: InboxState | None = None
    decisions: DecisionsState | None = None
    state: State


CLIENT_FIELDS = frozenset(
    {"name", "team", "agent", "model", "tool", "namespace", "spec", "input", "resources", "session", "after", "retries"}
)
"""The fields of a run's input that a client may set. All others come from Baton's own workflows."""


class QueryInput(JsonModel):
    """The input of the workflow ``query``: ``{"spec": {...}}`` or ``{"name": "..."}``.

    ``resources`` are inline manifests, ``session`` the initial values of the session. With ``after``, the ``head`` in
    the status of an earlier run, the question follows that exact place in its conversation, and no Memory is used.
    After continue-as-new, ``carried`` replaces them. ``{"retries": "RUN-ID"}`` resumes a failed run of the same
    workflow id.
    """

    name: str | None = None
    namespace: str = "default"
    spec: JsonObject | None = None
    resources: tuple[JsonObject, ...] = ()
    session: JsonObject = {}
    after: Head | None = None
    retries: str | None = None
    carried: Continuation | None = None

    @model_validator(mode="after")
    def _spec_or_name(self) -> Self:
        if self.name is None and self.spec is None and self.retries is None:
            raise ValueError('a query needs {"spec": {...}} or {"name": "..."}')
        return self

    def after_head(self, head: Head) -> "QueryInput":
        """The same, with a question that follows this place in a conversation."""
        return self.model_copy(update={"after": head})

    def continued_with(self, carried: Continuation) -> "QueryInput":
        """The input of the next run at continue-as-new."""
        return QueryInput(name=self.name or "query", namespace=self.namespace, carried=carried)


class TurnInput(JsonModel):
    """The input of the workflows ``agent``, ``model`` and ``tool``, and of every strategy.

    A client passes ``{"team": "name", "input": "text"}`` (or ``agent``, ``model``, ``tool``), optionally with
    ``resources`` (inline manifests) and ``session`` (values). A parent workflow passes the name, the ``thread`` of the
    turn, the beginning of the ``question`` for display, and ``stop`` and ``pause`` if it has received such requests.
    To an agent that is a member of a team it passes what is ``pinned`` for it, the number of the ``turn``, and the
    limit of ``turns``. With ``gives_up``, the parent continues without the run if a server that the run needs fails.
    It reads the result of a failed turn from the failure of the run. After continue-as-new, ``carried`` replaces the
    input. With ``retries``, the run id of a failed run of the same workflow id, the run resumes that one; a client
    then passes nothing else.
    """

    team: str | None = None
    agent: str | None = None
    model: str | None = None
    tool: str | None = None
    namespace: str = "default"
    input: str | None = None
    resources: tuple[JsonObject, ...] = ()
    thread: Thread | None = None
    session: JsonObject = {}
    question: str | None = None
    stop: StopRequest | None = None
    pause: Pause | None = None
    pinned: Pinned | None = None
    turn: int | None = None
    turns: int | None = None
    gives_up: bool = False
    retries: str | None = None
    carried: Continuation | None = None

    @model_validator(mode="after")
    def _one_target_and_an_input(self) -> Self:
        if self.retries is not None:
            return self
        if sum(name is not None for name in self._named().values()) != 1:
            raise ValueError('a turn needs one of {"team": "name"}, {"agent": …}, {"model": …} and {"tool": …}')
        if self.carried is None and (self.input is None) == (self.thread is None):
            raise ValueError('a turn needs {"input": "text"}')
        return self

    def continued_with(self, carried: Continuation) -> "TurnInput":
        """The input of the next run at continue-as-new."""
        return TurnInput(
            team=self.team,
            agent=self.agent,
            model=self.model,
            tool=self.tool,
            namespace=self.namespace,
            thread=self.thread,
            question=self.question,
            turn=self.turn,
            turns=self.turns,
            gives_up=self.gives_up,
            carried=carried,
        ).without_defaults

    def for_child(
        self,
        session: JsonObject,
        stop: StopRequest | None,
        pause: Pause | None,
        question: str,
        *,
        gives_up: bool,
        retries: str | None,
    ) -> "TurnInput":
        """The input of a child workflow, with the requests that its parent has received until now.

        ``retries`` is the first run id of the failed child run that it resumes.
        """
        changes = {
            "session": session,
            "stop": stop,
            "pause": pause,
            "question": question or None,
            "gives_up": gives_up,
            "retries": retries,
        }
        return self.model_copy(update=changes).without_defaults

    def _named(self) -> dict[TargetType, str | None]:
        return {"team": self.team, "agent": self.agent, "model": self.model, "tool": self.tool}

    @property
    def kind(self) -> TargetType:
        """The kind of the target; that of a retry is known once the failed run has been read."""
        return next((kind for kind, name in self._named().items() if name is not None), "agent")

    @property
    def name(self) -> str:
        """The name of the team, agent, model or tool."""
        return self._named()[self.kind] or ""


class FailedRun(JsonModel):
    """The state in the input of a retry, which the activity ``read_failed_run`` returns."""

    carried: Continuation | None = None

    @property
    def pinned(self) -> Pinned | None:
        """The manifests of the failed run; None if it could not be pinned."""
        return self.carried.pinned if self.carried else None

    @property
    def usage(self) -> TokenUsage:
        """The usage of what the retry does not do again."""
        match self.carried and self.carried.state:
            case AgentState(usage=usage):
                return usage
            case TeamState(so_far=so_far, interrupted_turn=turn):
                return so_far.usage + (turn.usage if turn else TokenUsage())
            case QueryState(answers=answers, turn=turn):
                return sum((answer.usage for answer in answers.values()), turn.usage if turn else TokenUsage())
        return TokenUsage()

    @property
    def head(self) -> Head | None:
        """The place in the conversation where the failed run began; None if it has no rows."""
        return self.pinned.thread.head if self.pinned and self.pinned.thread.head.id else None
