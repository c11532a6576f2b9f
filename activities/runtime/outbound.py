"""The rules for all requests of a worker to other servers: which addresses they may reach, and with which headers.

A request that may have effects, which is one with any method but GET, HEAD and OPTIONS, needs the lease of a call.

A ``Destination`` is a URL with the provenance of its server. Every client of httpx and httpx2 is opened with an
``Outbound``, which has one. The rules are event hooks rather than a transport: a custom transport disables the proxies
of the environment variables. Bedrock's client uses aiohttp, and takes the address check, the limits and the errors from
here. A test fails for code that connects to servers in any other way.
"""

import asyncio
import functools
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Self, TypeVar

import httpx
import httpx2

from ...contracts.errors import BatonError, ToolFailed
from ...journal.leases import check_lease
from ...resources.provenance import Provenance
from ...temporal.threads import UNTRUSTED_NAMES

AnyRequest = httpx.Request | httpx2.Request
AnyResponse = httpx.Response | httpx2.Response
AnyClient = TypeVar("AnyClient", bound=httpx.AsyncClient | httpx2.AsyncClient)

PORTS = {"http": 80, "https": 443}

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that have no effects (RFC 9110), so that requests with them may be repeated."""

CONNECTIONS = {"max_connections": None, "max_keepalive_connections": 20}
"""For ``Limits``: slow calls must not block others, and the worker's activity slots already limit the calls."""


class Origin(str):
    """Scheme, host and port of a URL."""

    @classmethod
    def of(cls, url: str) -> "Origin":
        """The origin of a URL. Raises httpx.InvalidURL."""
        parsed = httpx.URL(url)
        return cls(f"{parsed.scheme}://{parsed.host}:{parsed.port or PORTS.get(parsed.scheme)}")


def authority_of(url: str) -> str:
    """The host of a URL and, if it names one, the port; empty if it has none.

    Errors show no more of a URL: its path or its query may contain a key.
    """
    try:
        return httpx.URL(url).netloc.decode()
    except (httpx.InvalidURL, ValueError):
        return ""


@dataclass(frozen=True)
class Destination:
    """A URL, and the provenance of its scheme, host and port: the least trusted one of their parts.

    ``private_hosts``: the worker allows any provenance for servers in its own network (BATON_ALLOW_PRIVATE_HOSTS).
    """

    url: str = field(repr=False)
    provenance: Provenance
    private_hosts: bool

    @functools.cached_property
    def origin(self) -> Origin:
        """The scheme, host and port of the URL. Raises httpx.InvalidURL."""
        return Origin.of(self.url)

    @property
    def host(self) -> str:
        """The host of the URL; empty if it has none."""
        try:
            return httpx.URL(self.url).host
        except (httpx.InvalidURL, ValueError):
            return ""

    @property
    def authority(self) -> str:
        """What errors show of the URL."""
        return authority_of(self.url)

    @property
    def is_guarded(self) -> bool:
        """Whether it must not be in the worker's own network."""
        return not (self.provenance.is_own or self.private_hosts)

    def accepts_secret(self, hosts: tuple[str, ...]) -> bool:
        """Whether a Secret may be sent there that is allowed for ``hosts``, patterns such as ``*.example.com``."""
        return self.provenance.is_own or any(fnmatchcase(self.host, pattern) for pattern in hosts if self.host)

    def at(self, url: str) -> Self:
        """Another URL, which this server names. It has the same provenance only if it is on the same server.

        Raises httpx.InvalidURL.
        """
        is_same = Origin.of(url) == self.origin
        return replace(self, url=url, provenance=self.provenance if is_same else Provenance.SERVER)


@dataclass(frozen=True)
class BodyLimits:
    """The limits of a body, or of one event of an event stream; None for no limit.

    ``size`` is in bytes after decompression. ``objects`` counts opening braces and brackets: many small values take far
    longer to parse than one long text.
    """

    size: int | None
    objects: int | None


