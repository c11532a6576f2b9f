"""The error of a run for a model server's answer with an HTTP error status; it says whether and when to retry."""

from collections.abc import Mapping

from ...conversation.errors import KeyRefused, ModelRejected, ModelUnavailable
from ...conversation.failure import BatonError
from ..runtime.retry import is_retryable, retry_after

CONNECT_TIMEOUT = 5.0
"""Seconds after which a server that does not accept a connection counts as unreachable."""

MAX_SERVER_TEXT = 5_000
"""Characters of a server's own words. An error is cut further, after secrets were removed from it."""


def error_of_status(
    where: str, status: int, words: str, headers: Mapping[str, str], special: type[BatonError] | None = None
) -> BatonError:
    """The error for an HTTP status. ``words`` are the server's own; ``special`` is what its error code stands for.

    The words of a server that refuses the key are left out: they may repeat the key.
    """
    if status in (401, 403):
        return KeyRefused(f"{where} refused the key (HTTP {status})")
    text = f"{where} answered HTTP {status}: {words[:MAX_SERVER_TEXT]}"
    if special:
        return special(text)
    hint = headers.get("x-should-retry")
    retryable = hint == "true" if hint in ("true", "false") else is_retryable(status)
    if not retryable:
        return ModelRejected(text)
    return ModelUnavailable(text, retry_after=retry_after(headers), outage=status >= 500)
