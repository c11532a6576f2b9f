"""The tasks of a run: one for each turn of a panel's member, with its status, made from the histories."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ...conversation.contracts.status import format_time
from ...conversation.text import truncate
from ...resources.base import JsonObject
from ..text.units import format_age, format_duration

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
        """How long it has taken; None while it goes on."""
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
        return {key: each for key, each in value.items() if each is not None}

    @property
    def row(self) -> tuple[str, ...]:
        """The task as the cells of a table, in the order of COLUMNS."""
        duration = format_duration((self.ended or datetime.now(UTC)) - self.started)
        text = truncate(" ".join((self.error or self.output or "").split()), 60)
        return self.collection, self.goal, self.status, str(self.attempts), duration, format_age(self.started), text

    def end(self, status: TaskStatus, at: datetime) -> None:
        """Ends the task."""
        self.status, self.ended = status, at
