"""Tools of ``type: http``: using one sends a request to a server; the response's text is the result."""

import asyncio
import codecs
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin

import httpx

from ...contracts.errors import InvalidManifest, ToolFailed
from ...observability.spans import trace_headers
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.template import fill
from ...resources.tool import ARGUMENTS, HttpSpec, Tool
from ...resources.values import Header
from ...temporal.activity import idempotency_key
from ..context.value_resolver import ValueResolver
from ..runtime.http import is_retryable, retry_after
from ..runtime.outbound import CONNECTIONS, BodyLimits, Outbound
from ..runtime.secrets import SecretStore
from .http_request import HttpRequest, header_argument, request_of
from .tool import BeginOnce, CallableTool, ToolContext, ToolDefinition, no_guard

MAX_ERROR_TEXT = 5_000
"""Characters of an error's text. An error is cut further, after secrets were removed from it."""

CHARSETS = re.compile(r"ascii|utf-(8|16|32).*|(iso8859|cp|koi8|mac|euc|shift|iso2022|big5|gb|tis)[\w-]*")
"""Python's names for the encodings of texts; decoding takes a time that grows with the length alone."""

_BINARY = re.compile(r"(image|audio|video|font)/|application/(octet-stream|pdf|zip|gzip|x-tar|wasm)")


async def result_of(response: httpx.Response, host: str, redact: Callable[[str], str], limit: int) -> str:
    """The text of a response, of which ``limit`` bytes are read; raises ToolFailed for an error."""
    text = await _text(response, redact, limit)
    status = f"HTTP {response.status_code} {response.reason_phrase}".strip()
    if response.status_code >= 400:
        retryable = is_retryable(response.status_code)
        wait = retry_after(response.headers)
        words = " ".join(text.split())[:MAX_ERROR_TEXT]
        said = f"{host} answered {status}: {words}".rstrip(": ")
        outage = response.status_code >= 500
        raise ToolFailed(said, retryable=retryable, retry_after=wait, outage=outage)
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
    text = data[:limit].decode(_charset(response.charset_encoding), errors="replace")
    return text if len(data) <= limit else f"{redact(text)}… [cut here: the answer has {_size(response, data, limit)}]"


def _size(response: httpx.Response, data: bytes, limit: int) -> str:
    declared = response.headers.get("content-length", "")
    exact = declared.isdigit() and "content-encoding" not in response.headers
    return f"{int(declared):,} bytes" if exact else f"{'more than ' * (len(data) > limit)}{len(data):,} bytes"


def _charset(given: str | None) -> str:
    """The name of a text encoding, UTF-8 where a server names none: Python also has encodings such as zlib."""
    try:
        name = codecs.lookup(given or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return name if CHARSETS.fullmatch(name) else "utf-8"


REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods of requests that may be sent twice."""

MAX_BYTES = 256_000
"""Bytes of a response that are read; a model couldn't read more."""

MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0
"""The longest time for one attempt to connect."""

RECONNECT_DELAYS = (0.5, 1.0, 2.0)
"""Seconds between the attempts to connect for a request that may be sent only once."""


class HttpClient:
    """Sends requests. ``private`` allows hosts in the worker's own network even where an argument names them.

    ``redact`` removes secrets from a response that is cut, and the beginning of a secret at its end.
    """

    def __init__(
        self, *, private: bool = False, redact: Callable[[str], str] = str, max_bytes: int = MAX_BYTES
    ) -> None:
        self._redact = redact
        self._max_bytes = max_bytes
        self._trusted = _open(guarded=False)
        self._guarded = _open(guarded=not private)

    async def close(self) -> None:
        """Closes the connections."""
        await self._trusted.aclose()
        await self._guarded.aclose()

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
            retryable = repeatable and not failed.non_retryable
            wait = failed.next_retry_delay
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
                client = self._trusted if request.trusted else self._guarded
                built = client.build_request(
                    request.method,
                    request.url,
                    headers=request.headers,
                    content=request.body,
                    extensions=sending.extensions,
                )
                return await client.send(built, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if wait is None:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")


def _open(*, guarded: bool) -> httpx.AsyncClient:
    # No limits: answers are read up to ``max_bytes``, and then left.
    outbound = Outbound(BodyLimits(None, None), guarded=guarded, server="the server")
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # no request shares cookies with another
    return outbound.open(httpx.AsyncClient, cookies=no_cookies, limits=httpx.Limits(**CONNECTIONS))


class _Sending:
    """Watches the sending of a request: its clock starts when it has a connection, right before it is sent."""

    def __init__(self, limit: asyncio.Timeout, seconds: float, begin: BeginOnce) -> None:
        self._limit = limit
        self._seconds = seconds
        self._begin = begin
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


class HttpTools:
    """A ``ToolSource`` (ARK: queries, tool execution).

    BATON_ALLOW_PRIVATE_HOSTS lets arguments choose hosts in the worker's own network.
    """

    def __init__(self, secrets: SecretStore) -> None:
        self._client = HttpClient(private=secrets.allows_private_hosts, redact=secrets.redact_partial)

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The one tool of a manifest; its description and schema stand there."""
        manifest = context.manifest
        http = manifest.spec.http if manifest else None
        if manifest is None or http is None:
            raise InvalidManifest(f"the tool {context.name} has no http request")
        hints = manifest.spec.annotations
        harmless = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        repeatable = context.repeatable or harmless or http.method in REPEATABLE

        async def use(arguments: JsonObject) -> str:
            request = _request(context, manifest, http, arguments)
            begin = no_guard if repeatable else context.begin_once
            return await self._client.send(request, http.seconds, repeatable=repeatable, begin=begin)

        return [CallableTool(ToolDefinition(context.name, manifest.model_description, manifest.input_schema), use)]

    async def pin(self, values: ValueResolver) -> Catalog:
        """Their manifests say all."""
        return values.catalog

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _request(context: ToolContext, tool: Tool, http: HttpSpec, arguments: JsonObject) -> HttpRequest:
    values = context.values
    value = values.parameter_lookup(tool, *(owner for owner in (context.agent, values.query()) if owner))

    def known(name: str) -> str:
        return header_argument(arguments, name.removeprefix(ARGUMENTS)) if name.startswith(ARGUMENTS) else value(name)

    texts = ((each, _header(each, values.resolve(each.value, tool) or "", known)) for each in http.headers)
    headers = [(each.name, text) for each, text in texts if text or ARGUMENTS not in (each.value.value or "")]
    request = request_of(http, headers, arguments, value, idempotency_key())
    return replace(request, trusted=request.trusted and not values.is_guarded(tool))


def _header(header: Header, text: str, value: Callable[[str], str]) -> str:
    """A header's text. A literal in the manifest is a template; what comes from a Secret or a ConfigMap is not."""
    return (fill(text, value) if header.value.value else text).strip()
