"""Lists the turns of a run's panels as tasks (round-robin pattern: tasks)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from temporalio.client import Client

from ...contracts.inputs import FailedRun
from ...contracts.message import Message, Quote
from ...contracts.panel import PerformResult, SpeakerBrief
from ...contracts.plan import TeamPlan
from ...contracts.requests import AppendRequest, AskModelResult, Pinned
from ...contracts.text import format_time, truncate
from ...resources.base import JsonObject
from ..runs.runs import RunHandle
from ..text import format_age, format_duration
from .follow import follow
from .live_state import LiveState, read_heartbeats
from .run_events import ActivityCall, CallEnded, CallScheduled, RunEnded, RunEvent, RunInfo, RunStarted

TaskStatus = Literal["in_progress", "completed", "errored", "cancelled"]

COLUMNS = "COLLECTION", "TASK", "STATUS", "ATTEMPTS", "DURATION", "AGE", "OUTPUT"


@dataclass
class TurnTask:
    """A member's turn in a panel. ``attempts`` is the largest number of attempts of one of its activities."""

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

    def end(self, status: TaskStatus, at: datetime) -> None:
        """Ends the task."""
        self.status = status
        self.ended = at


MAX_OUTPUT_BYTES = 4_000
"""The length to which the output of a task is truncated."""


async def list_tasks(client: Client, handle: RunHandle) -> list[TurnTask]:
    """The tasks of a run so far; the attempts of open tasks include the current one."""
    recorder = TaskRecorder()
    state = LiveState()

    def apply(event: RunEvent) -> None:
        recorder.apply(event)
        state.apply(event)

    await follow(client, handle, apply, wait=False)
    await read_heartbeats(client, state.open_calls.values())
    for call in state.open_calls.values():
        recorder.count_attempts(call.run, call.attempt)
    return recorder.tasks


@dataclass
class TaskRecorder:
    """The tasks of a run and its child runs, derived from their run events, in order."""

    _teams: dict[str, "_TeamRun"] = field(default_factory=dict)

    @property
    def tasks(self) -> list[TurnTask]:
        """All tasks, in the order of their start."""
        return sorted((task for team in self._teams.values() for task in team.tasks), key=lambda task: task.started)

    def apply(self, event: RunEvent) -> None:
        """Updates the tasks with the next event."""
        team = self._teams.get(event.run.first_run_id)
        match event:
            case (
                CallEnded(run=run, result=Pinned(plan=TeamPlan() as plan))
                | CallEnded(run=run, result=FailedRun(pinned=Pinned(plan=TeamPlan() as plan)))
                | RunStarted(run=run, pinned=Pinned(plan=TeamPlan() as plan))
            ):
                self._teams[run.first_run_id] = _TeamRun(run, plan)
            case CallScheduled(call=ActivityCall(brief=SpeakerBrief(part="member") as brief)) if team:
                team.start(brief, event.at)
            case CallEnded():
                self.count_attempts(event.run, event.attempts)
                if team:
                    team.record(event)
            case RunEnded() if team:
                team.end(event)

    def count_attempts(self, run: RunInfo, attempts: int) -> None:
        """Records the attempts of an activity in the tasks that contain it."""
        for task in self._open_tasks(run):
            task.attempts = max(task.attempts, attempts)

    def _open_tasks(self, run: RunInfo | None) -> Iterator[TurnTask]:
        """The open tasks of a run and of its ancestors."""
        while run:
            team = self._teams.get(run.first_run_id)
            if team and team.open:
                yield team.open
            run = run.parent


@dataclass
class _TeamRun:
    """A run of a team: its plan, its answers by journal row, its tasks, and the open task.

    In a panel, members speak sequentially: at most one task is open.
    """

    run: RunInfo
    plan: TeamPlan
    replies: dict[str, Message] = field(default_factory=dict)
    tasks: list[TurnTask] = field(default_factory=list)
    open: TurnTask | None = None

    def start(self, brief: SpeakerBrief, at: datetime) -> None:
        """Starts a task at the first activity of a member's turn."""
        panel, index = self.plan.panel, brief.member_index
        if self.open or panel is None or index is None:
            return
        name = panel.roster[index]
        earlier = sum((task.assignee, task.round) == (name, brief.round) for task in self.tasks)
        task_id = f"{self.run.id}/round-{brief.round}/{name}" + (f"-{earlier + 1}" if earlier else "")
        stance = panel.stances[index] if panel.stances else None
        self.open = TurnTask(task_id, panel.audit or self.plan.name, name, brief.round, stance, started=at)
        self.tasks.append(self.open)

    def record(self, ended: CallEnded) -> None:
        """Completes a task when its contribution is appended to the panel's conversation."""
        match ended.result, ended.call.request:
            case ((AskModelResult(message=message, head=head) | PerformResult(message=message, head=head)), _):
                self.replies[head.id] = message
            case result, AppendRequest(items=items) if result:
                for item in items:
                    if isinstance(item, Message | Quote) and item.part == "contribution":
                        self._complete(item if isinstance(item, Message) else self.replies.get(item.row), ended.at)

    def _complete(self, contribution: Message | None, at: datetime) -> None:
        if self.open:
            self.open.output = truncate(contribution.content, MAX_OUTPUT_BYTES) if contribution else None
            self.open.end("completed", at)
            self.open = None

    def end(self, ended: RunEnded) -> None:
        """Ends an open task at the end of the run, as failed or canceled."""
        if self.open:
            self.open.error = ended.failure.message if ended.failure else None
            self.open.end("errored" if ended.failure else "cancelled", ended.at)
            self.open = None
