"""What can happen in a run? Runs and calls that begin and end, as their histories tell it."""

import re
from dataclasses import dataclass
from datetime import datetime

from ...conversation.contracts.panel_requests import BriefRequest, PerformRequest, PerformResult, SpeakerBrief
from ...conversation.contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    Pinned,
    SelectRequest,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...conversation.contracts.status import Phase
from ...conversation.failure import Failure
from ...conversation.messages.message import Head, Message, TokenUsage
from ...conversation.messages.turn import StopReason

CallRequest = AskModelRequest | UseToolRequest | SelectRequest | BriefRequest | PerformRequest | AppendRequest
CallReply = Pinned | AskModelResult | UseToolResult | SelectResult | PerformResult | Head


@dataclass(frozen=True)
class RunInfo:
    """A run: its workflow's type, and the query, team, agent, model or tool that it is of. A child run has a parent.

    ``run_id`` is the one in whose history something happened; ``first``, if it is another, the one in which it began.
    What is said in a ``hidden`` one is not shown.
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
        """What tells it from all other runs, however often it goes on in a new one."""
        return self.continued_from or self.run_id

    @property
    def turn(self) -> int:
        """Which turn of its team it takes, as its id tells; 0 where it takes none."""
        return self._place(r"turn-(\d+)")

    @property
    def round(self) -> int:
        """In which round of its panel it takes a turn, as its id tells; 0 where it takes none."""
        return self._place(r"round-(\d+)/\d+")

    def _place(self, pattern: str) -> int:
        place = re.search(f"/{pattern}/[^/]*$", self.id)
        return int(place[1]) if place else 0

    @property
    def root(self) -> "RunInfo":
        """The run that was started from outside."""
        return self.parent.root if self.parent else self


@dataclass(frozen=True)
class ActivityCall:
    """A call of an activity. ``what`` is the model that is asked, or what is used, with its ``arguments``.

    In a panel, ``brief`` is what it is made on, and ``seat`` the name of the member that makes it. What comes of a
    ``hidden`` one is not shown.
    """

    id: str
    activity_type: str
    scheduled_at: datetime
    request: CallRequest | None = None
    name: str = ""
    arguments: str = ""
    brief: SpeakerBrief | None = None
    member: str = ""
    hidden: bool = False

    @property
    def speaker(self) -> str:
        """The name of who speaks, uses a tool or selects; empty for a call of another kind."""
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
        """The same if it is an agent; empty for a model or a tool that is asked by itself."""
        match self.request:
            case AskModelRequest(speaker=speaker) | UseToolRequest(speaker=speaker) if not speaker.startswith(
                ("Model/", "Tool/")
            ):
                return self.speaker
        return ""


@dataclass(frozen=True)
class RunStarted:
    """A run has begun, or goes on after runs of which no history is left, with what was ``pinned`` in them."""

    run: RunInfo
    at: datetime
    pinned: Pinned | None = None


@dataclass(frozen=True)
class CallScheduled:
    """A call is wanted; a worker takes it up as soon as it can."""

    run: RunInfo
    at: datetime
    call: ActivityCall


@dataclass(frozen=True)
class CallEnded:
    """A call was answered, or has failed for good, or (with neither) was given up.

    ``said`` are the messages that have become part of the conversation by it, as whoever listens hears them.
    """

    run: RunInfo
    at: datetime
    call: ActivityCall
    attempts: int = 1
    reply: CallReply | None = None
    failure: Failure | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class RunEnded:
    """A run is over; ``turns`` are those of a team."""

    run: RunInfo
    at: datetime
    phase: Phase
    stop_reason: StopReason | None = None
    note: str | None = None
    failure: Failure | None = None
    turns: int | None = None


RunEvent = RunStarted | CallScheduled | CallEnded | RunEnded


def token_usage(happening: RunEvent) -> TokenUsage:
    """What a happening has cost."""
    match happening:
        case CallScheduled(call=ActivityCall(request=UseToolRequest() | PerformRequest())):
            return TokenUsage(tool_calls=1)
        case CallEnded(reply=AskModelResult(message=message)):
            return (message.usage or TokenUsage()) + TokenUsage(model_calls=1)
        case CallEnded(reply=SelectResult(usage=usage)):
            return usage
    return TokenUsage()
