"""Lists the turns of a run's panels as tasks (round-robin pattern: tasks)."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from temporalio.client import Client

from ...contracts.text import format_time, truncate
from ...resources.base import JsonObject
from ..runs.runs import RunHandle
from ..text import format_age, format_duration
from .events import (
    AttemptFailedEvent,
    Event,
    MessageEvent,
    ModelAnsweredEvent,
    ModelFailedEvent,
    RunStartedEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
)
from .stream import stream_events

TaskStatus = Literal["in_progress", "completed", "errored", "cancelled"]

COLUMNS = "COLLECTION", "TASK", "STATUS", "ATTEMPTS", "DURATION", "AGE", "OUTPUT"


@dataclass
class TurnTask:
    """A member's turn in a panel. ``attempts`` is the largest number of attempts of one of its calls."""

    id: str
    run: str
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
        """The title of the task."""
        return f"{self.assignee} (round {self.round})"

    @property
    def seconds(self) -> float | None:
        """Its duration; None while it is in progress."""
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
            "startedAt": format_time(self.started),
            "completedAt": format_time(self.ended) if self.ended else None,
            "seconds": self.seconds,
            "output": self.output,
            "error": self.error,
        }
        return {key: item for key, item in value.items() if item is not None}

    @property
    def row(self) -> tuple[str, ...]:
        """The task as the cells of a table, in the order of COLUMNS."""
        duration = format_duration((self.ended or datetime.now(UTC)) - self.started)
        text = truncate(" ".join((self.error or self.output or "").split()), 60)
        return self.collection, self.goal, self.status, str(self.attempts), duration, format_age(self.started), text


MAX_OUTPUT_BYTES = 4_000
"""The length to which the output of a task is truncated."""


async def list_tasks(client: Client, handle: RunHandle) -> list[TurnTask]:
    """The tasks of a run so far; the attempts of open tasks include the current one."""
    recorder = TaskRecorder()
    async for event in stream_events(client, handle, wait=False, cut=True):
        recorder.apply(event)
    return recorder.tasks


@dataclass
class TaskRecorder:
    """The tasks of a run and its child runs, derived from their events, in order.

    In a panel, members speak sequentially: of each run, at most one task is open.
    """

    tasks: list[TurnTask] = field(default_factory=list)
    """All tasks, in the order of their start."""
    _open: dict[str, TurnTask] = field(default_factory=dict)
    _last: dict[str, TurnTask] = field(default_factory=dict)
    _parents: dict[str, str | None] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Updates the tasks with the next event."""
        match event:
            case RunStartedEvent():
                self._parents[event.run] = event.parent
            case TurnStartedEvent(collection=str(collection), round=int(in_round)):
                self._start(event, collection, in_round)
            case TurnEndedEvent() if event.part is None:
                self._end(event)
            case MessageEvent(part="contribution") if task := self._last.get(event.run):
                task.output = truncate(event.text, MAX_OUTPUT_BYTES)
                task.ended = event.at
            case AttemptFailedEvent(attempt=attempt):
                self._count_attempts(event.run, attempt + 1)
            case ModelAnsweredEvent() | ModelFailedEvent() | ToolReturnedEvent() | ToolFailedEvent():
                self._count_attempts(event.run, event.attempts)

    def _start(self, event: TurnStartedEvent, collection: str, in_round: int) -> None:
        earlier = sum(
            (task.run, task.assignee, task.round) == (event.run, event.speaker, in_round) for task in self.tasks
        )
        task = TurnTask(
            id=f"{event.run}/round-{in_round}/{event.speaker}" + (f"-{earlier + 1}" if earlier else ""),
            run=event.run,
            collection=collection,
            assignee=event.speaker,
            round=in_round,
            stance=event.stance,
            started=event.at,
        )
        self._open[event.run] = self._last[event.run] = task
        self.tasks.append(task)

    def _end(self, event: TurnEndedEvent) -> None:
        if task := self._open.pop(event.run, None):
            task.status = _STATUSES[event.outcome]
            task.ended = event.at
            task.error = event.error
            task.attempts = max(task.attempts, event.attempts or 1)

    def _count_attempts(self, run: str | None, attempts: int) -> None:
        """Records the attempts of a call in the open tasks of its run and of the runs above."""
        while run:
            if task := self._open.get(run):
                task.attempts = max(task.attempts, attempts)
            run = self._parents.get(run)


_STATUSES: dict[str, TaskStatus] = {"completed": "completed", "failed": "errored", "canceled": "cancelled"}
"""The statuses of tasks, by the outcome of the turn."""
