"""Texts of a conversation: the type `Text`, parsing as JSON, size in bytes, truncation, and times."""

import json
import math
import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, JsonValue
from pydantic_core import to_json

MAX_MESSAGE = 64_000
"""Bytes of one message, as JSON, in a workflow's history; the journal has the whole message."""


BYTES_PER_TOKEN = 4
"""Bytes of text that are estimated as one token, until the server reports the real count.

Bytes, not characters: a Chinese character has three bytes and is about one token.
"""


def repair_surrogates(text: str) -> str:
    """The text with surrogate pairs joined into one character; a lone surrogate becomes U+FFFD.

    JSON can contain lone surrogates, but databases can't store them.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(repair_surrogates)]
"""A text from a model, a tool or a person, without lone surrogates."""


MAX_JSON = 4_000_000
"""Characters of a text that is parsed as JSON: parsing more would block the event loop."""


class NumberTooLarge(ValueError):
    """A number in JSON is larger than a float can be."""


def parse_json(text: str, *, constants: bool = True) -> JsonValue:
    """The JSON value of an untrusted text; ``constants``: NaN and Infinity are accepted.

    Raises ValueError, also if the text is too long or nested too deeply, and without ``constants`` NumberTooLarge.
    """
    if len(text) > MAX_JSON:
        raise ValueError(f"it is longer than {MAX_JSON:,} characters")
    try:
        value: JsonValue = json.loads(
            text,
            parse_constant=float if constants else _refuse_constant,
            parse_float=float if constants else finite,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"it contains {constant}")


def finite(digits: str) -> float:
    """The number that is written so. Raises NumberTooLarge: as Infinity, it would be stored as null."""
    number = float(digits)
    if not math.isfinite(number):
        raise NumberTooLarge(f"the number {digits[:30]} is too large")
    return number


def byte_size(text: str) -> int:
    """The bytes of a text as JSON."""
    return len(to_json(text))


def truncate(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text if it fits into ``limit`` bytes; otherwise its beginning and a marker with its full length."""
    if _fitting(text, limit) == text:
        return text
    length = full_length(text)  # it may have been truncated before, to a higher limit
    return f"{_fitting(beginning_of(text), limit)}… [truncated: {length:,} characters in total]"


def _fitting(text: str, limit: int) -> str:
    """The beginning of a text that fits into ``limit`` bytes."""
    prefix = text[: limit + 2]  # each character is a byte at least
    while (size := byte_size(prefix)) > limit + 2:
        prefix = prefix[: len(prefix) * limit // size]
    return prefix


_TRUNCATED = re.compile(r"… \[truncated: ([0-9,]{1,13}) characters in total\]$")


_MARKER_CHARACTERS = 60
"""More than a marker has."""


def _marker(text: str) -> re.Match[str] | None:
    return _TRUNCATED.search(text, max(0, len(text) - _MARKER_CHARACTERS))


def full_length(text: str) -> int:
    """The characters of a text before it was truncated, if it was."""
    marker = _marker(text)
    return int(marker[1].replace(",", "")) if marker else len(text)


def beginning_of(text: str) -> str:
    """A text without the marker that ``truncate`` puts at its end."""
    marker = _marker(text)
    return text[: marker.start()] if marker else text


def is_cut_from(text: str, whole: str) -> bool:
    """Whether a text was truncated, and ``whole`` begins as it does."""
    beginning = beginning_of(text)
    return len(beginning) < len(text) and whole.startswith(beginning)


MAX_COUNT = 10**12
"""The largest accepted count: counts are stored and summed in 64-bit columns."""

Count = Annotated[int, AfterValidator(lambda count: min(max(count, 0), MAX_COUNT))]


def format_time(time: datetime) -> str:
    """A time in UTC with seconds, as in ``2025-09-03T10:00:15Z`` (ARK: queries, system outputs)."""
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
