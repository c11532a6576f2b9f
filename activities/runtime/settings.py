"""The settings of a worker, read from environment variables. All invalid ones are reported at once, by variable."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from ...contracts.settings import PRIVATE_HOSTS, STATE_DIR, TASK_QUEUE, SettingsError, private_file, private_folder
from ...journal.leases import LEASE_SECONDS
from ...observability.log import LogFormat, LogLevel
from ...resources.base import Dialect, Duration, parse_age, parse_duration

Role = Literal["workflows", "models", "tools"]
"""What a worker runs: workflows and the journal's activities, model calls, tool calls."""

ROLES: tuple[Role, ...] = ("workflows", "models", "tools")

InlineManifests = Literal["all", "no-secrets", "none"]
"""The rights of inline manifests: those of the worker's own; the same without its Secrets; they are refused."""


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
        raise ValueError("write NAME=NUMBER, separated by commas, without duplicate names")
    return pairs


def _address(text: object) -> object:
    """``HOST:PORT`` as a host and a port."""
    host, _, port = str(text).rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("write HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)


Address = Annotated[tuple[str, int], BeforeValidator(_address)]
Rates = Annotated[dict[str, Annotated[float, Field(gt=0)]], BeforeValidator(_table)]
DeploymentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_/-]*$", max_length=200)]
"""Also in the Temporal Worker Controller's form ``NAMESPACE/NAME``."""

BuildId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
"""Also in the controller's form ``TAG-HASH``, in which the image tag may contain dots."""

EVERY_NAMESPACE = "*"
"""Stands in a retention for the namespaces that it does not name."""


def _ages(text: object) -> object:
    """``support=7d,*=90d`` as a mapping of namespaces to ages."""
    try:
        table = _table(text)
        if not isinstance(table, dict):
            return table
        return {namespace: parse_age(age) if isinstance(age, str) else age for namespace, age in table.items()}
    except ValueError:
        raise ValueError("write NAMESPACE=AGE, separated by commas, such as support=7d,*=90d") from None


