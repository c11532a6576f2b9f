"""What protects the gateway: names of hosts, origins, sizes and times of requests, and the limits of each caller."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .access import Access, Caller, is_loopback
from .errors import FailedError, ForbiddenError, GatewayError, TooLargeError, TooManyError
from .settings import GatewaySettings

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 30.0
"""Seconds within which a request has to be complete, from the first byte of the connection or the last response."""

SEND_SECONDS = 60.0
"""Seconds after which a client that reads nothing is disconnected."""

PUBLIC = frozenset({"/healthz", "/readyz", "/health", "/ready", "/ark/health", "/ark/ready"})
"""Paths that need no key."""

METHODS = "GET, POST, PUT, PATCH, DELETE"
EXPOSED = "Retry-After, WWW-Authenticate, X-Baton-Run"


@dataclass
class _Usage:
    """What a caller uses: open streams, and a token bucket of requests."""

    streams: int = 0
    requests: float = 0.0
    counted_at: float = field(default_factory=time.monotonic)


class CallerLimits:
    """The limits of each caller on this process."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._usage: dict[Caller, _Usage] = {}

    def count_request(self, caller: Caller) -> None:
        """Counts a request. Raises TooManyError above BATON_GATEWAY_RATE a minute."""
        usage = self._of(caller)
        now = time.monotonic()
        per_second = self._settings.requests_per_minute / 60
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
        return self._usage.setdefault(caller, _Usage())


ErrorForm = Callable[[str, GatewayError], Response]
"""The response for an error of a request, by the request's path."""


class _Sender:
    """Sends a response, with the headers for pages of another origin, to a client that reads it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.cors: Mapping[str, str] = {}
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            more = [(name.encode(), value.encode()) for name, value in self.cors.items()]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise OSError("the client reads nothing") from None


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
            elif scope["path"] in PUBLIC:
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
                _log.exception("the gateway has failed to carry out a request")
                shown = FailedError("the gateway has failed to carry out the request; see its log")
            await self._error_form(scope["path"], shown)(scope, receive, sender)

    def _check_host(self, headers: Headers) -> None:
        """Rejects a Host that is not this gateway's: a page elsewhere may have its name resolve to this machine."""
        hosts = headers.getlist("host")
        name = urlsplit(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
        if name is None or not (is_loopback(name) or name in self._settings.hosts or "*" in self._settings.hosts):
            raise ForbiddenError("the header Host is not a name of this gateway: see BATON_GATEWAY_HOSTS")

    def _check_origin(self, headers: Headers) -> Mapping[str, str]:
        """The CORS headers for a page of an allowed origin, or of this gateway itself; none for other programs."""
        origin = headers.get("origin")
        if origin is None:
            return {}
        host = headers.get("host", "")
        is_own = urlsplit(origin).netloc == host and host != ""
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
        deadline = asyncio.get_running_loop().time() + REQUEST_SECONDS

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise TooLargeError("the body did not arrive in time") from None
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if received > self._settings.max_body:
                    raise TooLargeError(f"the body is larger than {self._settings.max_body:,} bytes")
            return message

        return limited


class GatewayConnection(H11Protocol):
    """A connection that is closed if no complete head of a request arrives in REQUEST_SECONDS."""

    _limit: asyncio.TimerHandle | None = None

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
        if self._limit is None and is_idle and not self.transport.is_closing():
            self._wait_for_head(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit:
            self._limit.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self, transport: asyncio.Transport) -> None:
        self._limit = self.loop.call_later(REQUEST_SECONDS, transport.abort)


def parse_json(body: bytes) -> object:
    """The value of a JSON body. Raises GatewayError for other bodies, duplicate keys, and deep nesting."""
    try:
        value = json.loads(body, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, _JsonError) else "it is not valid JSON"
        raise GatewayError(f"the body can't be read: {reason}") from None
    return value


class _JsonError(ValueError):
    pass


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _JsonError("an object has two fields of the same name")
    return value


def _no_constant(name: str) -> object:
    raise _JsonError(f"{name} is not JSON")
