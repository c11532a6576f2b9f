"""What is a worker told? Its settings, read from the environment at once; a mistake is named by its variable."""

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from ...conversation.contracts.requests import Route
from ...conversation.errors import JournalUnavailable
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.temporal_client import HOME, TASK_QUEUE

Role = Literal["workflows", "models", "tools"]
"""What a worker can serve: runs with their journal, the calls of models, the uses of tools."""


ROLES: tuple[Role, ...] = ("workflows", "models", "tools")


def _list(text: object) -> object:
    """``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else text


def _table(text: object) -> object:
    """``a=1,b=2`` as a mapping."""
    parts = _list(text)
    if not isinstance(parts, list):
        return text
    pairs = {name.strip(): value.strip() for name, _, value in (part.rpartition("=") for part in parts)}
    if not all(pairs) or len(pairs) != len(parts):
        raise ValueError("write NAME=NUMBER, several with commas between them, each name once")
    return pairs


Rates = Annotated[dict[str, Annotated[float, Field(gt=0)]], BeforeValidator(_table)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=200)]
Seconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Lane:
    """A task queue that a worker polls: what it serves there, and how many calls a second all workers may begin."""

    queue: str
    roles: frozenset[Role]
    rate: float | None = None


class Settings(BaseModel):
    """The settings of a worker. Those of one fleet are the same, but for what each of its workers serves."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    home: Path = Field(HOME, validation_alias="BATON_HOME")
    journal_url: str | None = Field(None, validation_alias="BATON_JOURNAL_URL")
    functions: Annotated[tuple[str, ...], BeforeValidator(_list)] = Field((), validation_alias="BATON_FUNCTIONS")
    serves: Annotated[frozenset[Role], BeforeValidator(_list)] = Field(
        frozenset(ROLES), min_length=1, validation_alias="BATON_SERVES"
    )
    queue: str = Field(TASK_QUEUE, validation_alias="BATON_TASK_QUEUE")
    model_queue: str | None = Field(None, validation_alias="BATON_MODEL_TASK_QUEUE")
    tool_queue: str | None = Field(None, validation_alias="BATON_TOOL_TASK_QUEUE")
    model_rates: Rates = Field({}, validation_alias="BATON_MODEL_RATES")
    cached_runs: int = Field(1_000, ge=0, validation_alias="BATON_CACHED_RUNS")
    max_activities: PositiveInt = Field(200, validation_alias="BATON_MAX_ACTIVITIES")
    max_workflow_tasks: int = Field(4, ge=2, validation_alias="BATON_MAX_WORKFLOW_TASKS")
    shutdown_seconds: Seconds = Field(10, validation_alias="BATON_SHUTDOWN_SECONDS")
    health_port: int | None = Field(None, ge=0, le=65_535, validation_alias="BATON_HEALTH_PORT")
    deployment: Name | None = Field(None, validation_alias="BATON_DEPLOYMENT")
    build_id: Name | None = Field(None, validation_alias="BATON_BUILD_ID")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Reads the variables that begin with BATON_; an empty one counts as none. Raises SettingsError."""
        given = {name: value for name, value in environment.items() if name.startswith("BATON_") and value}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            wrong = (": ".join([*map(str, detail["loc"]), detail["msg"]]) for detail in error.errors())
            raise SettingsError("\n".join(text.replace("Value error, ", "") for text in wrong)) from None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.deployment is None) != (self.build_id is None):
            raise ValueError("BATON_DEPLOYMENT and BATON_BUILD_ID: set both, or none of them")
        served = {self._queue_of(role) for role in self.serves}
        for role in ROLES:
            if role not in self.serves and self._queue_of(role) in served:
                queues = "BATON_MODEL_TASK_QUEUE and BATON_TOOL_TASK_QUEUE"
                raise ValueError(f"BATON_SERVES: {role} wait on a task queue that it would poll, too: set {queues}")
        return self

    def _queue_of(self, role: Role) -> str:
        own = {"workflows": self.queue, "models": self.model_queue, "tools": self.tool_queue}
        return own[role] or self.queue

    @property
    def journal(self) -> str:
        """The address of the journal."""
        return self.journal_url or f"sqlite:///{self.home / 'journal.db'}"

    @property
    def shutdown(self) -> timedelta:
        """How long calls in flight may go on when the worker is to end."""
        return timedelta(seconds=self.shutdown_seconds)

    def lanes(self) -> Iterator[Lane]:
        """The task queues that the worker polls; a model with a rate has one of its own."""
        queues: dict[str, set[Role]] = {}
        for role in sorted(self.serves):
            queues.setdefault(self._queue_of(role), set()).add(role)
        yield from (Lane(queue, frozenset(roles)) for queue, roles in queues.items())
        if "models" in self.serves:
            for model, rate in self.model_rates.items():
                yield Lane(self._limited()[model], frozenset({"models"}), rate)

    def _limited(self) -> dict[str, str]:
        return {model: f"{self._queue_of('models')}-{model}" for model in self.model_rates}

    @property
    def route(self) -> Route:
        """What a run has to know of the task queues: those that are not its own."""
        others = {"models": self.model_queue, "tools": self.tool_queue, "limited": self._limited()}
        return Route.model_validate({key: each for key, each in others.items() if each and each != self.queue})

    def check(self, address: str) -> None:
        """Raises JournalUnavailable where other machines would need a journal that only this one has."""
        if not self.journal_url and not _is_loopback(address):
            raise JournalUnavailable(
                f"Temporal at {address} is not on this machine, and the default journal is a file here: "
                "set BATON_JOURNAL_URL to a database that all workers share"
            )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
