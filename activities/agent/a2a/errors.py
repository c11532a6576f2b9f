"""What went wrong in a request to an A2A server, and whether the server may have carried it out."""

import httpx
from a2a.utils import errors as a2a

from ....conversation.errors import AgentFailed, AgentRejected, AgentUnavailable, KeyRefused
from ....conversation.failure import BatonError
from ....conversation.text import truncate
from ...runtime.retry import is_retryable, retry_after

LONGEST = 1_000
"""Characters of a server's words in an error."""

TURNED_AWAY = frozenset({425, 429, 503})
"""HTTP status codes by which a server says that it has not begun: the request may be sent again."""

_BY_SERVER = (
    a2a.UnsupportedOperationError,
    a2a.ContentTypeNotSupportedError,
    a2a.InvalidParamsError,
    a2a.InvalidRequestError,
    a2a.MethodNotFoundError,
    a2a.ExtensionSupportRequiredError,
    a2a.VersionNotSupportedError,
    a2a.TaskNotFoundError,
    a2a.TaskNotCancelableError,
)


def is_not_begun(error: Exception) -> bool:
    """Whether a request has had no effect: it did not arrive, or the server turned it away."""
    cause = _cause(error)
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.status_code in TURNED_AWAY
    return isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout)


def error_of(error: Exception, server: str) -> BatonError:
    """The meaning of an exception of the SDK, or of what it uses to read an answer."""
    if isinstance(error, BatonError):
        return error
    cause, words = _cause(error), truncate(str(error) or type(error).__name__, LONGEST)
    if isinstance(error, _BY_SERVER):
        return AgentRejected(f"{server} refuses the request: {words}")
    if isinstance(cause, httpx.HTTPStatusError):
        return _of_status(cause.response, server)
    if isinstance(cause, httpx.RequestError):
        return AgentUnavailable(f"{server} can't be reached: {cause or type(cause).__name__}")
    return AgentFailed(f"{server} gives no answer that can be read: {type(error).__name__}: {words}")


def _of_status(response: httpx.Response, server: str) -> BatonError:
    status = response.status_code
    text = f"{server} answered HTTP {status} {response.reason_phrase}".strip()
    if status in (401, 403):
        return KeyRefused(text)
    if is_retryable(status):
        return AgentUnavailable(text, retry_after=retry_after(response.headers), outage=status >= 500)
    return AgentRejected(text)


def _cause(error: Exception) -> BaseException:
    """The exception of HTTP behind one of the SDK, or the exception itself."""
    return error.__cause__ if isinstance(error.__cause__, httpx.HTTPError) else error
