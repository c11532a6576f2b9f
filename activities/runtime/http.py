"""Which HTTP failures are retryable, and when the next attempt may start."""

import email.utils
import math
import time
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice

from temporalio.common import RetryPolicy

from ...temporal.activity import attempts_left

RETRYABLE = frozenset({408, 409, 425, 429})
"""HTTP status codes below 500 after which the same request may succeed later."""

LONGEST_DELAY = timedelta(minutes=5)

LATE_ATTEMPT = 6
SHORT_DELAY = timedelta(seconds=15)
"""From LATE_ATTEMPT on, a shorter delay that a server requests is ignored: see ``retry_delay``."""


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later after a response with ``status``."""
    return status in RETRYABLE or status >= 500


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """How long a server asks the client to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date.

    At most five minutes; None if neither header is set, or the value can't be parsed.
    """
    milliseconds = headers.get("retry-after-ms")
    text = headers.get("retry-after")
    try:
        if milliseconds is not None:
            seconds = float(milliseconds) / 1000
        elif text is None:
            return None
        elif text.strip().replace(".", "", 1).isdigit():
            seconds = float(text)
        else:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    if not math.isfinite(seconds):
        return None
    return timedelta(seconds=min(max(seconds, 0), LONGEST_DELAY.total_seconds()))


def outlasts_attempts(requested: timedelta, attempt: int, policy: RetryPolicy | None) -> bool:
    """Whether the delay that a server requests is longer than the attempts left would take, and than SHORT_DELAY.

    An alternative is there sooner then, or the run waits and says so. Never without a limit of attempts.
    """
    left = attempts_left(attempt, policy)
    if policy is None or left is None:
        return False
    most = policy.maximum_interval or 100 * policy.initial_interval  # Temporal's default
    intervals = (policy.initial_interval * policy.backoff_coefficient**number for number in range(attempt - 1, 99))
    rest = sum((min(interval, most) for interval in islice(intervals, left)), timedelta())
    return requested > max(rest, SHORT_DELAY)


def retry_delay(requested: timedelta | None, attempt: int) -> timedelta | None:
    """The delay before the next attempt: the one that the server requests, or None for that of the retry policy.

    A server that requests one second every time would use up all attempts within ten seconds. So from LATE_ATTEMPT on,
    a delay below SHORT_DELAY is ignored.
    """
    if requested is not None and attempt >= LATE_ATTEMPT and requested < SHORT_DELAY:
        return None
    return requested
