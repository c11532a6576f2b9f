"""Durations in the notation of Go and Kubernetes, such as ``1h30m``."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator

from .base import Pattern

_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s|us|µs|ns)"
_SPELLED = Pattern(f"(?:{_PART})+", "is not a duration: write '300s', '5m' or '1h30m'")
_SHORTEST, _LONGEST = 1e-3, timedelta(days=3650).total_seconds()


def parse_duration(text: str) -> timedelta:
    """Reads ``300s``, ``1h30m`` or ``1.5h``.

    Raises:
        ValueError: the text is not a duration, or is not between 1 ms and ten years.
    """
    parts = re.findall(_PART, _SPELLED.check(text))
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not _SHORTEST <= seconds <= _LONGEST:
        raise ValueError("is not a usable duration: from 1ms to ten years")
    return timedelta(seconds=seconds)


def _check(text: str) -> str:
    parse_duration(text)
    return text


Duration = Annotated[str, _SPELLED, AfterValidator(_check)]
