"""Sends the requests of HTTP tools: timeouts, redirects, reconnects, and what becomes of each kind of response."""

import asyncio
import codecs
import re
from collections.abc import Callable
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urljoin

import httpx

from ...conversation.errors import ToolFailed
from ..runtime.certificates import read_once
from ..runtime.retry import is_retryable, retry_after
from .address_guard import public_address
from .http_request import HttpRequest

REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods of requests that may be sent twice."""

MAX_BYTES = 256_000
"""Bytes of a response that are read; a model couldn't read more."""

MAX_ERROR_TEXT = 5_000
"""Characters of an error's text. An error is cut further, after secrets were removed from it."""

MAX_REDIRECTS = 5
RECONNECT_DELAYS = (0.5, 1.0, 2.0)
"""Seconds between the attempts to connect for a request that may be sent only once."""

_BINARY = re.compile(r"(image|audio|video|font)/|application/(octet-stream|pdf|zip|gzip|x-tar|wasm)")


class HttpClient:
    """Sends requests. ``private`` allows hosts in the worker's own network even where an argument names them.

    ``redact`` removes secrets from a response that is cut, and the beginning of a secret at its end.
    """

    def __init__(
        self, *, private: bool = False, redact: Callable[[str], str] = str, max_bytes: int = MAX_BYTES
    ) -> None:
        self._redact, self._max_bytes = redact, max_bytes
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # no request shares cookies with another
        trusted = read_once(httpx.create_ssl_context)
        self._client = httpx.AsyncClient(timeout=None, follow_redirects=False, cookies=no_cookies, verify=trusted)
        self._private = private

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def send(self, request: HttpRequest, seconds: float, *, repeatable: bool) -> str:
        """The response's text. Raises ToolFailed, which is retryable only if the request is ``repeatable``."""
        host = httpx.URL(request.url).host
        try:
            async with asyncio.timeout(seconds):
                return await self._follow(request, repeatable=repeatable)
        except ToolFailed as failed:
            retryable = repeatable and not failed.non_retryable
            raise ToolFailed(failed.message, retryable=retryable, retry_after=failed.next_retry_delay) from None
        except TimeoutError:
            text = f"{host} gave no answer in {seconds:g} s"
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ToolFailed(
                f"{host} can't be reached: {error or type(error).__name__}", retryable=repeatable
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            text = f"{host} broke off its answer: {error or type(error).__name__}"
        raise ToolFailed(text if repeatable else f"{text}; whether it was carried out is unknown", retryable=repeatable)

    async def _follow(self, request: HttpRequest, *, repeatable: bool) -> str:
        origin = _origin(request.url)
        for hop in range(MAX_REDIRECTS + 1):
            try:
                response = await self._connect(request, waits=() if repeatable else RECONNECT_DELAYS)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if hop == 0:
                    raise
                raise httpx.ReadError(f"it led to a server that can't be reached: {error}") from None
            try:
                if not response.has_redirect_location:
                    return await _result(response, httpx.URL(request.url).host, self._redact, self._max_bytes)
                request = _redirected(request, response, origin)
            finally:
                await response.aclose()
        raise ToolFailed(f"the server redirected the request more than {MAX_REDIRECTS} times", retryable=False)

    async def _connect(self, request: HttpRequest, waits: tuple[float, ...]) -> httpx.Response:
        """Sends a request. Where no connection could be made, it tries again after each of ``waits`` (seconds)."""
        for wait in (*waits, None):
            try:
                return await self._client.send(await self._addressed(request), stream=True)
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


async def _result(response: httpx.Response, host: str, redact: Callable[[str], str], limit: int) -> str:
    text, status = await _text(response, redact, limit), f"HTTP {response.status_code} {response.reason_phrase}".strip()
    if response.status_code >= 400:
        retryable, wait = is_retryable(response.status_code), retry_after(response.headers)
        words = " ".join(text.split())[:MAX_ERROR_TEXT]
        raise ToolFailed(f"{host} answered {status}: {words}".rstrip(": "), retryable=retryable, retry_after=wait)
    if response.request.method == "HEAD":
        return "\n".join((status, *(f"{name}: {value}" for name, value in response.headers.items())))
    return text or f"({status}, without a text)"


async def _text(response: httpx.Response, redact: Callable[[str], str], limit: int) -> str:
    kind = response.headers.get("content-type", "")
    data = b""
    async for chunk in response.aiter_bytes(65_536):
        data += chunk
        if len(data) > limit:
            break
    if _BINARY.match(kind) or b"\0" in data[:1_000]:
        return f"[not a text: {kind.partition(';')[0] or 'binary'}, {_size(response, data, limit)}]"
    encoding = response.charset_encoding if _known(response.charset_encoding) else None
    text = data[:limit].decode(encoding or "utf-8", errors="replace")
    return text if len(data) <= limit else f"{redact(text)}… [cut here: the answer has {_size(response, data, limit)}]"


def _size(response: httpx.Response, data: bytes, limit: int) -> str:
    declared = response.headers.get("content-length", "")
    exact = declared.isdigit() and "content-encoding" not in response.headers
    return f"{int(declared):,} bytes" if exact else f"{'more than ' * (len(data) > limit)}{len(data):,} bytes"


def _known(encoding: str | None) -> bool:
    try:
        return bool(encoding and codecs.lookup(encoding))
    except LookupError:
        return False