Retention = Annotated[dict[str, timedelta], BeforeValidator(_ages)]
"""How long the data of ended runs is kept, by the namespace of their manifests; for all others under ``*``."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]


@dataclass(frozen=True)
class WorkerQueue:
    """A task queue that a worker polls, for some of its roles.

    ``rate`` is the limit on started activities per second over all workers of the queue; None for no limit.
    """

    name: str
    roles: frozenset[Role]
    rate: float | None = None

    @property
    def task_kinds(self) -> tuple[str, ...]:
        """The kinds of tasks that the worker polls: all roles have activities."""
        return ("workflow", "activity") if "workflows" in self.roles else ("activity",)


class Settings(BaseModel):
    """The settings of a worker. All workers of a deployment share them, except for ``roles``."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    state_dir: Path = Field(STATE_DIR, validation_alias="BATON_HOME")
    journal_url: str | None = Field(None, validation_alias="BATON_JOURNAL_URL")
    functions: Annotated[tuple[str, ...], BeforeValidator(_list)] = Field((), validation_alias="BATON_FUNCTIONS")
    inline_manifests: InlineManifests = Field("no-secrets", validation_alias="BATON_INLINE_MANIFESTS")
    roles: Annotated[frozenset[Role], BeforeValidator(_list)] = Field(
        frozenset(ROLES), min_length=1, validation_alias="BATON_ROLES"
    )
    task_queue: str = Field(TASK_QUEUE, validation_alias="BATON_TASK_QUEUE")
    model_task_queue: str | None = Field(None, validation_alias="BATON_MODEL_TASK_QUEUE")
    tool_task_queue: str | None = Field(None, validation_alias="BATON_TOOL_TASK_QUEUE")
    model_rates: Rates = Field({}, validation_alias="BATON_MODEL_RATES")
    max_cached_workflows: int = Field(1_000, ge=0, validation_alias="BATON_MAX_CACHED_WORKFLOWS")
    # With 100, three of ten activities got no free slot, and could not be started eagerly with the workflow task's
    # response.
    max_concurrent_activities: PositiveInt = Field(200, validation_alias="BATON_MAX_CONCURRENT_ACTIVITIES")
    max_concurrent_functions: PositiveInt = Field(50, validation_alias="BATON_MAX_CONCURRENT_FUNCTIONS")
    max_mcp_connections: PositiveInt = Field(100, validation_alias="BATON_MAX_MCP_CONNECTIONS")
    # With 4, the CPUs were idle a quarter of the time under 300 concurrent queries; with far more, workflow tasks time
    # out on a slow machine.
    max_concurrent_workflow_tasks: int = Field(10, ge=2, validation_alias="BATON_MAX_CONCURRENT_WORKFLOW_TASKS")
    graceful_shutdown_seconds: Seconds = Field(10, validation_alias="BATON_GRACEFUL_SHUTDOWN")
    call_lease_seconds: Seconds = Field(LEASE_SECONDS, validation_alias="BATON_CALL_LEASE")
    allow_private_hosts: bool = Field(False, validation_alias=PRIVATE_HOSTS)
    approve_destructive: bool = Field(False, validation_alias="BATON_APPROVE_DESTRUCTIVE")
    dialect: Dialect = Field("baton", validation_alias="BATON_DIALECT")
    query_ttl: Duration | None = Field(None, validation_alias="BATON_QUERY_TTL")
    retention: Retention = Field({}, validation_alias="BATON_RETENTION")
    max_outage: Duration = Field("24h", validation_alias="BATON_MAX_OUTAGE")
    audit: bool = Field(False, validation_alias="BATON_AUDIT")
    wait_for_keys: bool = Field(False, validation_alias="BATON_WAIT_FOR_KEYS")
    health_port: int | None = Field(None, ge=0, le=65_535, validation_alias="BATON_HEALTH_PORT")
    metrics_address: Address | None = Field(None, validation_alias="BATON_METRICS_ADDRESS")
    health_host: str = Field("127.0.0.1", validation_alias="BATON_HEALTH_HOST")
    log_format: LogFormat = Field("text", validation_alias="BATON_LOG_FORMAT")
    log_level: LogLevel = Field("info", validation_alias="BATON_LOG_LEVEL")
    log_calls: bool = Field(False, validation_alias="BATON_LOG_CALLS")
    deployment: DeploymentName | None = Field(None, validation_alias="BATON_DEPLOYMENT")
    build_id: BuildId | None = Field(None, validation_alias="BATON_BUILD_ID")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Reads the variables whose names begin with BATON_; an empty one counts as unset. Raises SettingsError."""
        variables = {name: value for name, value in environment.items() if name.startswith("BATON_") and value}
        try:
            return cls.model_validate(variables)
        except ValidationError as error:
            lines = (": ".join([*map(str, detail["loc"]), detail["msg"]]) for detail in error.errors())
            raise SettingsError("\n".join(line.replace("Value error, ", "") for line in lines)) from None

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if (self.deployment is None) != (self.build_id is None):
            raise ValueError("BATON_DEPLOYMENT and BATON_BUILD_ID: set both or neither")
        polled = {self._queue_of(role) for role in self.roles}
        for role in ROLES:
            if role not in self.roles and self._queue_of(role) in polled:
                queues = "BATON_MODEL_TASK_QUEUE and BATON_TOOL_TASK_QUEUE"
                raise ValueError(
                    f"BATON_ROLES: this worker polls the task queue of {role} without that role: set {queues}"
                )
        return self

    def _queue_of(self, role: Role) -> str:
        queues = {"workflows": self.task_queue, "models": self.model_task_queue, "tools": self.tool_task_queue}
        return queues[role] or self.task_queue

    @property
    def journal(self) -> str:
        """The URL of the journal's database."""
        return self.journal_url or f"sqlite:///{self.state_dir / 'journal.db'}"

    @property
    def health_address(self) -> tuple[str, int] | None:
        """Where health checks are served: a host of this machine or ``*``, and a port."""
        return None if self.health_port is None else (self.health_host, self.health_port)

    @property
    def http_addresses(self) -> dict[tuple[str, int], str]:
        """Where health checks and metrics are served, with the settings that say so."""
        names = "BATON_HEALTH_HOST, BATON_HEALTH_PORT"
        named = {self.metrics_address: "BATON_METRICS_ADDRESS", self.health_address: names}
        return {address: names for address, names in named.items() if address}

    @property
    def graceful_shutdown_timeout(self) -> timedelta:
        """How long running activities may continue after shutdown begins."""
        return timedelta(seconds=self.graceful_shutdown_seconds)

    @property
    def query_ttl_seconds(self) -> float | None:
        """The default ``ttl`` of queries, in seconds."""
        return parse_duration(self.query_ttl).total_seconds() if self.query_ttl else None

    @property
    def max_outage_seconds(self) -> float:
        """How long a call waits for the end of an outage, in seconds."""
        return parse_duration(self.max_outage).total_seconds()

    def with_all_roles(self) -> "Settings":
        """The settings of a worker that has every role."""
        return self.model_copy(update={"roles": frozenset(ROLES)})

    def worker_queues(self) -> Iterator[WorkerQueue]:
        """The task queues that the worker polls. A model with a rate has its own: Temporal limits rates per queue."""
        queues: dict[str, set[Role]] = {}
        for role in sorted(self.roles):
            queues.setdefault(self._queue_of(role), set()).add(role)
        yield from (WorkerQueue(name, frozenset(roles)) for name, roles in queues.items())
        if "models" in self.roles:
            for model, rate in self.model_rates.items():
                yield WorkerQueue(self._limited_queues[model], frozenset({"models"}), rate)

    @property
    def _limited_queues(self) -> dict[str, str]:
        return {model: f"{self._queue_of('models')}-{model}" for model in self.model_rates}

    @property
    def activity_queues(self) -> dict[str, object]:
        """The fields of ``TaskQueues``: the activity task queues that differ from the workflows'."""
        queues = {"models": self.model_task_queue, "tools": self.tool_task_queue, "limited": self._limited_queues}
        return {field: queue for field, queue in queues.items() if queue and queue != self.task_queue}

    def make_journal_file(self) -> None:
        """Creates the file of the default journal, and its folder, accessible by their owner only."""
        if not self.journal_url:
            private_folder(self.state_dir)
            os.close(private_file(self.state_dir / "journal.db", os.O_CREAT))
