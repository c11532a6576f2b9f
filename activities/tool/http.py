"""Tools of ``type: http``: a call sends a request to a server; the response's text is the result."""

import asyncio
import codecs
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin

import httpx

from ...contracts.errors import InvalidManifest, ToolFailed
from ...journal.leases import Lease
from ...observability.spans import trace_headers
from ...resources.base import JsonObject
from ...resources.run_catalog import RunCatalog
from ...resources.template import fill
from ...resources.tool import ARGUMENTS, HttpSpec, Tool
from ...resources.values import Header
from ...temporal.activity import idempotency_key
from ..context.value_resolver import ValueResolver
from ..runtime.http import is_retryable, retry_after
from ..runtime.outbound import CONNECTIONS, BodyLimits, Outbound
from ..runtime.secrets import SecretStore
from .http_request import HttpRequest, header_argument, request_of, server_provenance, server_template, server_url
from .tool import BeginOnce, CallableTool, ToolContext, ToolDefinition, no_guard

MAX_ERROR_TEXT = 5_000
"""Characters of an error's text. An error is truncated further after redaction."""

CHARSETS = re.compile(r"ascii|utf-(8|16|32).*|(iso8859|cp|koi8|mac|euc|shift|iso2022|big5|gb|tis)[\w-]*")
"""Python's names of text encodings: their decoding takes linear time."""

_BINARY = re.compile(r"(image|audio|video|font)/|application/(octet-stream|pdf|zip|gzip|x-tar|wasm)")


async def result_of(response: httpx.Response, host: str, redact: Callable[[str], str], limit: int) -> str:
    """The text of a response, of which up to ``limit`` bytes are read. Raises ToolFailed for an error status."""
    text = await _text(response, redact, limit)
    status = f"HTTP {response.status_code} {response.reason_phrase}".strip()
    if response.status_code >= 400:
        retryable = is_retryable(response.status_code)
        wait = retry_after(response.headers)
        body = " ".join(text.split())[:MAX_ERROR_TEXT]
        error = f"{host} answered {status}: {body}".rstrip(": ")
        outage = response.status_code >= 500
        raise ToolFailed(error, retryable=retryable, retry_after=wait, outage=outage)
    if response.request.method == "HEAD":
        return "\n".join((status, *(f"{name}: {value}" for name, value in response.headers.items())))
    return text or f"({status}, empty body)"


async def _text(response: httpx.Response, redact: Callable[[str], str], limit: int) -> str:
    kind = response.headers.get("content-type", "")
    data = b""
    async for chunk in response.aiter_bytes(65_536):
        data += chunk
        if len(data) > limit:
            break
    charset = _charset(response.charset_encoding)
    if _BINARY.match(kind) or (b"\0" in data[:1_000] and not charset.startswith(("utf-16", "utf-32"))):
        return f"[not a text: {kind.partition(';')[0] or 'binary'}, {_size(response, data, limit)}]"
    text = data[:limit].decode(charset, errors="replace").removeprefix("\ufeff")
    if len(data) <= limit:
        return text
    return f"{redact(text)}… [truncated: the response has {_size(response, data, limit)}]"


def _size(response: httpx.Response, data: bytes, limit: int) -> str:
    declared = response.headers.get("content-length", "")
    exact = declared.isdigit() and "content-encoding" not in response.headers
    return f"{int(declared):,} bytes" if exact else f"{'more than ' * (len(data) > limit)}{len(data):,} bytes"


