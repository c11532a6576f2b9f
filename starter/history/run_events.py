"""The run events: the start and the end of runs and of activity calls, as recorded in histories."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ...contracts.decisions import AskPersonRequest, AskPersonResult, DecisionKind, GrantRequest
from ...contracts.errors import CallTimeout, Failure
from ...contracts.inputs import Continuation, FailedRun, ForkedRun
from ...contracts.message import Head, Message, PersonDecision, TokenUsage
from ...contracts.panel import BriefRequest, PerformRequest, PerformResult, SpeakerBrief
from ...contracts.plan import TeamPlan
from ...contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    CheckedArguments,
    EvaluateRequest,
    EvaluateResult,
    Pinned,
    RecallRequest,
    RecallResult,
    RememberRequest,
    RememberResult,
    ReviewResult,
    SelectRequest,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...contracts.status import Phase
from ...contracts.turn import StopReason, TurnResult
from ...resources.approval import Approvers
from ...resources.base import JsonObject

CallRequest = (
    AskModelRequest
    | UseToolRequest
    | SelectRequest
    | BriefRequest
    | PerformRequest
    | AppendRequest
    | AskPersonRequest
    | RecallRequest
    | RememberRequest
    | GrantRequest
    | EvaluateRequest
)
CallResult = (
    Pinned
    | FailedRun
    | AskModelResult
    | UseToolResult
    | ReviewResult
    | CheckedArguments
    | SelectResult
    | PerformResult
    | Head
    | AskPersonResult
    | RecallResult
    | RememberResult
    | EvaluateResult
)

PINNING = ("pin", "read_failed_run", "read_fork")
"""The activity types whose result has the plan of a run."""

REQUEST_TYPES: dict[str, type[CallRequest]] = {
    "ask_model": AskModelRequest,
    "execute_agent": AskModelRequest,
    "use_tool": UseToolRequest,
    "review": UseToolRequest,
    "delegate": UseToolRequest,
    "check_arguments": UseToolRequest,
    "select": SelectRequest,
    "brief": BriefRequest,
    "perform": PerformRequest,
    "append": AppendRequest,
    "ask_person": AskPersonRequest,
    "recall": RecallRequest,
    "remember": RememberRequest,
    "grant": GrantRequest,
    "evaluate": EvaluateRequest,
}
"""The type of the request, by activity type; the requests of other activities are not decoded."""

RESULT_TYPES: dict[str, type[CallResult]] = {
    "pin": Pinned,
    "read_failed_run": FailedRun,
    "read_fork": ForkedRun,
    "ask_model": AskModelResult,
    "execute_agent": AskModelResult,
    "use_tool": UseToolResult,
    "review": ReviewResult,
    "check_arguments": CheckedArguments,
    "select": SelectResult,
    "perform": PerformResult,
    "append": Head,
    "ask_person": AskPersonResult,
    "recall": RecallResult,
    "remember": RememberResult,
    "evaluate": EvaluateResult,
}
"""The type of the result, by activity type; the results of other activities are not decoded."""


RequestKind = Literal["pause", "resume", "steer", "session", "terminate_team", "cancel"]
"""The requests of clients to an open run."""


@dataclass(frozen=True)
class RunInfo:
    """A run: its ids, its workflow type, and the resource that it runs.

    ``kind`` is ``query``, ``team``, ``agent``, ``model`` or ``tool``, and ``name`` and ``namespace`` are those of the
    resource. ``run_id`` is the execution whose history is read; ``continued_from`` is the first execution if the run
    has continued as new, otherwise empty. A child run has a ``parent``. Messages of a ``hidden`` run are not shown.
    """

    id: str
    run_id: str
    type: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = "default"
    parent: "RunInfo | None" = None
    continued_from: str = ""
    hidden: bool = False

    @property
    def first_run_id(self) -> str:
        """The id of the first execution, which does not change at continue-as-new."""
        return self.continued_from or self.run_id

    @property
    def turn(self) -> int:
        """The turn of its team that this child run takes, read from its id; 0 if it takes none."""
        return self._number_in_id(r"turn-(\d+)")

    @property
    def team(self) -> "RunInfo | None":
        """The team's run: this one, or the one above if this one takes an agent's turn in it."""
        if self.kind == "team":
            return self
        takes_turn = self.parent is not None and self.parent.kind == "team" and self.turn > 0
        return self.parent if takes_turn else None

    @property
    def round(self) -> int:
        """The round of its panel in which this child run takes a turn, read from its id; 0 if it takes none."""
        return self._number_in_id(r"round-(\d+)/\d+")

    def _number_in_id(self, pattern: str) -> int:
        match = re.search(f"/{pattern}/[^/]*$", self.id)
        return int(match[1]) if match else 0

    @property
    def root(self) -> "RunInfo":
        """The root run, which a client has started."""
        return self.parent.root if self.parent else self


@dataclass(frozen=True)
class ActivityCall:
    """A call of an activity.

    ``name`` is the called model, tool or function; ``arguments`` are those of a tool, and ``tool_call`` is the model's
    id of the call, empty if a tool is the target of a query. In a panel, ``brief`` is the speaker's brief and
    ``member`` the name of the calling member. The result of a ``hidden`` call is not shown. ``earlier`` is the number
    of attempts before the call waited, as in an outage, and was made again with the same id.
    """

    id: str
    activity_type: str
    scheduled_at: datetime
    request: CallRequest | None = None
    name: str = ""
    arguments: str = ""
    tool_call: str = ""
    brief: SpeakerBrief | None = None
    member: str = ""
    hidden: bool = False
    earlier: int = 0

    @property
    def speaker(self) -> str:
        """The name of the member that speaks, calls a tool or selects; empty for other activities."""
        match self.request:
            case AskModelRequest() | UseToolRequest() if self.member:
                return self.member
            case AskModelRequest(speaker=speaker) | UseToolRequest(speaker=speaker):
                return speaker.rpartition("/")[2]
            case PerformRequest(name=name):
                return name
            case SelectRequest():
                return "selector"
        return ""

    @property
    def agent(self) -> str:
        """The name of the calling agent; empty if a model or a tool is the target of a query itself."""
        match self.request:
            case AskModelRequest(speaker=speaker) | UseToolRequest(speaker=speaker):
                return "" if speaker.startswith(("Model/", "Tool/")) else self.speaker
        return ""


@dataclass(frozen=True)
class RunStarted:
    """A run has started.

    ``pinned`` is what its parent has pinned for it, or, if Temporal has deleted its first executions, their result of
    ``pin``.
    """

    run: RunInfo
    at: datetime
    pinned: Pinned | None = None


@dataclass(frozen=True)
class RunContinued:
    """A reader begins with a later execution of the run, which has ``carried`` this state from the earlier ones.

    It is no event of the run, and readers that begin with its first execution don't receive it.
    """

    run: RunInfo
    at: datetime
    carried: Continuation


@dataclass(frozen=True)
class CallScheduled:
    """An activity was scheduled."""

    run: RunInfo
    at: datetime
    call: ActivityCall


@dataclass(frozen=True)
class CallEnded:
    """An activity completed (``result``), finally failed (``failure``) or was canceled (neither).

    ``messages`` are the visible messages that it has added to the conversation, ``numbers`` their places in it, from 1.
    """

    run: RunInfo
    at: datetime
    call: ActivityCall
    attempts: int = 1
    result: CallResult | None = None
    failure: Failure | None = None
    messages: tuple[Message, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChildStarted:
    """The run has started a child run."""

    run: RunInfo
    at: datetime
    child: RunInfo


@dataclass(frozen=True)
class ChildEnded:
    """A child run has ended, with its result; without one it was canceled, or has failed in Temporal (``failure``)."""

    run: RunInfo
    at: datetime
    child: RunInfo
    result: TurnResult | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class RunReset:
    """The run was reset in Temporal: what happened in it after ``since`` is taken back."""

    run: RunInfo
    at: datetime
    since: datetime


@dataclass(frozen=True)
class RunEnded:
    """A run has ended. ``turns`` is the number of turns of a team, if its result contains it, like ``usage``.

    ``member_failures`` did not fail their team; ``notices`` are those of the status.
    """

    run: RunInfo
    at: datetime
    phase: Phase
    stop_reason: StopReason | None = None
    note: str | None = None
    failure: Failure | None = None
    turns: int | None = None
    usage: TokenUsage | None = None
    member_failures: tuple[Failure, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class RequestReceived:
    """A client's request to a run, by a signal, an update or Temporal's cancellation.

    ``kind`` is the name of the signal or the update. ``by`` is the person's name in the request, or otherwise the
    identity of the client. ``data`` is ``{text}`` for ``steer``, ``{changes}`` for ``session``, ``{reason, now}`` for
    ``terminate_team``, ``{reason}`` for ``cancel``; empty for ``pause`` and ``resume``.
    """

    run: RunInfo
    at: datetime
    kind: RequestKind
    by: str
    data: JsonObject


@dataclass(frozen=True)
class DecisionRequested:
    """A decision is pending.

    ``arguments`` depends on ``kind``: for an ``approval`` and a ``client_tool`` those of the tool call; for a
    ``question`` its text, where ``who`` is a member of the team or the agent in whose call a server asks, and
    ``authorizes`` is that of the ``Question``; for a ``budget`` the reached limit, where ``who`` is the owner. ``id``
    is that of the decision; for a budget ``RUN/CALL``, as the history has no id for it, but the ``rule``.
    """

    run: RunInfo
    at: datetime
    call: ActivityCall
    id: str
    arguments: str
    kind: DecisionKind = "approval"
    who: str = ""
    authorizes: bool = False
    approvers: tuple[Approvers, ...] = ()
    rule: str = ""


@dataclass(frozen=True)
class DecisionMade:
    """A pending decision was made; it is in the history once the run continues with the call."""

    run: RunInfo
    at: datetime
    pending: DecisionRequested
    decision: PersonDecision


RunEvent = (
    RunStarted
    | RunContinued
    | RequestReceived
    | CallScheduled
    | CallEnded
    | ChildStarted
    | ChildEnded
    | DecisionRequested
    | DecisionMade
    | RunReset
    | RunEnded
)


def token_usage(event: RunEvent) -> TokenUsage:
    """The usage that an event adds: a model call counts when it is answered, a tool call also when it failed.

    A retry begins with the usage of the failed run, and a fork with that of the forked run up to its place.
    """
    match event:
        case CallEnded(call=ActivityCall(request=UseToolRequest() | PerformRequest())) if event.result or (
            event.failure and not is_deferred(event)
        ):
            return TokenUsage(tool_calls=1)
        case CallEnded(result=AskModelResult() | SelectResult() | FailedRun() as result):
            return result.usage
    return TokenUsage()


def is_deferred(ended: CallEnded) -> bool:
    """Whether a call was prevented by an open circuit breaker, or by a budget that a person may raise."""
    failure = ended.failure
    return failure is not None and (failure.wait is not None or bool(failure.budget and failure.budget.asks))


def may_be_repeated(ended: CallEnded, plan: TeamPlan | None) -> bool:
    """Whether the run of a team may call a function again in the same turn: also if no worker has finished the call.

    A parallel team that continues without members that fail waits for no worker of theirs, but for its aggregator's.
    """
    match ended.call.request, plan:
        case PerformRequest(turn=int(turn)), TeamPlan(strategy="parallel", on_member_error="continue", members=members):
            if turn <= len(members):
                return is_deferred(ended)
    failure = ended.failure
    return is_deferred(ended) or (failure is not None and failure.type == CallTimeout.__name__)
