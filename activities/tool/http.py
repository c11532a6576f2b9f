"""``type: http``: a call becomes a request to a server, and the answer's text the result (seed 003, HTTP Tools)."""

import asyncio
import codecs
import re
from collections.abc import Callable
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urljoin

import httpx

from ...conversation.errors import ToolFailed
from ..runtime.retry import wait_for, worth_another
from .address_guard import public_address
from .http_request import HttpRequest

REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods that may be sent twice."""

LARGEST = 256_000
"""Bytes of an answer that are read; a model couldn't read more."""

SEEN = 5_000
"""Characters of an error's text; an error is cut to less once it was searched for secrets."""

MOST_REDIRECTS = 5
CONNECTING = (0.5, 1.0, 2.0)
"""Seconds between attempts to connect for a request that may be sent only once."""

_BINARY = re.compile(r"(image|audio|video|font)/|application/(octet-stream|pdf|zip|gzip|x-tar|wasm)")


class Http:
    """Sends requests. ``private`` allows hosts in the worker's own network wherever they come from.

    ``clean`` takes secrets out of an answer that is cut, and the beginning of one at its end.
    """

    def __init__(self, *, private: bool = False, clean: Callable[[str], str] = str) -> None:
        self._clean = clean
        nobody = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # one call's cookies are no other's
        self._client = httpx.AsyncClient(timeout=None, follow_redirects=False, cookies=nobody)
        self._private = private

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def send(self, request: HttpRequest, seconds: float, *, again: bool) -> str:
        """The text of the answer; raises ToolFailed, retryable if ``again`` says that the request may be repeated."""
        host = httpx.URL(request.url).host
        try:
            async with asyncio.timeout(seconds):
                return await self._follow(request, again=again)
        except ToolFailed as failed:
            retryable = again and not failed.non_retryable
            raise ToolFailed(failed.message, retryable=retryable, retry_after=failed.next_retry_delay) from None
        except TimeoutError:
            text = f"{host} gave no answer in {seconds:g} s"
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ToolFailed(f"{host} can't be reached: {error or type(error).__name__}", retryable=again) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            text = f"{host} broke off its answer: {error or type(error).__name__}"
        raise ToolFailed(text if again else f"{text}; whether it was carried out is unknown", retryable=again)

    async def _follow(self, request: HttpRequest, *, again: bool) -> str:
        own = _origin(request.url)
        for hop in range(MOST_REDIRECTS + 1):
            try:
                response = await self._connect(request, waits=() if again else CONNECTING)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if hop == 0:
                    raise
                raise httpx.ReadError(f"it led to a server that can't be reached: {error}") from None
            try:
                if not response.has_redirect_location:
                    return await _result(response, httpx.URL(request.url).host, self._clean)
                request = _redirected(request, response, own)
            finally:
                await response.aclose()
        raise ToolFailed(f"the server redirected the request more than {MOST_REDIRECTS} times", retryable=False)

    async def _connect(self, request: HttpRequest, waits: tuple[float, ...]) -> httpx.Response:
        """Sends a request; as long as it has not been sent at all, it is tried again after each of ``waits``."""
        for wait in (*waits, None):
            try:
                return await self._client.send(await self._addressed(request), stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if wait is None:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _addressed(self, request: HttpRequest) -> httpx.Request:
        """The request to the very address that was found to be allowed, under the name of its host."""
        url = httpx.URL(request.url)
        built = self._client.build_request(request.method, url, headers=request.headers, content=request.body)
        if not (request.trusted or self._private):
            port = url.port or {"http": 80, "https": 443}[url.scheme]
            built.url = url.copy_with(host=await public_address(url.host, port))
            built.extensions = {**built.extensions, "sni_hostname": url.host}
            built.headers["connection"] = "close"  # another name at this address must not be taken for this one
        return built


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def _redirected(request: HttpRequest, response: httpx.Response, own: tuple[str, str, int | None]) -> HttpRequest:
    """The request that a redirect asks for: a foreign server gets no header of the tool's, nor is it trusted."""
    url = urljoin(request.url, response.headers["location"])
    if not url.startswith(("http://", "https://")):
        raise ToolFailed("the server redirected the request to what is no HTTP address")
    here = _origin(url) == own
    turned = response.status_code == 303 or (response.status_code in (301, 302) and request.method == "POST")
    body = None if turned else request.body
    if body is not None and not here:
        raise ToolFailed("the server redirected the request, with all that it holds, to another server")
    method = "GET" if turned and request.method != "HEAD" else request.method
    headers = request.headers if here else ()
    return replace(request, method=method, url=url, headers=headers, body=body, trusted=request.trusted and here)


async def _result(response: httpx.Response, host: str, clean: Callable[[str], str]) -> str:
    text, status = await _text(response, clean), f"HTTP {response.status_code} {response.reason_phrase}".strip()
    if response.status_code >= 400:
        retryable, wait = worth_another(response.status_code), wait_for(response.headers)
        words = " ".join(text.split())[:SEEN]
        raise ToolFailed(f"{host} answered {status}: {words}".rstrip(": "), retryable=retryable, retry_after=wait)
    if response.request.method == "HEAD":
        return "\n".join((status, *(f"{name}: {value}" for name, value in response.headers.items())))
    return text or f"({status}, without a text)"


async def _text(response: httpx.Response, clean: Callable[[str], str]) -> str:
    kind = response.headers.get("content-type", "")
    data = b""
    async for chunk in response.aiter_bytes(65_536):
        data += chunk
        if len(data) > LARGEST:
            break
    if _BINARY.match(kind) or b"\0" in data[:1_000]:
        return f"[not a text: {kind.partition(';')[0] or 'binary'}, {_size(response, data)}]"
    encoding = response.charset_encoding if _known(response.charset_encoding) else None
    text = data[:LARGEST].decode(encoding or "utf-8", errors="replace")
    return text if len(data) <= LARGEST else f"{clean(text)}… [cut here: the answer has {_size(response, data)}]"


def _size(response: httpx.Response, data: bytes) -> str:
    declared = response.headers.get("content-length", "")
    exact = declared.isdigit() and "content-encoding" not in response.headers
    return f"{int(declared):,} bytes" if exact else f"{'more than ' * (len(data) > LARGEST)}{len(data):,} bytes"


def _known(encoding: str | None) -> bool:
    try:
        return bool(encoding and codecs.lookup(encoding))
    except LookupError:
        return False
