"""Translates a failed request to a model into an error of a run, which says whether and when to retry."""

import httpx2
import openai

from ....conversation.errors import (
    BrokenReply,
    CallTimeout,
    ContentFiltered,
    ContextTooLong,
    KeyRefused,
    ModelRejected,
    ModelUnavailable,
    QuotaSpent,
)
from ....conversation.failure import BatonError
from ...runtime.retry import is_retryable
from ..failures import CONNECT_TIMEOUT, MAX_SERVER_TEXT, error_of_status
from .endpoint import Endpoint

_KEY_REFUSED = frozenset({"401", "403", "invalid_api_key", "authentication_error", "permission_error"})
"""Statuses, codes and types of errors about the key: a server's words about it are not kept, as they may repeat it."""

_BY_CODE: dict[str, type[BatonError]] = {
    "insufficient_quota": QuotaSpent,
    "billing_hard_limit_reached": QuotaSpent,
    "context_length_exceeded": ContextTooLong,
    "string_above_max_length": ContextTooLong,
    "content_filter": ContentFiltered,
    "invalid_request_error": ModelRejected,
}


def error_of(error: Exception, endpoint: Endpoint) -> BatonError:
    """The error of a run for what the library raised. The server's own words are kept short."""
    where = endpoint.where
    match error:
        case openai.APIStatusError():
            return _of_status(error, where)
        case openai.APITimeoutError(__cause__=httpx2.ConnectTimeout()):
            return ModelUnavailable(f"{where} can't be reached: no connection within {CONNECT_TIMEOUT:g} s")
        case openai.APITimeoutError() | httpx2.TimeoutException() | TimeoutError():
            return CallTimeout(f"{where} gave no answer in time")
        case openai.APIConnectionError(__cause__=BatonError() as refused):
            return refused
        case openai.APIConnectionError():
            reason = error.__cause__ or error
            return ModelUnavailable(f"{where} can't be reached: {str(reason) or type(reason).__name__}")
        case openai.APIError():
            return _of_event(error, where)
        case _:
            return BrokenReply(
                f"{where} answered what can't be read: {type(error).__name__}: {str(error)[:MAX_SERVER_TEXT]}"
            )


def _of_event(error: openai.APIError, where: str) -> BatonError:
    """The error that a server reports within a stream, after it has answered with HTTP 200."""
    named = [str(each) for each in (error.code, error.type) if each]
    if refused := next((each for each in named if each in _KEY_REFUSED), None):
        return KeyRefused(f"{where} refused the key ({refused})")
    text = f"{where} broke off its answer: {error.message[:MAX_SERVER_TEXT]}"
    known = next((_BY_CODE[each] for each in named if each in _BY_CODE), None)
    final = any(each.isdigit() and not is_retryable(int(each)) for each in named)
    return known(text) if known else ModelRejected(text) if final else BrokenReply(text)


def _of_status(error: openai.APIStatusError, where: str) -> BatonError:
    if error.code in _KEY_REFUSED:
        return KeyRefused(f"{where} refused the key (HTTP {error.status_code})")
    words = error.body.get("message") if isinstance(error.body, dict) else None
    special = _BY_CODE.get(error.code or "")
    return error_of_status(where, error.status_code, str(words or error.message), error.response.headers, special)