@dataclass(frozen=True)
class Outbound:
    """The rules for the requests of one HTTP client.

    Requests to the ``destination`` have its ``headers``. Requests to any other server don't have them, and reach only
    public addresses. Without a destination, each request has its own in the extension ``destination``. A client for a
    guarded destination uses no proxy, as a proxy would resolve the host name again.

    Without ``limits`` the caller bounds what it reads. ``server`` is the server's name in errors, by default its host.
    ``exceeded`` is the error for a response beyond the limits, ``refused`` for an address that is not public,
    ``unreachable`` for a host name that can't be resolved. ``checks_lease``: False for a connection whose own tasks
    send the requests; then the code that hands them a call checks its lease.
    """

    limits: BodyLimits | None
    destination: Destination | None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    server: str = ""
    exceeded: type[BatonError] = ToolFailed
    refused: type[BatonError] = ToolFailed
    unreachable: type[BatonError] = ToolFailed
    checks_lease: bool = True

    def open(self, client_type: type[AnyClient], *, proxied: bool = False, **options: Any) -> AnyClient:
        """A client with these rules. ``proxied`` says whether one without a destination uses proxies.

        The client requests no compression, unless its headers have an ``accept-encoding``. It follows no redirects:
        they would send keys, headers and the conversation to any address that a server names.
        """
        library = httpx if issubclass(client_type, httpx.AsyncClient) else httpx2
        proxied = proxied if self.destination is None else not self.destination.is_guarded
        encoding = {} if "accept-encoding" in map(str.lower, self.headers) else {"accept-encoding": "identity"}
        return client_type(
            headers={**self.headers, **encoding},
            event_hooks={"request": [self.check], "response": [self.bound]},
            follow_redirects=False,
            # Not by ``trust_env``: Anthropic's client reads the proxy variables itself, and mounts override them.
            mounts={} if proxied else {"http://": None, "https://": None},
            verify=read_once(library.create_ssl_context),
            **options,
        )

    async def check(self, request: AnyRequest) -> None:
        """Sends a guarded request to the checked IP address, with the host name in the Host header and for TLS.

        Raises ``refused``, ``unreachable`` or LeaseMissing.
        """
        if self.checks_lease and request.method not in SAFE_METHODS:
            check_lease(f"{request.method} {request.url.host}")
        destination: Destination | None = request.extensions.get("destination", self.destination)
        if destination and Origin.of(str(request.url)) == destination.origin:
            is_guarded = destination.is_guarded
        else:
            is_guarded = not (destination and destination.private_hosts)
            for name in self.headers:
                request.headers.pop(name, None)
        if is_guarded:
            await self._send_to_public_address(request)

    async def _send_to_public_address(self, request: AnyRequest) -> None:
        host = request.extensions.get("sni_hostname", request.url.host)  # the extension is set if it is sent again
        # An agent card may name a URL of any scheme; the client itself refuses an unknown one.
        address = await self.public_address(host, request.url.port or PORTS.get(request.url.scheme))
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        request.headers["connection"] = "close"  # a connection for this host must not be reused for another one

    async def bound(self, response: AnyResponse) -> None:
        """Bounds the body of a response that is not read yet; reading it may raise ``exceeded``."""
        if self.limits is None:
            return
        encoding = response.headers.get("content-encoding", "identity").strip().lower() or "identity"
        if encoding != "identity":  # the reader must neither decompress the body again nor rely on its length
            del response.headers["content-encoding"]
            response.headers.pop("content-length", None)
        is_stream = "text/event-stream" in response.headers.get("content-type", "")
        server = self.server or response.request.headers["host"]
        body: Any = response.stream
        response.stream = BoundedBody(
            body, self.limits, lambda text: self.exceeded(f"{server} {text}"), encoding, is_stream=is_stream
        )

    async def public_address(self, host: str, port: int | None) -> str:
        """A public IP address of a host. Raises ``refused`` or ``unreachable``."""
        try:
            return await public_address(host, port)
        except ToolFailed as failed:
            if failed.non_retryable:
                raise self.refused(failed.message) from None
            raise self.unreachable(failed.message, retryable=True) from None


