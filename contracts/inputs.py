"""The inputs of the workflows, and the state that a run passes to its successor at continue-as-new."""

from collections.abc import Mapping, Sequence
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

    ``last_speaker`` is the index of the member that spoke last, which has been ``silent`` if it has said nothing, and
    ``verdict`` the evaluation of its turn. ``said`` and ``repeated`` serve to detect a stall. ``strategy_state`` is the
    strategy's own state, as JSON. ``unevaluated`` is an evaluation that has failed.
    """

    kind: Literal["team"]
    so_far: TurnResult
    turns: int | None = None
    last_speaker: int | None = None
    silent: bool = False
    verdict: EvaluateResult = EvaluateResult()
    said: dict[str, tuple[str, ...]] = {}
    repeated: int = 0
    strategy_state: JsonObject = {}
    interrupted_member: int | None = None
    interrupted_turn: AgentState | None = None
    unevaluated: EvaluateRequest | None = None

    def before_turn(self, member: int | None) -> "TeamState":
        """The state before the open turn; if ``member`` is None, the strategy chooses again whose turn it is."""
        return self.model_copy(update={"interrupted_turn": None, "interrupted_member": member})

    def on_thread(self, thread: Thread) -> "TeamState":
        """The state whose failed evaluation is repeated with the catalog and the accounts of ``thread``."""
        if self.unevaluated is None:
            return self
        return self.model_copy(update={"unevaluated": self.unevaluated.on_thread(thread)})


class PanelProgress(JsonModel):
    """The state of a panel whose own messages begin after ``begun``.

    ``waiting`` are the indexes of the members that have yet to speak in ``round``; ``criticized`` is the last round
    with a critique; ``done``: the moderator has ended the debate; ``warned`` are the members for which the log has the
    warning that they return no text. ``judged``: the judge has spoken; ``delivered``: the answer has been produced.
    ``speaking`` is the role of the speaker during
    whose turn the run has continued as new; a member is the first one in ``waiting``.
    """

    begun: Head
    round: int = 0
    waiting: tuple[int, ...] = ()
    criticized: int = 0
    done: bool = False
    warned: tuple[str, ...] = ()
    judged: bool = False
    delivered: bool = False
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
    takes itself. ``added`` are the places up to which failed runs that it retries have added their messages there.
    """

    kind: Literal["query"]
    answers: dict[int, TurnResult]
    until: datetime | None = None
    recalled: RecallResult | None = None
    turn: AgentState | None = None
    added: tuple[Head, ...] = ()

    @property
    def in_fork(self) -> "QueryState":
        """The state of a fork, which adds all its messages: it is a run of its own."""
        return self.model_copy(update={"added": ()})

    def on_thread(self, thread: Thread) -> "QueryState":
        """The state whose place in its conversation has the catalog and the accounts of ``thread``."""
        if self.recalled is None:
            return self
        return self.model_copy(update={"recalled": self.recalled.on_thread(thread)})


State = Annotated[AgentState | ToolState | TeamState | QueryState, Field(discriminator="kind")]


class ForkPoint(JsonModel):
    """The moment in a tree of runs at which a fork begins.

    In the run with the workflow id ``run`` it is after the workflow task that the history event ``event`` of the
    execution ``run_id`` has completed; in the other runs of the tree it is the time ``at``.
    """

    run: str
    run_id: str
    event: int
    at: datetime


class Fork(JsonModel):
    """The run that a new run goes on from: its workflow id, the run id of one of its executions, and the point.

    Without a ``point`` it is the end of a failed run, before the call that has failed; ``run_id`` is then that of its
    last execution. ``say`` is the message of a person at the point, to the run in which the point is.
    """

    run: str
    run_id: str
    point: ForkPoint | None = None
    say: SteerRequest | None = None

    def of_child(self, run: str, run_id: str) -> "Fork":
        """The fork of a child run from the same point."""
        return Fork(run=run, run_id=run_id, point=self.point, say=self.say).without_defaults

    @property
    def has_point(self) -> bool:
        """Whether the point is in this run itself; the message of a person is for that one."""
        return self.point is None or self.point.run == self.run

    @property
    def is_above(self) -> bool:
        """Whether the point is in a run below this one."""
        return self.point is not None and self.point.run.startswith(f"{self.run}/")


