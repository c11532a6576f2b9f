"""The live state of runs, derived from their events: their open calls and the text of these, their waits and usage."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import get_args

from ...contracts.control_messages import Pause
from ...contracts.decisions import DecisionKind
from ...contracts.errors import BudgetExceeded, Failure
from ...contracts.message import TokenUsage
from ...contracts.status import Phase, Status
from ...contracts.text import format_time
from .events import (
    AttemptFailedEvent,
    Event,
    ModelAnsweredEvent,
    ModelCalledEvent,
    ModelFailedEvent,
    RunEndedEvent,
    RunForkedEvent,
    RunResetEvent,
    RunRetriedEvent,
    RunStartedEvent,
    TextDeltaEvent,
    TextRetractedEvent,
    ToolCalledEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
    WaitEndedEvent,
    WaitStartedEvent,
)

SHOWN_CHARACTERS = 2_000
"""Characters that are kept of the text that a model is sending: the last ones."""

Beginning = ModelCalledEvent | ToolCalledEvent | TurnStartedEvent | WaitStartedEvent
"""The start of a call, a turn or a wait."""

CALLS_OF_TURNS = "turn/"
"""The beginning of the key of a call that has no id in events: that of a function, whose turn it is."""


@dataclass
class OpenCall:
    """An open call of a model, a tool or a function: the event of its start, and what was heard of it since.

    ``turn`` is the turn of its speaker, if it is one. ``root`` is the id of the root run. ``text`` is the end of the
    received text, of ``characters`` in all. The current ``attempt`` starts at ``next_at``, if that is not over;
    ``failure`` is the error of the previous one. If ``deferred``, the run waits, and makes the call again.
    """

    root: str
    started: ModelCalledEvent | ToolCalledEvent | TurnStartedEvent
    turn: TurnStartedEvent | None = None
    attempt: int = 1
    failure: str = ""
    next_at: datetime | None = None
    deferred: bool = False
    text: str = ""
    characters: int = 0

    @property
    def hidden(self) -> bool:
        """Whether it is not shown to clients."""
        return self.started.arguments is None if isinstance(self.started, ToolCalledEvent) else self.started.hidden

    @property
    def waiting(self) -> bool:
        """Whether the current attempt has not started yet."""
        return self.deferred or (self.next_at is not None and self.next_at > datetime.now(UTC))

    @property
    def is_cut(self) -> bool:
        """Whether only the end of the received text is known."""
        return self.characters > len(self.text)

    def fail(self, error: str) -> None:
        """Notes the error of an attempt; its text is not the answer's."""
        self.failure = error
        self.text = ""
        self.characters = 0

    def receive(self, piece: TextDeltaEvent) -> None:
        """Adds the next piece of text, or one after a gap."""
        earlier = self.text if piece.offset == self.characters else ""
        self.text = (earlier + piece.text)[-SHOWN_CHARACTERS:]
        self.characters = piece.offset + len(piece.text)
        self.next_at = None


@dataclass
class RunProgress:
    """A root run: its usage so far, its pause, and its end once it has ended.

    ``waits`` are those of the run and its child runs, by the path of the run and their id.
    """

    id: str
    started_at: datetime
    usage: TokenUsage = field(default_factory=TokenUsage)
    pause: Pause | None = None
    waits: dict[tuple[str, str], WaitStartedEvent] = field(default_factory=dict)
    end: RunEndedEvent | None = None

    @property
    def status(self) -> Status:
        """The run's status, derived from its events."""
        if self.end is None:
            waits_for_person = any(wait.kind in get_args(DecisionKind) for wait in self.waits.values())
            phase: Phase = "InputRequired" if waits_for_person else "Running"
            start = format_time(self.started_at)
            return Status(phase=phase, token_usage=self.usage, start_time=start, paused=self.pause)
        failure = None
        if self.end.error is not None:
            failure = Failure(family="BatonError", type=self.end.error_type or "BatonError", message=self.end.error)
        return Status(
            phase=self.end.phase,
            stop_reason=self.end.stop_reason,
            error=self.end.error,
            failure=failure,
            token_usage=self.usage,
            start_time=format_time(self.started_at),
            completion_time=format_time(self.end.at),
            member_failures=self.end.member_failures or None,
            notices=self.end.notices or None,
        )