class SharedConnections(httpx.AsyncBaseTransport):
    """Connections for all calls of a worker, which stay open when a client that uses them is closed."""

    def __init__(self) -> None:
        limits = httpx.Limits(**CONNECTIONS)
        self._connections = httpx.AsyncHTTPTransport(verify=read_once(httpx.create_ssl_context), limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response to a request."""
        return await self._connections.handle_async_request(request)

    async def close(self) -> None:
        """Closes the connections."""
        await self._connections.aclose()


@functools.cache
def read_once(create: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """The SSL context of ``create``, a library's ``create_ssl_context``, which all clients of that library share."""
    return create()


MAX_PIECE = 65_536
"""Bytes that are decompressed in one step."""

ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""Supported content encodings, with zlib's ``wbits``. They are not requested, but some servers use them anyway."""


class BoundedBody(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    """The decompressed bytes of a body; reading raises the error of ``refuse`` as soon as a limit is exceeded."""

    def __init__(
        self,
        stream: httpx.AsyncByteStream | httpx2.AsyncByteStream,
        limits: BodyLimits,
        refuse: Callable[[str], Exception],
        encoding: str = "identity",
        *,
        is_stream: bool,
    ) -> None:
        self._stream = stream
        self._limits = limits
        self._refuse = refuse
        self._encoding = encoding
        self._is_stream = is_stream
        self._size = 0
        self._objects = 0
        self._open = OpenEvent()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = self._stream if self._encoding == "identity" else self._decompressed()
        async for piece in pieces:
            self._count(piece)
            yield piece

    async def aclose(self) -> None:
        """Closes the connection, or returns it to the pool."""
        await self._stream.aclose()

    def _count(self, piece: bytes) -> None:
        if self._is_stream:
            ended, piece = self._open.take(piece)
            if ended:
                self._size = 0
                self._objects = 0
        self._size += len(piece)
        if self._limits.size is not None and self._size > self._limits.size:
            raise self._refuse(f"sent more than {self._limits.size:,} bytes")
        if self._limits.objects is not None:
            self._objects += count_objects(piece)
            if self._objects > self._limits.objects:
                raise self._refuse(f"sent more than {self._limits.objects:,} objects")

    async def _decompressed(self) -> AsyncIterator[bytes]:
        if self._encoding not in ENCODINGS:
            raise self._refuse(f"used the unsupported content encoding '{self._encoding[:40]}'")
        decompressor = zlib.decompressobj(ENCODINGS[self._encoding])
        try:
            async for chunk in self._stream:
                while chunk and not decompressor.eof:
                    yield decompressor.decompress(chunk, MAX_PIECE)
                    chunk = decompressor.unconsumed_tail
                    await asyncio.sleep(0)  # other tasks run between two steps
        except zlib.error:
            raise self._refuse("sent a response that can't be decompressed") from None


class OpenEvent:
    """Tracks the incomplete event at the end of an event stream: a blank line ends an event."""

    BLANK = b"\n\n", b"\r\n\r\n", b"\r\r"

    def __init__(self) -> None:
        self._last = b""

    def take(self, piece: bytes) -> tuple[bool, bytes]:
        """Whether an event ends in the next piece, and the rest of the piece after the last end of an event."""
        joined = self._last + piece
        ends = [at + len(blank) for blank in self.BLANK if (at := joined.rfind(blank)) >= 0]
        self._last = joined[-3:]
        return (True, joined[max(ends) :]) if ends else (False, piece)


def count_objects(data: bytes) -> int:
    """An upper bound of the objects and arrays in JSON. Brackets before a backslash are in a string and not counted."""
    return sum(data.count(opening) - data.count(opening + b"\\") for opening in (b"{", b"["))


TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")))
"""IPv6 ranges that are translated to IPv4, so they may reach any IPv4 address."""

PROTOCOLS = ipaddress.IPv4Network("192.0.0.0/24")
"""Protocol assignments and cloud metadata servers: some versions of Python treat a part of them as public."""

AZURE_METADATA = ipaddress.IPv4Address("168.63.129.16")
"""Azure's internal service for virtual machines, with an address in the public range."""


CONNECT_SECONDS = 1.0
"""Seconds after which the next of several addresses is tried."""


async def public_address(host: str, port: int | None) -> str:
    """A public IP address of ``host``. Raises ToolFailed if any of its addresses is not public.

    The caller must connect to the returned address: another DNS lookup may return a different one.
    """
    try:
        records = await UNTRUSTED_NAMES.run(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailed(f"the host name {host} can't be resolved", retryable=True) from None
    addresses = [*dict.fromkeys(str(record[4][0]) for record in records)]
    check_public(host, addresses)
    return await reachable_address(addresses, port)


def check_public(host: str, addresses: Sequence[str]) -> None:
    """Raises ToolFailed if any of a host's addresses is not public: their order must not decide which one is used."""
    if not all(map(_is_public, addresses)):
        raise ToolFailed(
            f"{host} is in the worker's own network, and the address comes from a run, a call or a server, not from a "
            "manifest of the worker: BATON_ALLOW_PRIVATE_HOSTS=1 allows it"
        )


async def reachable_address(addresses: Sequence[str], port: int | None) -> str:
    """The first address that accepts a connection, or the last one: those of IPv6, for example, may be unreachable."""
    for address in addresses[:-1]:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(address, port)
        except OSError:
            continue
        writer.close()
        return address
    return addresses[-1]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if inner := ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1]):
            return _is_public(str(inner))
        if ip.is_site_local or any(ip in network for network in TRANSLATED):
            return False
    return ip.is_global and not ip.is_multicast and ip not in PROTOCOLS and ip != AZURE_METADATA