class ForkRequest(JsonModel):
    """What a client passes to fork a run: where, and how users name that place in the run (``at``).

    ``changes`` are new values of fields of the run's manifests, as ``{"NAME.FIELD": value}``. ``pins_anew``: all
    manifests are those of the worker, as in the replay of a recording, instead of those that the run has pinned.
    """

    fork: Fork
    at: str
    changes: JsonObject = {}
    pins_anew: bool = False


class Continuation(JsonModel):
    """The whole state of a run at continue-as-new.

    ``since`` is the start of the first run. ``unfinished`` are child runs that failed or were canceled, which a retry
    resumes: their ids, and the run ids of their first executions. ``forks`` are, by the ids of child runs that this run
    will start, the runs that they go on from. ``first_run`` is the run id of the first one, by which the next one knows
    that the state is not a client's. The names of these fields are stored in histories.
    """

    pinned: Pinned
    since: datetime
    first_run: str | None = None
    unfinished: dict[str, str] = {}
    forks: dict[str, Fork] = {}
    stop_request: StopRequest | None = None
    session: JsonObject = {}
    inbox: InboxState | None = None
    decisions: DecisionsState | None = None
    state: State

    @property
    def usage(self) -> TokenUsage:
        """The usage of the run so far."""
        match self.state:
            case AgentState(usage=usage):
                return usage
            case TeamState(so_far=so_far, interrupted_turn=turn):
                return so_far.usage + (turn.usage if turn else TokenUsage())
            case QueryState(answers=answers, turn=turn):
                return sum((answer.usage for answer in answers.values()), turn.usage if turn else TokenUsage())
        return TokenUsage()

    def with_state(self, state: State) -> "Continuation":
        """The same with another state of its turn."""
        return self.model_copy(update={"state": state})

    def with_unread(self, messages: Sequence[SteerRequest]) -> "Continuation":
        """The same with these messages of people that nobody has read."""
        return self.model_copy(update={"inbox": InboxState(waiting=tuple(messages)) if messages else None})

    def in_fork(self, pinned: Pinned, forks: Mapping[str, Fork]) -> "Continuation":
        """The same in a fork, with what is pinned for it, and the runs that its child runs go on from."""
        state = self.state.in_fork if isinstance(self.state, QueryState) else self.state
        changed = {"pinned": pinned, "forks": {**forks}, "unfinished": {}, "state": state}
        return self.model_copy(update=changed).on_thread()

    def pinned_to(self, changed: Pinned) -> "Continuation":
        """The same state with the manifests of a fork that has changed some."""
        return self.model_copy(update={"pinned": self.pinned.changed_to(changed)}).on_thread()

    def on_thread(self) -> "Continuation":
        """The same state, in which requests that a run repeats have the catalog and the accounts that are pinned."""
        if isinstance(self.state, TeamState | QueryState):
            return self.with_state(self.state.on_thread(self.pinned.thread))
        return self


CLIENT_FIELDS = frozenset(
    {
        *("name", "team", "agent", "model", "tool", "namespace", "spec", "input", "resources", "session", "after"),
        *("retries", "forks", "redacted"),
    }
)
"""The fields of a run's input that a client may set. All others come from Baton's own workflows."""


