"""What protects the gateway: names of hosts, origins, sizes and times of requests, and the limits of each caller."""

import asyncio
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..web_console.page import PREFIX as CONSOLE_FILES
from .access import Access, Caller, is_loopback
from .errors import (
    BadRequestError,
    FailedError,
    ForbiddenError,
    GatewayError,
    SlowError,
    TooLargeError,
    TooManyError,
)
from .settings import GatewaySettings

_log = logging.getLogger(__name__)

PUBLIC = frozenset({"/healthz", "/readyz", "/health", "/ready", "/ark/health", "/ark/ready"})
"""Paths that need no key. The console's files are others: see ``_is_public``."""

METHODS = "GET, POST, PUT, PATCH, DELETE"
EXPOSED = "Retry-After, WWW-Authenticate, X-Baton-Run, X-Baton-Ignored, X-Should-Retry"


RATE_SECONDS = 60.0
"""Seconds after which a request does not count any more, as the limit is that of a minute."""


@dataclass
class _Usage:
    """What a caller uses: open streams, and a leaky bucket of requests."""

    counted_at: float
    streams: int = 0
    requests: float = 0.0


class CallerLimits:
    """The limits of each caller on this process. ``clock`` tells seconds."""

    def __init__(self, settings: GatewaySettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._usage: dict[Caller, _Usage] = {}
        self._forgotten_at = clock()

    @property
    def callers(self) -> int:
        """How many callers are known: those of the last two minutes, and those with open streams."""
        return len(self._usage)

    def count_request(self, caller: Caller) -> None:
        """Counts a request. Raises TooManyError above BATON_GATEWAY_RATE a minute."""
        usage = self._of(caller)
        now = self._clock()
        per_second = self._settings.requests_per_minute / RATE_SECONDS
        usage.requests = max(0.0, usage.requests - (now - usage.counted_at) * per_second)
        usage.counted_at = now
        if usage.requests + 1 > self._settings.requests_per_minute:
            raise TooManyError("too many requests", retry_after=1 / per_second)
        usage.requests += 1

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[None]:
        """Counts a request in progress. Raises TooManyError above BATON_GATEWAY_MAX_STREAMS."""
        usage = self._of(caller)
        if usage.streams >= self._settings.max_streams:
            raise TooManyError("too many requests are open at once", retry_after=1)
        usage.streams += 1
        try:
            yield
        finally:
            usage.streams -= 1

    def _of(self, caller: Caller) -> _Usage:
        if caller not in self._usage:
            self._forget()
        return self._usage.setdefault(caller, _Usage(self._clock()))

    def _forget(self) -> None:
        """Forgets, once in a while, the callers of whom nothing counts: any number of tokens may be issued."""
        now = self._clock()
        if now - self._forgotten_at >= RATE_SECONDS:
            self._forgotten_at = now
            self._usage = {
                caller: usage
                for caller, usage in self._usage.items()
                if usage.streams or now - usage.counted_at < RATE_SECONDS
            }


def _is_public(scope: Scope) -> bool:
    """Whether a request needs no key: it asks for the health, or for a file of the console, which holds no data."""
    path = scope["path"]
    is_file = path == "/" or path.startswith(CONSOLE_FILES)
    return path in PUBLIC or (is_file and scope["method"] in ("GET", "HEAD"))


ErrorForm = Callable[[str, GatewayError], Response]
"""The response for an error of a request, by the request's path."""


class _Sender:
    """Sends a response, with the headers for pages of another origin."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.cors: Mapping[str, str] = {}
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            more = [(name.encode(), value.encode()) for name, value in self.cors.items()]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await self._send(message)


def _split(address: str) -> SplitResult:
    """The parts of an address in a header. Raises BadRequestError."""
    try:
        return urlsplit(address)
    except ValueError:
        raise BadRequestError("the header Host or Origin is not an address") from None


class Guard:
    """The outermost middleware: lets only requests through that a caller may make, with the caller in their state."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, access: Access, error_form: ErrorForm) -> None:
        self._app = app
        self._settings = settings
        self._access = access
        self._error_form = error_form
        self._limits = CallerLimits(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._guarded(scope, receive, _Sender(send))
        else:
            await self._app(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, sender: "_Sender") -> None:
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            sender.cors = self._check_origin(headers)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await Response(status_code=204)(scope, receive, sender)
            elif _is_public(scope):
                await self._app(scope, receive, sender)
            else:
                caller = await self._access.caller_of(HTTPConnection(scope))
                self._limits.count_request(caller)
                self._check_length(headers)
                scope.setdefault("state", {})["caller"] = caller
                with self._limits.stream(caller):
                    await self._app(scope, self._limited(receive), sender)
        except Exception as error:
            if sender.has_started:
                raise
            shown = error if isinstance(error, GatewayError) else None
            if shown is None:
                _log.exception("the gateway failed to carry out a request")
                shown = FailedError("the gateway failed to carry out the request; see its log")
            await self._error_form(scope["path"], shown)(scope, receive, sender)

    def _check_host(self, headers: Headers) -> None:
        """Rejects a Host that is not this gateway's: a page elsewhere may have its name resolve to this machine."""
        hosts = headers.getlist("host")
        name = _split(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
        if name is None or not (is_loopback(name) or name in self._settings.hosts or "*" in self._settings.hosts):
            raise ForbiddenError("the header Host is not a name of this gateway: see BATON_GATEWAY_HOSTS")

    def _check_origin(self, headers: Headers) -> Mapping[str, str]:
        """The CORS headers for a page of an allowed origin, or of this gateway itself; none for other programs."""
        origin = headers.get("origin")
        if origin is None:
            return {}
        host = headers.get("host", "")
        is_own = _split(origin).netloc == host and host != ""
        if not (is_own or origin in self._settings.origins):
            raise ForbiddenError("pages of this Origin may not use the gateway: see BATON_GATEWAY_ORIGINS")
        requested = headers.get("access-control-request-headers", "")
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": ", ".join(requested.split(",")[:50]).replace("\n", ""),
            "access-control-expose-headers": EXPOSED,
            "vary": "Origin",
        }

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length")
        if length and length.isascii() and length.isdecimal() and int(length) > self._settings.max_body:
            raise TooLargeError(f"the body is larger than {self._settings.max_body:,} bytes")

    def _limited(self, receive: Receive) -> Receive:
        """The same, which counts the bytes of the body, and the seconds until it is complete."""
        received = 0
        complete = False
        deadline = asyncio.get_running_loop().time() + self._settings.request_timeout

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise SlowError("the body did not arrive in time") from None
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if received > self._settings.max_body:
                    raise TooLargeError(f"the body is larger than {self._settings.max_body:,} bytes")
            return message

        return limited


class GatewayConnection(H11Protocol):
    """A connection that is cut off if its client stops to send or to read.

    A complete head of a request has to arrive in ``request_timeout`` seconds. While a client does not read, a response
    waits, and so does what it is made of; after ``send_timeout`` seconds in which it has read nothing, the connection
    is reset: to close it would wait for the client.
    """

    _limit: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, request_timeout: float, send_timeout: float, **options: Any) -> None:
        super().__init__(*args, **options)  # as uvicorn passes them
        self._timeout = request_timeout
        self._send_timeout = send_timeout

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        super().connection_made(transport)
        self._wait_for_head(transport)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete and self._limit:
            self._limit.cancel()
            self._limit = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        is_idle = self.cycle is None or self.cycle.response_complete
        if self.transport.is_closing():
            self._wait_for_reading()
        elif self._limit is None and is_idle:
            self._wait_for_head(self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread and not self.transport.is_closing():
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._limit, self._unread):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self, transport: asyncio.Transport) -> None:
        self._limit = self.loop.call_later(self._timeout, transport.abort)

    def _wait_for_reading(self) -> None:
        if self._unread is None:
            unread = self.transport.get_write_buffer_size()
            self._unread = self.loop.call_later(self._send_timeout, self._reset_unless_read, unread)

    def _reset_unless_read(self, before: int) -> None:
        self._unread = None
        unread = self.transport.get_write_buffer_size()
        if 0 < unread < before:
            self._wait_for_reading()
        elif unread:
            # Otherwise the kernel would go on to send what its buffer has.
            given: socket.socket = self.transport.get_extra_info("socket")
            given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
