"""What does a failed model call mean? Try again, and when; or give up, and why."""

import email.utils
import math
import time
from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import urlsplit

import httpx2
import openai

from activities.model.endpoint import Endpoint
from conversation.errors import (
    BatonError,
    BrokenReply,
    CallTimeout,
    ContextTooLong,
    KeyRefused,
    ModelRejected,
    ModelUnavailable,
    QuotaSpent,
)

TRIED_AGAIN = frozenset({408, 409, 425, 429})
LONGEST_WAIT = timedelta(minutes=5)

_MEANINGS: dict[str, type[BatonError]] = {
    "insufficient_quota": QuotaSpent,
    "billing_hard_limit_reached": QuotaSpent,
    "context_length_exceeded": ContextTooLong,
    "string_above_max_length": ContextTooLong,
}


def meaning(error: Exception, endpoint: Endpoint) -> BatonError:
    """The error of a run that a failed call amounts to. The server's own words are kept short."""
    where = f"{endpoint.model} at {urlsplit(endpoint.base_url).hostname}"
    match error:
        case openai.APIStatusError():
            return _of_status(error, where)
        case openai.APITimeoutError() | httpx2.TimeoutException() | TimeoutError():
            return CallTimeout(f"{where} gave no answer in time")
        case openai.APIConnectionError():
            return ModelUnavailable(f"{where} can't be reached: {error.__cause__ or error}")
        case openai.APIError():
            return BrokenReply(f"{where} broke off its answer: {error.message[:500]}")
        case _:
            return BrokenReply(f"{where} answered what can't be read: {type(error).__name__}: {error!s:.500}")


def _of_status(error: openai.APIStatusError, where: str) -> BatonError:
    status, headers = error.status_code, error.response.headers
    if status in (401, 403):
        return KeyRefused(f"{where} refused the key (HTTP {status})")
    words = error.body.get("message") if isinstance(error.body, dict) else None
    text = f"{where} answered HTTP {status}: {str(words or error.message)[:500]}"
    if error.code in _MEANINGS:
        return _MEANINGS[error.code](text)
    hint = headers.get("x-should-retry")
    again = hint == "true" if hint in ("true", "false") else status in TRIED_AGAIN or status >= 500
    return ModelUnavailable(text, retry_after=wait_for(headers)) if again else ModelRejected(text)


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
