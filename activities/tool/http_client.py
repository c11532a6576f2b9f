"""Sends the requests of HTTP tools: connections, timeouts, redirects and reconnects."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin

import httpx

from ...conversation.errors import ToolFailed
from ..runtime.bounded_body import BodyLimits, client_options
from ..runtime.call_spans import trace_headers
from ..runtime.certificates import read_once
from .address_guard import public_address
from .http_request import HttpRequest
from .http_response import result_of
from .tool import BeginOnce, no_guard

REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods of requests that may be sent twice."""

MAX_BYTES = 256_000
"""Bytes of a response that are read; a model couldn't read more."""

MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0
"""The longest time for one attempt to connect."""

UNPACKED = BodyLimits(None, None, lambda text: ToolFailed(f"the server {text}"))
"""Whoever reads a response here stops by itself, after ``max_bytes``."""

RECONNECT_DELAYS = (0.5, 1.0, 2.0)
"""Seconds between the attempts to connect for a request that may be sent only once."""


class HttpClient:
    """Sends requests. ``private`` allows hosts in the worker's own network even where an argument names them.

    ``redact`` removes secrets from a response that is cut, and the beginning of a secret at its end.
    """

    def __init__(
        self, *, private: bool = False, redact: Callable[[str], str] = str, max_bytes: int = MAX_BYTES
    ) -> None:
        self._redact, self._max_bytes = redact, max_bytes
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # no request shares cookies with another
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            cookies=no_cookies,
            verify=read_once(httpx.create_ssl_context),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),  # a worker bounds its calls itself
            **client_options(UNPACKED),
        )
        self._private = private

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def send(self, request: HttpRequest, seconds: float, *, repeatable: bool, begin: BeginOnce = no_guard) -> str:
        """The response's text, which comes within ``seconds`` after there is a connection.

        ``begin`` is awaited right before the request is sent. Raises ToolFailed, which is retryable only if the request
        is ``repeatable``, and what ``begin`` raises.
        """
        host = self._host(request)
        given = {name.lower() for name, _ in request.headers}
        trace = [each for each in trace_headers().items() if each[0] not in given]
        request = replace(request, headers=(*request.headers, *trace))
        try:
            async with asyncio.timeout(None) as limit:
                sending = _Sending(limit, seconds, begin)
                return await self._follow(request, sending, repeatable=repeatable)
        except ToolFailed as failed:
            retryable, wait = repeatable and not failed.non_retryable, failed.next_retry_delay
            raise ToolFailed(failed.message, retryable=retryable, retry_after=wait, outage=failed.outage) from None
        except TimeoutError:
            text = f"{host} gave no answer in {seconds:g} s"
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            text = f"{host} can't be reached: {error or type(error).__name__}"
            raise ToolFailed(text, retryable=repeatable, outage=True) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            text = f"{host} broke off its answer: {error or type(error).__name__}"
        text = text if repeatable else f"{text}; whether it was carried out is unknown"
        raise ToolFailed(text, retryable=repeatable, outage=True)

    def _host(self, request: HttpRequest) -> str:
        """The host of a request's address; raises ToolFailed where it can't be one, such as 0177.0.0.1."""
        try:
            return httpx.URL(request.url).host
        except (httpx.InvalidURL, ValueError) as error:
            raise ToolFailed(f"the address of the request is none: {error}") from None

    async def _follow(self, request: HttpRequest, sending: "_Sending", *, repeatable: bool) -> str:
        origin = _origin(request.url)
        for hop in range(MAX_REDIRECTS + 1):
            try:
                response = await self._connect(request, sending, waits=() if repeatable else RECONNECT_DELAYS)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if hop == 0:
                    raise
                raise httpx.ReadError(f"it led to a server that can't be reached: {error}") from None
            try:
                if not response.has_redirect_location:
                    return await result_of(response, httpx.URL(request.url).host, self._redact, self._max_bytes)
                request = _redirected(request, response, origin)
            finally:
                await response.aclose()
        raise ToolFailed(f"the server redirected the request more than {MAX_REDIRECTS} times", retryable=False)

    async def _connect(self, request: HttpRequest, sending: "_Sending", waits: tuple[float, ...]) -> httpx.Response:
        """Sends a request. Where no connection could be made, it tries again after each of ``waits`` (seconds)."""
        for wait in (*waits, None):
            try:
                built = await self._addressed(request)
                built.extensions = {**built.extensions, **sending.extensions}
                return await self._client.send(built, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if wait is None:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _addressed(self, request: HttpRequest) -> httpx.Request:
        """The request to the IP address that was checked, with the name of its host in the header and for TLS."""
        url = httpx.URL(request.url)
        built = self._client.build_request(request.method, url, headers=request.headers, content=request.body)
        if not (request.trusted or self._private):
            port = url.port or {"http": 80, "https": 443}[url.scheme]
            built.url = url.copy_with(host=await public_address(url.host, port))
            built.extensions = {**built.extensions, "sni_hostname": url.host}
            # a connection for this host must not be reused for another host at this address
            built.headers["connection"] = "close"
        return built


class _Sending:
    """Watches the sending of a request: its clock starts when it has a connection, right before it is sent."""

    def __init__(self, limit: asyncio.Timeout, seconds: float, begin: BeginOnce) -> None:
        self._limit, self._seconds, self._begin = limit, seconds, begin
        self._sent = False
        timeout = httpx.Timeout(None, connect=min(seconds, CONNECT_SECONDS)).as_dict()
        self.extensions = {"trace": self._trace, "timeout": timeout}

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by the library at each step. A redirected request was sent already, and a proxy's CONNECT is none."""
        is_sending = event.endswith("send_request_headers.started") and info["request"].method != b"CONNECT"
        if is_sending and not self._sent:
            await self._begin()
            self._sent = True
            self._limit.reschedule(asyncio.get_running_loop().time() + self._seconds)


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def _redirected(request: HttpRequest, response: httpx.Response, origin: tuple[str, str, int | None]) -> HttpRequest:
    """The request that a redirect asks for. Another server gets none of the tool's headers, and is not trusted."""
    url = urljoin(request.url, response.headers["location"])
    if not url.startswith(("http://", "https://")):
        raise ToolFailed("the server redirected the request to what is no HTTP address")
    same_origin = _origin(url) == origin
    becomes_get = response.status_code == 303 or (response.status_code in (301, 302) and request.method == "POST")
    body = None if becomes_get else request.body
    if body is not None and not same_origin:
        raise ToolFailed("the server redirected the request, with all that it holds, to another server")
    method = "GET" if becomes_get and request.method != "HEAD" else request.method
    headers = request.headers if same_origin else ()
    return replace(request, method=method, url=url, headers=headers, body=body, trusted=request.trusted and same_origin)
