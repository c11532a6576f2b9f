"""The errors of the gateway. Each protocol has its own form for them."""

import logging
from collections.abc import Collection
from typing import Self

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.errors import InvalidInput, JournalUnavailable, NotRedacted
from ...contracts.settings import SettingsError
from ...resources.problems import explain_errors
from ..runs.runs import NotServedError

_log = logging.getLogger(__name__)


class GatewayError(Exception):
    """A request that is not carried out; the text says why, and is shown to the client.

    ``status`` is the HTTP status, ``code`` a stable word for programs, ``param`` the field of the request that is
    wrong, ``retry_after`` the seconds after which the client may try again, ``methods`` those that the path has if it
    does not have the method of the request.
    """

    status = 400
    code = "invalid_request"
    methods: Collection[str] = ()

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def named(self, parameter: str, *, exactly: bool = True) -> Self:
        """The same error about the client's ``parameter``, of which the wrong field was made.

        Without ``exactly``, the place within the field is not the one within the parameter.
        """
        place = self.param or ""
        _, dot, rest = place.partition(".") if exactly else (place, "", "")
        param = f"{parameter}{dot}{rest}"
        text = self.message.removeprefix(place)
        message = f"{param}{text}" if text != self.message else self.message
        return type(self)(message, param=param, retry_after=self.retry_after)


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


class SlowError(GatewayError):
    """The request's body did not arrive in time."""

    status = 408
    code = "request_timeout"


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


def invalid_body(error: ValidationError, model: type[BaseModel]) -> BadRequestError:
    """The first error of what a client has sent, which should be a ``model``."""
    path, reason = next(explain_errors(error, model))
    place = ".".join(map(str, path))
    return BadRequestError(f"{place or 'the body'}: {reason}", param=place or None)


def _not_routed(error: HTTPException) -> GatewayError:
    """The error for a path or a method that the gateway does not have."""
    if error.status_code == NotFoundError.status:
        return NotFoundError("this path is not served: GET /openapi.json lists those of runs and manifests")
    translated = GatewayError(error.detail)
    translated.status = error.status_code
    return translated


TOO_LARGE = ("size exceeds limit", "larger than max")
"""What Temporal says of a request that is larger than it stores or reads; its status is that of other errors, too."""


def as_gateway_error(error: Exception) -> GatewayError | None:
    """The error that clients see for an exception; None for a bug."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, RPCError) and any(words in error.message for words in TOO_LARGE):
        return TooLargeError("the request is larger than Temporal stores in one piece")
    if isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND:
        return NotFoundError("the run does not exist any more")
    if isinstance(error, NotRedacted) and error.has_files:
        return BadRequestError(error.message)
    if isinstance(error, ValidationError):
        return invalid_body(error, BaseModel)
    if isinstance(error, HTTPException):
        return _not_routed(error)
    return _unavailable(error)


def _unavailable(error: Exception) -> UnavailableError | None:
    """The error for what the gateway needs and can't have now, which the log explains; None for a bug."""
    if isinstance(error, RPCError):
        _log.warning("Temporal: %s", error.message)
        return UnavailableError("Temporal can't be reached now", retry_after=2)
    if isinstance(error, JournalUnavailable):
        _log.warning("the journal: %s", error.message)
        return UnavailableError("the journal can't be reached now", retry_after=2)
    if isinstance(error, NotRedacted):
        _log.error("%s", error.message)
        return UnavailableError("personal data can't be redacted now, so nothing was stored", retry_after=60)
    if isinstance(error, SettingsError):  # such as a key of encryption that is missing
        _log.error("%s", error)
        return UnavailableError("the gateway's settings do not let it do this; see its log", retry_after=60)
    if isinstance(error, InvalidInput):  # what Temporal has stored can't be read, such as after an application's codec
        _log.error("%s", error.message)
        return UnavailableError(error.message, retry_after=60)
    if isinstance(error, NotServedError):
        return UnavailableError(str(error), retry_after=5)
    if isinstance(error, WorkflowQueryFailedError):  # its workflow tasks fail, or it is none of Baton's
        _log.warning("a run can't answer: %s", error)
        return UnavailableError(f"the run can't answer now: {error}", retry_after=5)
    return None