def _charset(declared: str | None) -> str:
    """The name of a text encoding, by default UTF-8. Python also has encodings that are not text, such as zlib."""
    try:
        name = codecs.lookup(declared or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return name if CHARSETS.fullmatch(name) else "utf-8"


REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods of idempotent requests."""

MAX_BYTES = 256_000
"""Bytes of a response that are read: more would exceed a model's context window."""

MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0
"""The timeout of one attempt to connect, at most."""

RECONNECT_DELAYS = (0.5, 1.0, 2.0)
"""Seconds between the attempts to connect for a request that is not idempotent."""


class HttpClient:
    """Sends requests.

    ``redact`` removes secrets from a truncated response, and a partial secret at its end.
    """

    def __init__(self, *, redact: Callable[[str], str] = str, max_bytes: int = MAX_BYTES) -> None:
        self._redact = redact
        self._max_bytes = max_bytes
        self._clients: dict[bool, httpx.AsyncClient] = {}
        """By whether a proxy is used; opened on first use, as each run of a program has clients of its own."""

    async def close(self) -> None:
        """Closes the connections."""
        for client in self._clients.values():
            await client.aclose()

    def _client(self, *, proxied: bool) -> httpx.AsyncClient:
        if proxied not in self._clients:
            self._clients[proxied] = _open(proxied=proxied)
        return self._clients[proxied]

    async def send(self, request: HttpRequest, seconds: float, *, repeatable: bool, begin: BeginOnce = no_guard) -> str:
        """The response's text, within ``seconds`` after the connection is established.

        ``begin`` is awaited right before the request is sent. Raises its errors, and ToolFailed, which is retryable
        only if the request is ``repeatable``.
        """
        host = self._host(request)
        own = {name.lower() for name, _ in request.headers}
        trace = [header for header in trace_headers().items() if header[0] not in own]
        request = replace(request, headers=(*request.headers, *trace))
        if name := next((name for name, text in request.headers if not text.isascii()), None):
            raise ToolFailed(f"the header {name} has characters that are not ASCII: nothing was sent", retryable=False)
        try:
            async with asyncio.timeout(None) as limit:
                sending = _Sending(limit, seconds, begin)
                return await self._follow(request, sending, repeatable=repeatable)
        except ToolFailed as failed:
            retryable = repeatable and not failed.non_retryable
            wait = failed.next_retry_delay
            raise ToolFailed(failed.message, retryable=retryable, retry_after=wait, outage=failed.outage) from None
        except TimeoutError:
            text = f"{host} did not respond within {seconds:g} s"
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            text = f"{host} can't be reached: {error or type(error).__name__}"
            raise ToolFailed(text, retryable=repeatable, outage=True) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            text = f"{host} did not complete its response: {error or type(error).__name__}"
        text = text if repeatable else f"{text}; whether it was executed is unknown"
        raise ToolFailed(text, retryable=repeatable, outage=True)

    def _host(self, request: HttpRequest) -> str:
        """The host of a request's URL, with its port. Raises ToolFailed if it is invalid, such as 0177.0.0.1."""
        try:
            return httpx.URL(request.destination.url).netloc.decode()
        except (httpx.InvalidURL, ValueError) as error:
            raise ToolFailed(f"the URL of the request is invalid: {error}") from None

    async def _follow(self, request: HttpRequest, sending: "_Sending", *, repeatable: bool) -> str:
        for hop in range(MAX_REDIRECTS + 1):
            try:
                response = await self._connect(request, sending, waits=() if repeatable else RECONNECT_DELAYS)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if hop == 0:
                    raise
                raise httpx.ReadError(f"it redirected to a server that can't be reached: {error}") from None
            try:
                if not response.has_redirect_location:
                    return await result_of(response, request.destination.authority, self._redact, self._max_bytes)
                request = _redirected(request, response)
            finally:
                await response.aclose()
        raise ToolFailed(f"the server redirected the request more than {MAX_REDIRECTS} times", retryable=False)

    async def _connect(self, request: HttpRequest, sending: "_Sending", waits: tuple[float, ...]) -> httpx.Response:
        """Sends a request. If the connection fails, it tries again after the delays in ``waits`` (seconds)."""
        for wait in (*waits, None):
            try:
                client = self._client(proxied=not request.destination.is_guarded)
                built = client.build_request(
                    request.method,
                    request.destination.url,
                    headers=request.headers,
                    content=request.body,
                    extensions={**sending.extensions, "destination": request.destination},
                )
                return await client.send(built, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if wait is None:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")


def _open(*, proxied: bool) -> httpx.AsyncClient:
    # No limits: responses are read up to ``max_bytes``, and then closed.
    outbound = Outbound(BodyLimits(None, None), destination=None, server="the server")
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # requests must not share cookies
    return outbound.open(httpx.AsyncClient, proxied=proxied, cookies=no_cookies, limits=httpx.Limits(**CONNECTIONS))


class _Sending:
    """Starts the timeout of a request once it has a connection, right before it is sent."""

    def __init__(self, limit: asyncio.Timeout, seconds: float, begin: BeginOnce) -> None:
        self._limit = limit
        self._seconds = seconds
        self._begin = begin
        self._sent = False
        timeout = httpx.Timeout(None, connect=min(seconds, CONNECT_SECONDS)).as_dict()
        self.extensions = {"trace": self._trace, "timeout": timeout}

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by the library at every step. Redirects after the first request and a proxy's CONNECT are ignored."""
        is_sending = event.endswith("send_request_headers.started") and info["request"].method != b"CONNECT"
        if is_sending and not self._sent:
            await self._begin()
            self._sent = True
            self._limit.reschedule(asyncio.get_running_loop().time() + self._seconds)


def _redirected(request: HttpRequest, response: httpx.Response) -> HttpRequest:
    """The request after a redirect. For another server, it has no headers of the tool, and is not trusted."""
    url = urljoin(request.destination.url, response.headers["location"])
    if not url.startswith(("http://", "https://")):
        raise ToolFailed("the server redirected the request to an address that is not HTTP")
    destination = request.destination.at(url)
    same_origin = destination.origin == request.destination.origin
    becomes_get = response.status_code == 303 or (response.status_code in (301, 302) and request.method == "POST")
    body = None if becomes_get else request.body
    if body is not None and not same_origin:
        raise ToolFailed("the server redirected the request, including its body, to another server")
    method = "GET" if becomes_get and request.method != "HEAD" else request.method
    headers = request.headers if same_origin else ()
    return replace(request, method=method, destination=destination, headers=headers, body=body)


class HttpTools:
    """A ``ToolSource`` (ARK: queries, tool execution)."""

    def __init__(self, secrets: SecretStore) -> None:
        self._client = HttpClient(redact=secrets.redact_partial)

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The single tool of a manifest, with its description and schema."""
        manifest = context.manifest
        http = manifest.spec.http if manifest else None
        if manifest is None or http is None:
            raise InvalidManifest(f"the tool {context.name} has no http request")
        hints = manifest.spec.annotations
        is_idempotent = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        repeatable = context.repeatable or is_idempotent or http.method in REPEATABLE

        async def use(arguments: JsonObject, lease: Lease) -> str:
            request = _request(context, manifest, http, arguments)
            begin = no_guard if repeatable else partial(lease.send_once, context.name)
            return await self._client.send(request, http.seconds, repeatable=repeatable, begin=begin)

        definition = ToolDefinition(context.name, manifest.model_description, manifest.input_schema)
        server, _ = server_template(http.url)
        parameters = context.values.parameters_of(manifest, context.agent, context.values.catalog.query)
        return [CallableTool(definition, use, server_provenance(server, parameters, context.provenance))]

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog unchanged: the manifests are complete."""
        return values.catalog

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _request(context: ToolContext, tool: Tool, http: HttpSpec, arguments: JsonObject) -> HttpRequest:
    """The request, whose Secrets may be sent to its server."""
    values = context.values
    parameters = values.parameters_of(tool, context.agent, values.catalog.query)
    template, _ = server_template(http.url)
    provenance = server_provenance(template, parameters, context.provenance)
    if not provenance.is_of_manifest:  # a Secret in the address would be sent to whichever server that names
        parameters = parameters.sending_to(values.destination_at("", provenance))
    server = values.destination_at(server_url(template, arguments, parameters.value), provenance)
    values = values.sending_to(server)
    value = parameters.sending_to(server).value

    def lookup(name: str) -> str:
        return header_argument(arguments, name.removeprefix(ARGUMENTS)) if name.startswith(ARGUMENTS) else value(name)

    texts = ((header, _header(header, values.resolve(header.value, tool) or "", lookup)) for header in http.headers)
    headers = [(header.name, text) for header, text in texts if text or ARGUMENTS not in (header.value.value or "")]
    return request_of(http, server, headers, arguments, value, idempotency_key())


def _header(header: Header, text: str, value: Callable[[str], str]) -> str:
    """A header's text. A literal in the manifest is a template; a value from a Secret or a ConfigMap is not."""
    return (fill(text, value) if header.value.value else text).strip()
