"""What Baton's own protocol takes and returns."""

from typing import Literal

from pydantic import Field

from ...contracts.decisions import MAX_REASON
from ...contracts.message import TokenUsage
from ...contracts.text import MAX_MESSAGE
from ...resources.base import JsonModel, JsonObject, Text
from ..history.fork import FAILURE, MAX_PLACE
from .question import QuestionInput


class RequestBody(JsonModel, extra="forbid"):
    """A body of a request. An unknown field is refused: it may be a misspelled one."""


class TargetInfo(JsonModel):
    """A team or an agent that may be asked. ``strategy`` is that of a team.

    ``parameters`` are the names of the parameters that have to be given.
    """

    id: str
    kind: Literal["team", "agent"]
    name: str
    namespace: str
    description: str
    strategy: str | None = None
    parameters: list[str] = []


class StartRequest(RequestBody):
    """Asks a target: ``team/NAME``, ``agent/NAME``, or a name that only one of them has.

    ``input`` is a text, or a list of messages with texts, images and files, as in a Query.
    """

    target: Text
    input: QuestionInput
    parameters: dict[str, str] = {}
    session: JsonObject = {}
    conversation: str | None = None
    timeout: str | None = None
    budget: JsonObject | None = None


class StartedRunInfo(JsonModel):
    """A run: its id, its target, and its status."""

    id: str
    status: JsonObject


class ListedRunInfo(JsonModel):
    """A run in a list.

    ``team`` and ``strategy`` are those of its target, if that is a team, and ``question`` is its question in one line,
    truncated. ``caller`` is who has started it over this gateway, and ``protocol`` how. ``cost`` is in US dollars, once
    the run has ended.
    """

    id: str
    name: str | None = None
    namespace: str | None = None
    state: str
    start_time: str
    completion_time: str | None = None
    duration_seconds: float
    team: str | None = None
    strategy: str | None = None
    question: str | None = None
    caller: str | None = None
    protocol: str | None = None
    cost: float | None = None


class ProgressInfo(JsonModel):
    """How far a run is: ``turns``, ``tokens`` and ``cost`` so far, and how many decisions wait in it.

    ``message`` is the beginning of its latest message, or of its answer.
    """

    id: str
    phase: str
    turns: int
    tokens: int
    cost: float | None = None
    waits: int = 0
    message: str = ""


class ProgressList(JsonModel):
    """How far runs are, in no order; without those that can't tell."""

    runs: list[ProgressInfo]


class RunList(JsonModel):
    """The newest runs that the caller may see, or those ``before`` a cursor.

    ``before`` is the cursor from which older ones are read; none if all are listed. A page with a filter may have fewer
    runs than asked for, or none: a request searches a limited number of runs.
    """

    runs: list[ListedRunInfo]
    before: str | None = None


class TargetList(JsonModel):
    """What the caller may ask."""

    targets: list[TargetInfo]


class Waiting(JsonModel):
    """A decision or a question that waits for a person; ``root`` is the id of the run by which it is decided.

    ``refusal`` says why the caller may not decide, if so.
    """

    root: str
    decision: JsonObject
    refusal: str | None = None


class PendingInfo(JsonModel):
    """A decision or a question that waits for a person; ``refusal`` says why the caller may not decide, if so."""

    decision: JsonObject
    refusal: str | None = None


class InboxList(JsonModel):
    """All that waits for people, the oldest first."""

    waiting: list[Waiting]


class ConsoleInfo(JsonModel):
    """What the console shows beside the runs: its ``caller``, and addresses to which it links.

    ``temporal_ui`` is the address of Temporal's UI for the namespace in Temporal; a run is at ``/workflows/ID`` below
    it. In ``trace_link``, ``{run}`` stands for the id of a run, and ``{conversation}`` for its conversation.
    """

    caller: str
    version: str
    temporal_ui: str | None = None
    trace_link: str | None = None


class ForkMessage(RequestBody):
    """Where a new run goes on: ``at`` is the last turn to keep, or ``failure``; ``say`` is a message there.

    ``session`` are values of its session.
    """

    at: Text = Field(FAILURE, max_length=MAX_PLACE)
    say: str | None = Field(None, min_length=1, max_length=MAX_MESSAGE)
    session: JsonObject = {}


class SteerMessage(RequestBody):
    """A message into the discussion, which all later speakers read."""

    text: Text = Field(max_length=MAX_MESSAGE)


class StopMessage(RequestBody):
    """Why a run is to end. It ends after the current turn or, with ``now``, at once."""

    reason: str = Field("", max_length=MAX_REASON)
    now: bool = False


class ReasonMessage(RequestBody):
    """Why a run is canceled."""

    reason: str = Field("", max_length=MAX_REASON)


class ApproveMessage(RequestBody):
    """Approves a call, with its own or with other ``arguments``; ``remember`` applies it to later calls of the tool."""

    call: Text
    arguments: JsonObject | None = None
    reason: str = Field("", max_length=MAX_REASON)
    remember: bool = False


class RejectMessage(RequestBody):
    """Rejects a call; the model receives the reason."""

    call: Text
    reason: str = Field("", max_length=MAX_REASON)
    remember: bool = False


class ReplyMessage(RequestBody):
    """Replies to the question ``to``, or to the only one; ``declines`` refuses the question of a server."""

    text: str = Field(max_length=MAX_MESSAGE)
    to: str | None = None
    declines: bool = False


class RunOutline(JsonModel):
    """What a run was asked, and whom: ``kind``, ``name``, ``namespace`` and ``strategy`` are those of its target.

    ``path`` is the run of the target, as in its events: the run itself, or a child run.
    """

    id: str
    question: str | list[JsonObject]
    path: str
    kind: str
    name: str
    namespace: str
    strategy: str | None = None


class MemberInfo(JsonModel):
    """What a speaker has used in a run, in all of its teams: its turns, their seconds, and what its calls have used."""

    name: str
    turns: int
    seconds: float
    usage: TokenUsage


class MemberList(JsonModel):
    """The speakers of a run, in the order in which they have begun.

    ``isComplete``: all that has happened is in the sums. A long run is read for some seconds: ask again.
    """

    members: list[MemberInfo]
    is_complete: bool


class ForkInfo(JsonModel):
    """A run in the tree of forks: ``source`` is the run from which it has gone on, and ``at`` the place there."""

    id: str
    source: str | None = None
    at: str | None = None
    state: str
    start_time: str


class ForkTree(JsonModel):
    """A run with the runs from which it has come, and all that have gone on from them, the oldest first.

    ``more``: there are more than are listed.
    """

    runs: list[ForkInfo]
    more: bool = False


class EventPage(JsonModel):
    """Consecutive events of a run, as its stream has them.

    ``before`` is the cursor of the place before them, from which earlier ones are read; none at the beginning of the
    run. From ``after``, later ones are read or streamed; ``more``: there may be some already.
    """

    events: list[JsonObject]
    before: str | None = None
    after: str | None = None
    more: bool = False


class Decided(JsonModel):
    """The decision as it was carried out."""

    decision: JsonObject


class Empty(JsonModel):
    """Nothing."""


class ErrorBody(JsonModel):
    """An error: a ``code`` for programs, a ``message`` for people, and the wrong field of the request."""

    code: str
    message: str
    param: str | None = None


class ErrorInfo(JsonModel):
    """The body of each response that is not successful."""

    error: ErrorBody
