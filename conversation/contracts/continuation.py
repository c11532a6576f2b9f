"""The value that a run passes to its next run at continue-as-new: all of its state.

Its size does not depend on the number of turns: the messages stand in the journal.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ...resources.base import JsonModel, JsonObject
from ..failure import Failure
from ..messages.message import Head, Message, Span, TokenUsage
from ..messages.turn import StopReason, TurnResult
from .control_messages import Pause
from .decisions import DecisionsState
from .memory_requests import RecallResult
from .requests import AskModelResult, ConversationItem, EvaluateResult, Pinned
from .traces import OpenSpan


class StopRequest(JsonModel):
    """A request to stop a run: the reason, a note, and whether activities in progress are canceled (``now``)."""

    reason: StopReason
    note: str | None = None
    now: bool = False


class InboxState(JsonModel):
    """Messages from people that are not in the conversation yet, and whether and by whom the run is paused."""

    paused: bool = False
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
        return Span(after=self.after, to=self.head) if self.head else self.message


class AgentState(JsonModel):
    """An agent in the middle of its turn.

    ``asked`` counts its model calls and ``refused`` its answers that did not fit the output schema. ``reply`` is the
    last reply if some of its tool calls are not done yet; ``done`` counts those that are. All messages of the turn are
    in the conversation up to ``head``; ``messages`` are the latest of them, and ``cut`` tells that they are not all.
    ``outcomes`` are those of calls, by their number, that are done while others of the same message wait for a person.
    ``span`` is that of the turn, where traces are reported.
    """

    kind: Literal["agent"]
    head: Head
    asked: int
    refused: int = 0
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
    """A team after some turns; with ``midst`` in the middle of the turn of the member at index ``heard``.

    ``seat`` is the index of the member that spoke last and ``verdict`` the evaluation of its turn. ``said`` and
    ``repeated`` serve to detect a stall. ``kept`` is the strategy's own state, as JSON.
    """

    kind: Literal["team"]
    so_far: TurnResult
    turns: int | None = None
    seat: int | None = None
    verdict: EvaluateResult = EvaluateResult()
    said: dict[str, tuple[str, ...]] = {}
    repeated: int = 0
    kept: JsonObject = {}
    heard: int | None = None
    midst: AgentState | None = None


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

    ``since`` is the start of the first run, ``wish`` a stop request, ``floor`` the inbox. The names of these fields are
    stored in histories and must not change.
    """

    pinned: Pinned
    since: datetime
    wish: StopRequest | None = None
    session: JsonObject = {}
    floor: InboxState | None = None
    decisions: DecisionsState | None = None
    state: State
