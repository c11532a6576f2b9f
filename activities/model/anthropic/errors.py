"""Translates a failed request to Anthropic's API into an error of a run, which says whether and when to retry."""

from urllib.parse import urlsplit

import anthropic
import httpx2

from ....conversation.errors import (
    BrokenReply,
    CallTimeout,
    ContextTooLong,
    ModelUnavailable,
    QuotaSpent,
)
from ....conversation.failure import BatonError
from ..failures import CONNECT_TIMEOUT, MAX_SERVER_TEXT, error_of_status
from .endpoint import AnthropicEndpoint

_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP status for the type of an error that comes in the midst of a stream; 500 for others."""

_BY_TYPE = {"billing_error": QuotaSpent, "request_too_large": ContextTooLong}
_BY_WORDS = {
    "prompt is too long": ContextTooLong,
    "exceed context limit": ContextTooLong,
    "credit balance is too low": QuotaSpent,
}
"""What the API says in words alone, with the type ``invalid_request_error``."""


def anthropic_error(error: Exception, endpoint: AnthropicEndpoint) -> BatonError:
    """The error of a run for what the library raised. The server's own words are kept short."""
    where = f"{endpoint.model} at {urlsplit(endpoint.base_url).hostname}"
    match error:
        case anthropic.APIStatusError():
            return _of_status(error, where)
        case anthropic.APITimeoutError(__cause__=httpx2.ConnectTimeout()):
            return ModelUnavailable(f"{where} can't be reached: no connection within {CONNECT_TIMEOUT:g} s")
        case anthropic.APITimeoutError() | httpx2.TimeoutException() | TimeoutError():
            return CallTimeout(f"{where} gave no answer in time")
        case anthropic.APIConnectionError(__cause__=BatonError() as refused):
            return refused
        case anthropic.APIConnectionError():
            reason = error.__cause__ or error
            return ModelUnavailable(f"{where} can't be reached: {str(reason) or type(reason).__name__}")
        case _:
            return BrokenReply(
                f"{where} answered what can't be read: {type(error).__name__}: {str(error)[:MAX_SERVER_TEXT]}"
            )


def _of_status(error: anthropic.APIStatusError, where: str) -> BatonError:
    words = error.api_message or error.message
    status = error.status_code if error.status_code >= 300 else _STATUS.get(error.type or "", 500)
    said = words.lower() if error.type == "invalid_request_error" else ""
    special = _BY_TYPE.get(error.type or "") or next((_BY_WORDS[each] for each in _BY_WORDS if each in said), None)
    return error_of_status(where, status, words, error.response.headers, special)
