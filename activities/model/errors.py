"""What does a failed model call mean? Try again, and when; or give up, and why."""

from urllib.parse import urlsplit

import httpx2
import openai

from ...conversation.errors import (
    BrokenReply,
    CallTimeout,
    ContextTooLong,
    KeyRefused,
    ModelRejected,
    ModelUnavailable,
    QuotaSpent,
)
from ...conversation.failure import BatonError
from ..runtime.retry import wait_for, worth_another
from .endpoint import Endpoint

SEEN = 5_000
"""Characters of a server's own words; an error is cut to less once it was searched for secrets."""

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
            reason = error.__cause__ or error
            return ModelUnavailable(f"{where} can't be reached: {str(reason) or type(reason).__name__}")
        case openai.APIError():
            return BrokenReply(f"{where} broke off its answer: {error.message[:SEEN]}")
        case _:
            return BrokenReply(f"{where} answered what can't be read: {type(error).__name__}: {str(error)[:SEEN]}")


def _of_status(error: openai.APIStatusError, where: str) -> BatonError:
    status, headers = error.status_code, error.response.headers
    if status in (401, 403):
        return KeyRefused(f"{where} refused the key (HTTP {status})")
    words = error.body.get("message") if isinstance(error.body, dict) else None
    text = f"{where} answered HTTP {status}: {str(words or error.message)[:SEEN]}"
    if error.code in _MEANINGS:
        return _MEANINGS[error.code](text)
    hint = headers.get("x-should-retry")
    again = hint == "true" if hint in ("true", "false") else worth_another(status)
    return ModelUnavailable(text, retry_after=wait_for(headers)) if again else ModelRejected(text)
