"""What does a run hand on when it goes on in a new one? One small value, as large after 10,000 turns as after ten."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ...resources.base import JsonModel, JsonObject
from ..failure import Failure
from ..messages.message import Head, Message, TokenUsage
from ..messages.turn import StopReason, TurnResult
from .requests import AskModelResult, EvaluateResult, Pinned


class StopRequest(JsonModel):
    """What was asked of a run from outside: to stop, why, and whether at once."""

    reason: StopReason
    note: str | None = None
    now: bool = False


class InboxState(JsonModel):
    """What people have said to a run that has yet to join its conversation, and whether it is to wait."""

    paused: bool = False
    waiting: tuple[Message, ...] = ()


class AgentState(JsonModel):
    """An agent in the midst of its turn: how often it has asked, and how many calls of its last reply are ``done``.

    ``refused`` counts its answers in a wrong form.

    ``reply`` is there where some of its calls are not. All that was said stands in the conversation up to ``head``.
    """

    kind: Literal["agent"]
    head: Head
    asked: int
    refused: int = 0
    reply: AskModelResult | None = None
    done: int = 0
    ends: bool = False
    messages: tuple[Message, ...] = ()
    usage: TokenUsage = TokenUsage()
    answer: str | None = None


class TeamState(JsonModel):
    """A discussion after some turns, or (with ``midst``) in the midst of that of the member at ``heard``.

    ``said`` and ``repeated`` are what is watched for progress; ``kept`` is what a strategy keeps beside its turns.
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
    """What a panel keeps that began after ``begun``: its round, who has yet to speak in it, and what has been done.

    ``warned`` are those of whom it was told that they give no texts.
    """

    begun: Head
    round: int = 0
    waiting: tuple[int, ...] = ()
    criticized: int = 0
    done: bool = False
    warned: tuple[str, ...] = ()


class ParallelState(JsonModel):
    """What a team keeps whose members speak at once, all after ``before``, when not all of them have spoken yet."""

    before: Head
    answer: str = ""
    failed: int = 0
    failure: Failure | None = None


class QueryState(JsonModel):
    """A query of which some targets, by their places, have answered; ``until`` is when its time is up."""

    kind: Literal["query"]
    answers: dict[int, TurnResult]
    until: datetime | None = None


State = Annotated[AgentState | TeamState | QueryState, Field(discriminator="kind")]


class Continuation(JsonModel):
    """All that a run must know to go on where another one has stopped; ``since`` is when the first one began."""

    pinned: Pinned
    since: datetime
    wish: StopRequest | None = None
    session: JsonObject = {}
    floor: InboxState | None = None
    state: State