class QueryInput(JsonModel):
    """The input of the workflow ``query``: ``{"spec": {...}}`` or ``{"name": "..."}``.

    ``resources`` are inline manifests, ``session`` the initial values of the session. With ``after``, the ``head`` in
    the status of an earlier run, the question follows that exact place in its conversation, and no Memory is used.
    After continue-as-new, ``carried`` replaces them. ``{"retries": "RUN-ID"}`` resumes a failed run of the same
    workflow id. With ``forks`` it goes on from another run; ``resources`` are then the manifests that are changed.
    ``redacted``: the client has redacted personal data, and a worker that does not must refuse the run.
    """

    name: str | None = None
    namespace: str = "default"
    spec: JsonObject | None = None
    resources: tuple[JsonObject, ...] = ()
    session: JsonObject = {}
    after: Head | None = None
    retries: str | None = None
    forks: ForkRequest | None = None
    redacted: bool = False
    carried: Continuation | None = None

    @model_validator(mode="after")
    def _spec_or_name(self) -> Self:
        if self.name is None and self.spec is None and self.retries is None and self.forks is None:
            raise ValueError('a query needs {"spec": {...}} or {"name": "..."}')
        return self

    def after_head(self, head: Head) -> "QueryInput":
        """The same, with a question that follows this place in a conversation."""
        return self.model_copy(update={"after": head})

    @property
    def fork(self) -> Fork | None:
        """The run that this one goes on from."""
        return self.forks.fork if self.forks else None

    def going_on_with(self, carried: Continuation) -> "QueryInput":
        """The input of a fork once the state of the forked run is known."""
        return self.continued_with(carried)

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
    then passes nothing else. With ``forks`` it goes on from another run, as a child of a fork does with ``child_fork``.
    ``redacted``: the client has redacted personal data, and a worker that does not must refuse the run.
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
    forks: ForkRequest | None = None
    child_fork: Fork | None = None
    redacted: bool = False
    carried: Continuation | None = None

    @model_validator(mode="after")
    def _one_target_and_an_input(self) -> Self:
        if self.retries is not None:
            return self
        if sum(name is not None for name in self._named().values()) != 1:
            raise ValueError('a turn needs one of {"team": "name"}, {"agent": …}, {"model": …} or {"tool": …}')
        if self.carried is None and self.forks is None and (self.input is None) == (self.thread is None):
            raise ValueError('a turn needs {"input": "text"}')
        return self

    @property
    def fork(self) -> Fork | None:
        """The run that this one goes on from."""
        return self.forks.fork if self.forks else self.child_fork

    def going_on_with(self, carried: Continuation) -> "TurnInput":
        """The input of a fork once the state of the forked run is known."""
        return self.model_copy(update={"carried": carried, "forks": None, "child_fork": None})

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
        fork: Fork | None = None,
    ) -> "TurnInput":
        """The input of a child workflow, with the requests that its parent has received until now.

        ``retries`` is the first run id of the failed child run that it resumes, and ``fork`` the run that it goes on
        from.
        """
        changes = {
            "session": session,
            "stop": stop,
            "pause": pause,
            "question": question or None,
            "gives_up": gives_up,
            "retries": retries,
            "child_fork": fork,
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
    def reply(self) -> AskModelResult | None:
        """The answer of a model whose tool calls the retry makes."""
        match self.carried and self.carried.state:
            case AgentState(reply=reply) | TeamState(interrupted_turn=AgentState(reply=reply)):
                return reply
            case QueryState(turn=AgentState(reply=reply)):
                return reply
        return None

    @property
    def usage(self) -> TokenUsage:
        """The usage of what the retry does not do again."""
        return self.carried.usage if self.carried else TokenUsage()

    @property
    def head(self) -> Head | None:
        """The place in the conversation where the failed run began; None if it has no rows."""
        return self.pinned.thread.head if self.pinned and self.pinned.thread.head.id else None


class ForkedRun(FailedRun):
    """The state from which a fork goes on, which the activity ``read_fork`` returns.

    A child run that had ended at the point has a ``result`` instead; one that had not begun yet has neither.
    """

    result: TurnResult | None = None

    @property
    def usage(self) -> TokenUsage:
        """The usage of what the fork does not do again."""
        return self.result.usage if self.result else super().usage

    @property
    def place(self) -> Head:
        """The last message of the conversation that the fork shares, as far as this run knows it."""
        match self.carried and self.carried.state:
            case AgentState() as turn:
                return _place_of(turn)
            case TeamState(so_far=so_far, interrupted_turn=turn):
                return _place_of(turn) if turn else so_far.head
            case QueryState(turn=AgentState() as turn):
                return _place_of(turn)
        return self.result.head if self.result else self.head or Head()


def _place_of(turn: AgentState) -> Head:
    """The last message of an open turn."""
    return turn.reply.head if turn.reply else turn.head


class ReadForkRequest(JsonModel):
    """``read_fork``: read the state of a run at the point of a fork.

    ``thread`` is that of a child run, which its parent has passed; a root run has none. ``at`` is how users name the
    place in the forked run.
    """

    fork: Fork
    at: str = ""
    thread: Thread | None = None
