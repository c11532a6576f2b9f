"""The inputs of the workflows, and the state that a run hands to the run that continues it."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ..resources.base import JsonModel, JsonObject
from ..resources.query import TargetType
from .control_messages import Pause
from .decisions import DecisionsState
from .errors import Failure
from .message import Head, Message, RowRange, TokenUsage
from .requests import AskModelResult, ConversationItem, EvaluateResult, Pinned, RecallResult
from .trace import OpenSpan
from .turn import StopReason, Thread, TurnResult

# Conversation length does not grow the state: the messages are in the journal.


class StopRequest(JsonModel):
    """A request to stop a run: the reason, a note, and whether activities in progress are canceled (``now``)."""

    reason: StopReason
    note: str | None = None
    now: bool = False


class InboxState(JsonModel):
    """Messages from people that are not in the conversation yet, and since when and by whom the run is paused."""

    pause: Pause | None = None
    waiting: tuple[Message, ...] = ()


class CallOutcome(JsonModel):
    """The result of a tool call, in the rows after ``after`` up to ``head``; without ``head`` it is not written yet."""

    message: Message
    after: Head
    head: Head | None = None
    ends: bool = False

    @property
    def item(self) -> ConversationItem:
        """What joins the conversation."""
        return RowRange(after=self.after, to=self.head) if self.head else self.message


class AgentState(JsonModel):
    """An agent in the middle of its turn.

    ``model_calls`` counts its model calls and ``rejected`` its answers that did not fit the output schema. ``reply`` is
    the last reply if some of its tool calls are not done yet; ``done`` counts those that are. All messages of the turn
    are in the conversation up to ``head``; ``messages`` are the latest of them; with ``cut`` there are earlier ones.
    ``outcomes`` are those of calls, by their number, that are done while others of the same message wait for a person.
    ``span`` is that of the turn, where traces are reported.
    """

    kind: Literal["agent"]
    head: Head
    model_calls: int
    rejected: int = 0
    reply: AskModelResult | None = None
    done: int = 0
    ends: bool = False
    messages: tuple[Message, ...] = ()
    cut: bool = False
    usage: TokenUsage = TokenUsage()
    answer: str | None = None
    outcomes: dict[int, CallOutcome] = {}
    span: OpenSpan | None = None


class TeamState(JsonModel):
    """A team after some turns; ``interrupted_turn`` is the open turn of the member at index ``interrupted_member``.

    ``last_speaker`` is the index of the member that spoke last and ``verdict`` the evaluation of its turn. ``said`` and
    ``repeated`` serve to detect a stall. ``strategy_state`` is the strategy's own state, as JSON.
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


class PanelProgress(JsonModel):
    """The state of a panel whose own messages begin after ``begun``.

    ``waiting`` are the indexes of the members that have yet to speak in ``round``; ``criticized`` is the last round
    with a critique; ``done`` tells that the moderator has ended the debate; ``warned`` are the members for which a
    warning was logged that they return no text.
    """

    begun: Head
    round: int = 0
    waiting: tuple[int, ...] = ()
    criticized: int = 0
    done: bool = False
    warned: tuple[str, ...] = ()


class ParallelState(JsonModel):
    """The state of a parallel team of which some members have yet to finish; all of them began after ``before``."""

    before: Head
    answer: str = ""
    failed: int = 0
    failure: Failure | None = None


class QueryState(JsonModel):
    """A query with the results of its targets so far, by their index; ``until`` is its deadline.

    ``recalled`` is its place in the conversation that it goes on with, and ``turn`` the state of the turn that it takes
    itself.
    """

    kind: Literal["query"]
    answers: dict[int, TurnResult]
    until: datetime | None = None
    recalled: RecallResult | None = None
    turn: AgentState | None = None


State = Annotated[AgentState | TeamState | QueryState, Field(discriminator="kind")]


class Continuation(JsonModel):
    """All that the next run needs.

    ``since`` is the start of the first run. The names of these fields are stored in histories.
    """

    pinned: Pinned
    since: datetime
    stop_request: StopRequest | None = None
    session: JsonObject = {}
    inbox: InboxState | None = None
    decisions: DecisionsState | None = None
    state: State


class QueryInput(JsonModel):
    """The input of the workflow ``query``: ``{"spec": {...}}`` or ``{"name": "..."}``.

    ``resources`` are manifests that come with the query, ``session`` the first values of the session. After
    continue-as-new, ``carried`` stands in place of them.
    """

    name: str | None = None
    namespace: str = "default"
    spec: JsonObject | None = None
    resources: tuple[JsonObject, ...] = ()
    session: JsonObject = {}
    carried: Continuation | None = None

    @model_validator(mode="after")
    def _something_to_ask(self) -> Self:
        if self.name is None and self.spec is None:
            raise ValueError('a query needs {"spec": {...}} or {"name": "..."}')
        return self

    def continued_with(self, carried: Continuation) -> "QueryInput":
        """The input of the next run at continue-as-new."""
        return QueryInput(name=self.name or "query", namespace=self.namespace, carried=carried)


class TurnInput(JsonModel):
    """The input of the workflows ``agent``, ``model`` and ``tool``, and of every strategy.

    A client gives ``{"team": "name", "input": "text"}`` (or ``agent``, ``model``, ``tool``), and may add ``resources``
    (manifests) and ``session`` (values). A parent workflow gives the name and the ``thread`` of the turn, and the
    beginning of the ``question``, to be shown; ``stop`` and ``pause`` where it was asked for them before. It reads the
    result of a turn that failed from the failure of the run. After continue-as-new, ``carried`` stands in place of the
    input.
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
    carried: Continuation | None = None

    @model_validator(mode="after")
    def _somebody_and_something(self) -> Self:
        if sum(each is not None for each in self._named().values()) != 1:
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
            carried=carried,
        ).without_defaults

    def for_child(
        self, session: JsonObject, stop: StopRequest | None, pause: Pause | None, question: str
    ) -> "TurnInput":
        """The input of a child workflow, with what its parent was asked for until now."""
        own = {"session": session, "stop": stop, "pause": pause, "question": question or None}
        return self.model_copy(update=own).without_defaults

    def _named(self) -> dict[TargetType, str | None]:
        return {"team": self.team, "agent": self.agent, "model": self.model, "tool": self.tool}

    @property
    def kind(self) -> TargetType:
        """Which of the four is given."""
        return next(kind for kind, name in self._named().items() if name is not None)

    @property
    def name(self) -> str:
        """The name of the team, agent, model or tool."""
        return self._named()[self.kind] or ""