@dataclass
class LiveState:
    """The open calls in the order of their start, and the progress of root runs, by id."""

    calls: dict[tuple[str, str], OpenCall] = field(default_factory=dict)
    runs: dict[str, RunProgress] = field(default_factory=dict)
    _roots: dict[str, str] = field(default_factory=dict)
    _turns: dict[tuple[str, str], TurnStartedEvent] = field(default_factory=dict)

    @property
    def open_calls(self) -> list[OpenCall]:
        """The open calls that are shown to clients."""
        return [call for call in self.calls.values() if not call.hidden]

    def root_of(self, run: str) -> str:
        """The id of the root run above a run."""
        return self._roots.get(run, run)

    def apply(self, event: Event) -> Beginning | None:  # noqa: C901  # one case for each kind of event
        """Updates the state with the next event. Returns the start of the call, the turn or the wait that it ends."""
        usage = usage_of(event)
        beginning: Beginning | None = None
        match event:
            case RunStartedEvent():
                self._roots[event.run] = root = self.root_of(event.parent) if event.parent else event.run
                if event.parent is None:
                    self.runs[root] = RunProgress(root, event.at)
            case TurnStartedEvent():
                self._turns[event.run, event.speaker] = event
                if event.kind == "function":
                    self._open(event, f"{CALLS_OF_TURNS}{event.speaker}")
            case ModelCalledEvent() | ToolCalledEvent():
                self._open(event, event.call)
            case AttemptFailedEvent():
                if call := self._call(event.run, event.call, event.speaker):
                    call.fail(event.error)
                    call.attempt = event.attempt + 1
                    call.next_at = event.next_at
            case TextDeltaEvent():
                if call := self._call(event.run, event.call, event.speaker):
                    call.receive(event)
            case TextRetractedEvent():
                if call := self._call(event.run, event.call, event.speaker):
                    call.text = ""
                    call.characters = 0
            case ModelAnsweredEvent() | ModelFailedEvent() | ToolReturnedEvent() | ToolFailedEvent():
                ended = self.calls.pop((event.run, event.call), None)
                beginning = ended.started if ended else None
            case TurnEndedEvent():
                beginning = self._turns.pop((event.run, event.speaker), None)
                if self.calls.pop((event.run, f"{CALLS_OF_TURNS}{event.speaker}"), None):
                    usage = event.usage
            case WaitStartedEvent():
                self._start_wait(event)
            case WaitEndedEvent():
                beginning = self._end_wait(event)
            case RunResetEvent():
                self._discard(event)
            case RunEndedEvent():
                self._end(event)
        if run := self.runs.get(self.root_of(event.run)):
            run.usage = event.usage if event is run.end else run.usage + usage
        return beginning

    def _open(self, event: ModelCalledEvent | ToolCalledEvent | TurnStartedEvent, call: str) -> None:
        deferred = self.calls.pop((event.run, call), None)
        self.calls[event.run, call] = OpenCall(
            root=self.root_of(event.run),
            started=event,
            turn=self._turns.get((event.run, event.speaker)),
            failure=deferred.failure if deferred else "",
        )

    def _call(self, run: str, call: str, speaker: str | None) -> OpenCall | None:
        """The open call with that id, or that of a function whose turn it is."""
        return self.calls.get((run, call)) or self.calls.get((run, f"{CALLS_OF_TURNS}{speaker}"))

    def _start_wait(self, event: WaitStartedEvent) -> None:
        if run := self.runs.get(self.root_of(event.run)):
            run.waits[event.run, event.wait] = event
            if run.id == event.run and event.kind == "pause":
                run.pause = Pause(since=format_time(event.at), by=event.text)
        if event.kind in ("outage", "circuit", "quota"):
            call = self._call(event.run, event.wait.removeprefix(f"{event.run}/"), event.speaker)
            if call:
                call.fail(event.text or "")
                call.deferred = True

    def _end_wait(self, event: WaitEndedEvent) -> WaitStartedEvent | None:
        run = self.runs.get(self.root_of(event.run))
        if run is None:
            return None
        if run.id == event.run and event.kind == "pause":
            run.pause = None
        return run.waits.pop((event.run, event.wait), None)

    def _discard(self, reset: RunResetEvent) -> None:
        """Takes back what has begun after a place to which a run was reset, in child runs as well."""

        def is_void(run: str, begun: datetime) -> bool:
            return begun > reset.since and (run == reset.run or run.startswith(f"{reset.run}/"))

        self.calls = {key: call for key, call in self.calls.items() if call.root != reset.run}
        self._turns = {key: turn for key, turn in self._turns.items() if not is_void(key[0], turn.at)}
        if run := self.runs.get(self.root_of(reset.run)):
            run.waits = {key: wait for key, wait in run.waits.items() if not is_void(key[0], wait.at)}
            if not any(key[0] == run.id and wait.kind == "pause" for key, wait in run.waits.items()):
                run.pause = None
            if run.end and is_void(run.id, run.end.at):
                run.end = None

    def _end(self, ended: RunEndedEvent) -> None:
        self.calls = {key: call for key, call in self.calls.items() if key[0] != ended.run}
        self._turns = {key: turn for key, turn in self._turns.items() if key[0] != ended.run}
        if run := self.runs.get(self.root_of(ended.run)):
            run.waits = {key: wait for key, wait in run.waits.items() if key[0] != ended.run}
            if run.id == ended.run:
                run.end = ended


def usage_of(event: Event) -> TokenUsage:
    """The usage that an event adds to that of its root run. A call that a budget has refused was not made."""
    match event:
        case ModelAnsweredEvent(usage=usage) | RunRetriedEvent(usage=usage) | RunForkedEvent(usage=usage):
            return usage
        case ToolReturnedEvent():
            return TokenUsage(tool_calls=1)
        case ToolFailedEvent(error=str(), error_type=kind) if kind != BudgetExceeded.__name__:
            return TokenUsage(tool_calls=1)
    return TokenUsage()
