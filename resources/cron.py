"""Checks cron expressions as Temporal's schedules read them (Temporal: schedules, cron strings)."""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from .duration import parse_duration

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST_MONTH = {1: 31, 2: 29, 3: 31, 4: 30, 5: 31, 6: 30, 7: 31, 8: 31, 9: 30, 10: 31, 11: 30, 12: 31}


class _Field(NamedTuple):
    """A field of a cron expression: its first and last value, and names for the values from the first one on."""

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
_SECOND, _YEAR = _Field("second", 0, 59), _Field("year", 2000, 2100)
_FORMS = {5: _DAILY, 6: (*_DAILY, _YEAR), 7: (_SECOND, *_DAILY, _YEAR)}

SHORTHANDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def check_cron(text: str) -> str:
    """The expression itself: five fields, with a year six, with seconds and a year seven, or a shorthand.

    Raises ValueError, which says what is wrong with which field.
    """
    if text.startswith("@"):
        return _check_shorthand(text)
    if "=" in text:
        raise ValueError("has a time zone in it: write it as timeZone")
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
        raise ValueError(f"'{text}' is not known here; known: {', '.join(SHORTHANDS)}, @every DURATION")
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
        raise ValueError(f"{field.name}: '{where}' is not from {field.first} to {field.last}, nor '*'")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4


Cron = Annotated[str, AfterValidator(check_cron)]
"""A cron expression."""
