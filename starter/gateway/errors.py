"""The errors of the gateway. Each protocol has its own form for them."""

import logging

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.errors import JournalUnavailable
from ..runs.runs import NotServedError

_log = logging.getLogger(__name__)


class GatewayError(Exception):
    """A request that is not carried out; the text says why, and is shown to the client.

    ``status`` is the HTTP status, ``code`` a stable word for programs, ``param`` the field of the request that is
    wrong, ``retry_after`` the seconds after which the client may try again.
    """

    status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class BadRequestError(GatewayError):
    """The request is invalid."""


class UnauthenticatedError(GatewayError):
    """The request has no valid key or token."""

    status = 401
    code = "invalid_api_key"


class ForbiddenError(GatewayError):
    """The caller may not do this."""

    status = 403
    code = "forbidden"


class NotFoundError(GatewayError):
    """The caller sees nothing of that name or id."""

    status = 404
    code = "not_found"


class ConflictError(GatewayError):
    """The request contradicts an earlier one, or the state of the run."""

    status = 409
    code = "conflict"


class TooLargeError(GatewayError):
    """The request's body is too large."""

    status = 413
    code = "request_too_large"


class TooManyError(GatewayError):
    """The caller has reached a limit."""

    status = 429
    code = "rate_limit_exceeded"


class FailedError(GatewayError):
    """The gateway itself has failed: a bug."""

    status = 500
    code = "internal_error"


class UnavailableError(GatewayError):
    """Temporal, the journal or the workers can't be reached now."""

    status = 503
    code = "unavailable"


def as_gateway_error(error: Exception) -> GatewayError | None:
    """The error that clients see for an exception; None for a bug."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, RPCError):
        if error.status == RPCStatusCode.NOT_FOUND:
            return NotFoundError("the run does not exist any more")
        _log.warning("Temporal: %s", error.message)
        return UnavailableError("Temporal can't be reached now", retry_after=2)
    if isinstance(error, JournalUnavailable):
        _log.warning("the journal: %s", error.message)
        return UnavailableError("the journal can't be reached now", retry_after=2)
    if isinstance(error, NotServedError):
        return UnavailableError(str(error), retry_after=5)
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        return GatewayError(f"{place}: {first['msg'].removeprefix('Value error, ')}".lstrip(": "), param=place or None)
    if isinstance(error, HTTPException):
        translated = GatewayError(error.detail)
        translated.status = error.status_code
        return translated
    return None
