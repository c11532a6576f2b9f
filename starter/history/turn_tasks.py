"""Who has taken a turn in a panel, and what came of it? One task for each turn, made of what histories tell."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from temporalio.client import Client

from ...conversation.contracts.panel_requests import PerformResult, SpeakerBrief
from ...conversation.contracts.plan import TeamPlan
from ...conversation.contracts.requests import AppendRequest, AskModelResult, Pinned
from ...conversation.contracts.status import instant
from ...conversation.messages.message import Message, Quote
from ...conversation.text import truncate
from ...resources.base import JsonObject
from ..runs.runs import Handle
from ..text.units import format_duration
from .follow import follow
from .live_state import LiveState, read_heartbeats
from .run_events import ActivityCall, CallScheduled, CallEnded, RunEvent, RunInfo, RunStarted, RunEnded

TaskStatus = Literal["in_progress", "completed", "errored", "cancelled"]

SHOWN = 4_000
"""Bytes of what a member has said that its task holds."""


@dataclass
class TurnTask:
    """A member's turn in a panel. ``attempts`` is the largest number of attempts that one of its steps has taken."""

    id: str
    collection: str
    assignee: str
    round: int
    stance: str | None
    started: datetime
    ended: datetime | None = None
    status: TaskStatus = "in_progress"
    attempts: int = 1
    output: str | None = None
    error: str | None = None

    @property
    def goal(self) -> str:
        """What is to be done."""
        return f"{self.assignee} (round {self.round})"

    @property
    def seconds(self) -> float | None:
        """How long it has taken, once it is over."""
        return round((self.ended - self.started).total_seconds(), 3) if self.ended else None

    @property
    def value(self) -> JsonObject:
        """The task as JSON."""
        value: JsonObject = {
            "collection": self.collection,
            "id": self.id,
            "goal": self.goal,
            "assignee": self.assignee,
            "round": self.round,
            "stance": self.stance,
            "status": self.status,
            "attempts": self.attempts,
            "startedAt": instant(self.started),
            "completedAt": instant(self.ended) if self.ended else None,
            "seconds": self.seconds,
            "output": self.output,
            "error": self.error,
        }
        return {key: each for key, each in value.items() if each is not None}

    @property
    def row(self) -> tuple[str, ...]:
        """The task as the cells of a table."""
        took = format_duration((self.ended or datetime.now(UTC)) - self.started)
        words = truncate(" ".join((self.error or self.output or "").split()), 60)
        return self.collection, self.goal, self.status, str(self.attempts), instant(self.started), took, words


COLUMNS = "COLLECTION", "TASK", "STATUS", "ATTEMPTS", "STARTED", "DURATION", "WORDS"


@dataclass
class _Room:
    """What is known of a run of a team: its plan, the words by their rows, its tasks, and the one that goes on."""

    run: RunInfo
    team: TeamPlan
    said: dict[str, Message] = field(default_factory=dict)
    tasks: list[TurnTask] = field(default_factory=list)
    open: TurnTask | None = None


@dataclass
class TaskRecorder:
    """The tasks of a run and of its child runs, as far as their histories have been told."""

    _rooms: dict[str, _Room] = field(default_factory=dict)

    @property
    def tasks(self) -> list[TurnTask]:
        """All tasks, in the order in which they began."""
        return sorted((task for room in self._rooms.values() for task in room.tasks), key=lambda task: task.started)

    def apply(self, happening: RunEvent) -> None:
        """Takes one thing into account that has happened."""
        match happening:
            case (
                CallEnded(run=run, reply=Pinned(plan=TeamPlan() as team))
                | RunStarted(run=run, pinned=Pinned(plan=TeamPlan() as team))
            ):
                self._rooms[run.first_run_id] = _Room(run, team)
            case CallScheduled(run=run, at=at, call=ActivityCall(brief=SpeakerBrief(part="member") as brief)):
                _begin(self._rooms[run.first_run_id], brief, at)
            case CallEnded(run=run, attempts=attempts):
                self.count_attempts(run, attempts)
                _end(self._rooms.get(run.first_run_id), happening)
            case RunEnded(run=run):
                _break_off(self._rooms.get(run.first_run_id), happening)

    def count_attempts(self, run: RunInfo, attempts: int) -> None:
        """Notes how often a step was tried, for the tasks that it is a part of."""
        for task in self._around(run):
            task.attempts = max(task.attempts, attempts)

    def _around(self, run: RunInfo | None) -> Iterator[TurnTask]:
        """The tasks that go on in a run and in those around it."""
        while run:
            room = self._rooms.get(run.first_run_id)
            if room and room.open:
                yield room.open
            run = run.parent


async def list_tasks(client: Client, handle: Handle) -> list[TurnTask]:
    """The tasks of a run until now, with the attempts of what goes on at this moment."""
    audit, board = TaskRecorder(), LiveState()

    def tell(happening: RunEvent) -> None:
        audit.apply(happening)
        board.apply(happening)

    await follow(client, handle, tell, wait=False)
    await read_heartbeats(client, board.open_calls.values())
    for call in board.open_calls.values():
        audit.count_attempts(call.run, call.attempt)
    return audit.tasks


def _begin(room: _Room, brief: SpeakerBrief, at: datetime) -> None:
    """The first step of a turn begins its task; in a panel nobody speaks at the same time as another."""
    panel, seat = room.team.panel, brief.seat
    if room.open or panel is None or seat is None:
        return
    name = panel.roster[seat]
    twin = sum((task.assignee, task.round) == (name, brief.round) for task in room.tasks)
    place = f"{room.run.id}/round-{brief.round}/{name}" + (f"-{twin + 1}" if twin else "")
    stance = panel.stances[seat] if panel.stances else None
    room.open = TurnTask(place, panel.audit or room.team.name, name, brief.round, stance, started=at)
    room.tasks.append(room.open)


def _end(room: _Room | None, ended: CallEnded) -> None:
    """A task is completed when the contribution has been entered into the transcript."""
    if room is None:
        return
    match ended.reply, ended.call.request:
        case ((AskModelResult(message=message, head=head) | PerformResult(message=message, head=head)), _):
            room.said[head.id] = message
        case reply, AppendRequest(items=items) if reply and room.open:
            for item in items:
                if isinstance(item, Message | Quote) and item.part == "contribution":
                    said = item if isinstance(item, Message) else room.said.get(item.row)
                    _close(room, "completed", ended.at, truncate(said.content, SHOWN) if said else None)


def _break_off(room: _Room | None, ended: RunEnded) -> None:
    if room and room.open:
        room.open.error = ended.failure.message if ended.failure else None
        _close(room, "errored" if ended.failure else "cancelled", ended.at)


def _close(room: _Room, status: TaskStatus, at: datetime, output: str | None = None) -> None:
    if room.open:
        room.open.status, room.open.ended, room.open.output = status, at, output
        room.open = None
