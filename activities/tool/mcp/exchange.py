"""What becomes of the HTTP requests of one call: the MCP library tells its callers neither the status nor the cause."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta


@dataclass
class Exchange:
    """The last request of a call.

    ``sent``: it may have reached the server. ``status``: of an answer that is an error, with its ``text`` and how long
    the server asks to ``wait``. ``failure``: why there is no answer; ``final``: nor will there ever be one.
    ``in_session``: it named a session of the server.
    """

    sent: bool = False
    status: int = 0
    text: str = ""
    wait: timedelta | None = None
    failure: str = ""
    final: bool = False
    in_session: bool = False

    @property
    def session_lost(self) -> bool:
        """Whether the server doesn't know the session, or wants one: it has carried out nothing.

        (MCP: session management.) It wants one where it was put back to an older version while a connection was open.
        """
        return (self.in_session and self.status == 404) or (self.status == 400 and "session" in self.text.lower())


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


@contextmanager
def watch_exchange() -> Iterator[Exchange]:
    """Notes what becomes of the requests that are sent within the block, also from tasks that it begins."""
    token = _current.set(exchange := Exchange())
    try:
        yield exchange
    finally:
        _current.reset(token)


def current_exchange() -> Exchange:
    """The exchange of the running call; one that nobody reads where there is none."""
    return _current.get() or Exchange()
