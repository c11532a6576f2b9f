"""``kind: Schedule``: when a query is started automatically (Kubernetes: CronJob; Temporal: schedules)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from .base import API_VERSION, Duration, FieldError, JsonModel, NameOrRef, Reference, parse_duration
from .labels import Labels
from .manifest import Manifest, Metadata
from .query import Query, QuerySpec

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST_MONTH = {1: 31, 2: 29, 3: 31, 4: 30, 5: 31, 6: 30, 7: 31, 8: 31, 9: 30, 10: 31, 11: 30, 12: 31}


class _Field(NamedTuple):
    """A field of a cron expression: its first and last value, and names for its values in order."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()


_DAILY = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)
_SECOND = _Field("second", 0, 59)
_YEAR = _Field("year", 2000, 2100)
_FORMS = {5: _DAILY, 6: (*_DAILY, _YEAR), 7: (_SECOND, *_DAILY, _YEAR)}

SHORTHANDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def check_cron(text: str) -> str:
    """The expression itself: five fields, six with a year, seven with seconds and a year, or a shorthand.

    Raises ValueError, which names the invalid field.
    """
    if text.startswith("@"):
        return _check_shorthand(text)
    if "=" in text:
        raise ValueError("contains a time zone: set timeZone instead")
    parts = text.split()
    if len(parts) not in _FORMS:
        form = "'minute hour day-of-month month day-of-week', such as '0 9 * * 1-5', or '@every 10m'"
        raise ValueError(f"has {len(parts)} fields, must be {form}")
    values = {field.name: {*_values(field, part)} for field, part in zip(_FORMS[len(parts)], parts, strict=True)}
    longest = max(_LONGEST_MONTH[month] for month in values["month"])
    if min(values["day of the month"]) > longest:
        raise ValueError("never fires: none of its months has such a day")
    return text


def _check_shorthand(text: str) -> str:
    word, _, rest = text.partition(" ")
    if word == "@every" and rest:
        if parse_duration(rest.strip()).total_seconds() < 1:
            raise ValueError("is less than a second: write '@every 1s' or more")
    elif text not in SHORTHANDS:
        raise ValueError(f"'{text}' is unknown; known: {', '.join(SHORTHANDS)}, @every DURATION")
    return text


def _values(field: _Field, text: str) -> Iterator[int]:
    """The values that a field allows. Raises ValueError."""
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and not (_is_number(step) and int(step)):
            raise ValueError(f"{field.name}: '{part}' has no step: write '*/15' or '0-30/5'")
        first, last = _span(field, span, to_the_end=bool(slash))
        yield from range(first, last + 1, int(step or 1))


def _span(field: _Field, text: str, *, to_the_end: bool) -> tuple[int, int]:
    if text == "*":
        return field.first, field.last
    start, dash, end = text.partition("-")
    first = _value(field, start, text)
    last = _value(field, end, text) if dash else field.last if to_the_end else first
    if last < first:
        raise ValueError(f"{field.name}: '{text}' ends before it begins")
    return first, last


def _value(field: _Field, text: str, where: str) -> int:
    if text.lower() in field.names:
        return field.first + field.names.index(text.lower())
    if not (_is_number(text) and field.first <= int(text) <= field.last):
        raise ValueError(f"{field.name}: '{where}' must be from {field.first} to {field.last}, or '*'")
    return int(text)


def _is_number(text: str) -> bool:
    # `1#2` means the second Monday in other crons. Temporal reads `#2` as a comment, so it would mean every Monday.
    return text.isascii() and text.isdecimal() and len(text) <= 4


Cron = Annotated[str, AfterValidator(check_cron)]
"""A cron expression."""


MIN_CATCHUP_WINDOW = 10
"""Seconds: Temporal raises a shorter window to this one."""

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

    labels: Labels = Field({}, description="labels of the query")
    annotations: dict[str, str] = Field({}, description="annotations of the query")


class QueryTemplate(JsonModel):
    """A query within its Schedule, like a job in a CronJob."""

    metadata: QueryMetadata = Field(QueryMetadata(), description="labels and annotations of the query")
    spec: QuerySpec = Field(description="as the spec of a Query")


class ScheduleSpec(JsonModel):
    """The ``spec`` of a Schedule: when, which query, and what happens if two runs overlap or times are missed."""

    schedule: Cron = Field(description="a cron expression such as '0 9 * * 1-5', or '@every 10m'")
    time_zone: Annotated[str, AfterValidator(_check_time_zone)] = Field(
        "UTC", description="the time zone of the expression, such as Europe/Berlin"
    )
    query: NameOrRef | None = Field(None, description="the Query that is started")
    query_template: QueryTemplate | None = Field(None, description="the query itself, as {spec}, instead of its name")
    overlap_policy: OverlapPolicy = Field("Skip", description="what happens if the previous run is still open")
    catchup_window: Annotated[Duration, AfterValidator(_check_window)] = Field(
        "8760h", description="how late a missed run is still started, after Temporal was unavailable"
    )
    jitter: Duration | None = Field(None, description="a random delay of each start, at most this long")
    pause_on_failure: bool = Field(False, description="true to pause after a run that has failed")
    paused: bool | None = Field(None, description="whether it is paused; if it is not set, apply leaves that unchanged")
    note: str = Field("", max_length=1_000, description="for people: what it is for, or why it is paused")

    @model_validator(mode="after")
    def _has_one_query(self) -> Self:
        if self.query and self.query_template:
            raise FieldError(("queryTemplate",), "can't be combined with query: keep one of them")
        if not (self.query or self.query_template):
            raise FieldError(("query",), "is missing: write the name of a Query, or queryTemplate: {spec: …}")
        return self


class Schedule(Manifest):
    """A timetable for starting a query."""

    kind: Literal["Schedule"] = "Schedule"
    spec: ScheduleSpec = Field(description="when, and which query")

    def _references(self) -> Iterator[Reference]:
        if inline := self.inline_query():
            for reference in inline.references:
                yield replace(reference, path=(*TEMPLATE, *reference.path))
        elif self.spec.query:
            yield self._refer(("spec", "query"), ("Query",), self.spec.query)

    def inline_query(self) -> Query | None:
        """The query in its template, with the Schedule's name and namespace; None if it references a Query."""
        if self.spec.query_template is None:
            return None
        template = self.spec.query_template
        metadata = template.metadata.model_dump(exclude_unset=True)
        identity = self.metadata.model_dump(exclude_unset=True, include={"name", "namespace"})
        query_metadata = Metadata.model_validate({**metadata, **identity})
        return Query(api_version=API_VERSION, kind="Query", metadata=query_metadata, spec=template.spec)
