"""``kind: Schedule``: when a query is started by itself (Kubernetes: CronJob; Temporal: schedules)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from .base import API_VERSION, FieldError, JsonModel, NameOrRef, Reference
from .cron import Cron
from .duration import Duration, parse_duration
from .manifest import Manifest, Metadata
from .query import Query, QuerySpec

MIN_CATCHUP_WINDOW = 10
"""Seconds: Temporal takes a shorter window for this one."""

TEMPLATE = ("spec", "queryTemplate")

OverlapPolicy = Literal["Skip", "BufferOne", "BufferAll", "CancelOther", "AllowAll"]


def _check_time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"'{name[:60]}' is not a time zone: write for example Europe/Berlin or UTC") from None
    return name


def _check_window(text: str) -> str:
    if parse_duration(text).total_seconds() < MIN_CATCHUP_WINDOW:
        raise ValueError(f"is '{text}', must be {MIN_CATCHUP_WINDOW}s or more")
    return text


class QueryMetadata(JsonModel):
    """The ``metadata`` of the query in a Schedule, which has the Schedule's name."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class QueryTemplate(JsonModel):
    """A query that stands in its Schedule, as a job in a CronJob."""

    metadata: QueryMetadata = QueryMetadata()
    spec: QuerySpec = Field(description="as the spec of a Query")


class ScheduleSpec(JsonModel):
    """The ``spec`` of a Schedule: when, which query, and what happens if two runs overlap or times are missed."""

    schedule: Cron = Field(description="a cron expression such as '0 9 * * 1-5', or '@every 10m'")
    time_zone: Annotated[str, AfterValidator(_check_time_zone)] = Field(
        "UTC", description="the time zone of the expression, such as Europe/Berlin"
    )
    query: NameOrRef | None = Field(None, description="the Query that is started")
    query_template: QueryTemplate | None = Field(None, description="the query itself, as {spec}, instead of its name")
    overlap_policy: OverlapPolicy = Field("Skip", description="what happens if the run before is still open")
    catchup_window: Annotated[Duration, AfterValidator(_check_window)] = Field(
        "8760h", description="how late a time may still be caught up with, if Temporal was away"
    )
    jitter: Duration | None = Field(None, description="each start is later by a random time of at most this")
    pause_on_failure: bool = Field(False, description="true to pause after a run that has failed")
    paused: bool | None = Field(None, description="whether it is paused; without it, apply changes nothing about that")
    note: str = Field("", max_length=1_000, description="for people: what it is for, or why it is paused")

    @model_validator(mode="after")
    def _has_one_query(self) -> Self:
        if self.query and self.query_template:
            raise FieldError(("queryTemplate",), "can't be combined with query: keep one of them")
        if not (self.query or self.query_template):
            raise FieldError(("query",), "is missing: write the name of a Query, or queryTemplate: {spec: …}")
        return self


class Schedule(Manifest):
    """A time table by which a query is started."""

    kind: Literal["Schedule"] = "Schedule"
    spec: ScheduleSpec = Field(description="when, and which query")

    def references(self) -> Iterator[Reference]:
        if inline := self.inline_query():
            for reference in inline.references():
                yield replace(reference, path=(*TEMPLATE, *reference.path))
        elif self.spec.query:
            yield self._refer(("spec", "query"), ("Query",), self.spec.query)

    def inline_query(self) -> Query | None:
        """The query that stands in it, with its own name and namespace; None if it names one."""
        if self.spec.query_template is None:
            return None
        more = self.spec.query_template.metadata.model_dump(exclude_unset=True)
        metadata = Metadata(name=self.name, namespace=self.namespace, **more)
        return Query(api_version=API_VERSION, kind="Query", metadata=metadata, spec=self.spec.query_template.spec)
