"""The errors of the gateway. Each protocol has its own form for them."""


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
