"""Is a refused request worth another try, and when? What HTTP's status codes and ``Retry-After`` say."""

import email.utils
import math
import time
from collections.abc import Mapping
from datetime import timedelta

from temporalio.common import RetryPolicy

from ...conversation.contracts.requests import MISSED

TRIED_AGAIN = frozenset({408, 409, 425, 429})
LONGEST_WAIT = timedelta(minutes=5)

LATE, SHORT = 6, timedelta(seconds=15)
"""From which attempt on a wait that is shorter than that gives way to the policy's own."""


def worth_another(status: int) -> bool:
    """Whether a later request may succeed where this one was answered with ``status``."""
    return status in TRIED_AGAIN or status >= 500


def wait_for(headers: Mapping[str, str]) -> timedelta | None:
    """How long a server asks to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date.

    At most five minutes; None for what can't be read.
    """
    milliseconds, given = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            seconds = float(milliseconds) / 1000
        elif given is None:
            return None
        elif given.strip().replace(".", "", 1).isdigit():
            seconds = float(given)
        else:
            seconds = email.utils.parsedate_to_datetime(given).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return timedelta(seconds=min(max(seconds, 0), LONGEST_WAIT.total_seconds())) if math.isfinite(seconds) else None


def is_last(attempt: int, policy: RetryPolicy | None) -> bool:
    """Whether a failure of this attempt is final; one that merely missed its heartbeats is followed by another."""
    most = policy.maximum_attempts if policy else 0
    return MISSED < most <= attempt + MISSED


def delay(asked: timedelta | None, attempt: int) -> timedelta | None:
    """How long to wait after an attempt: as the server asks, or, with None, as Temporal's policy says.

    A server that asks for a second again and again would have all attempts spent in ten, so that late ones wait longer.
    """
    return None if asked is not None and attempt >= LATE and asked < SHORT else asked
