"""The gate of all HTTP clients of a worker: where a request may go, and how much of its answer is read.

Every client of httpx and httpx2 is opened with an ``Outbound``. Its rules are hooks of the client rather than a
transport: a transport of one's own switches off the proxies that the environment names. Bedrock's client is one of
aiohttp, which takes from here the check of addresses, the limit and the errors.
"""

import asyncio
import functools
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import httpx2

from ...contracts.errors import BatonError, ToolFailed

AnyRequest = httpx.Request | httpx2.Request
AnyResponse = httpx.Response | httpx2.Response
AnyClient = TypeVar("AnyClient", bound=httpx.AsyncClient | httpx2.AsyncClient)

PORTS = {"http": 80, "https": 443}

CONNECTIONS = {"max_connections": None, "max_keepalive_connections": 20}
"""For ``Limits``: slow calls must not keep others waiting, and a worker bounds the number of its calls itself."""


class Origin(str):
    """Scheme, host and port of an address."""

    @classmethod
    def of(cls, url: str) -> "Origin":
        """The origin of an address. Raises httpx.InvalidURL."""
        parsed = httpx.URL(url)
        return cls(f"{parsed.scheme}://{parsed.host}:{parsed.port or PORTS.get(parsed.scheme)}")


@dataclass(frozen=True)
class BodyLimits:
    """The limits of a body, or of one event of an event stream; None for no limit.

    ``size`` counts bytes after unpacking, and ``objects`` opening braces and brackets: many small values take far
    longer to read than one long text.
    """

    size: int | None
    objects: int | None


@dataclass(frozen=True)
class Outbound:
    """The rules for the requests of one HTTP client.

    A ``guarded`` client reaches public addresses alone, and the ``trusted`` origin. It uses no proxy, which would look
    up the name of the server again. Without ``limits`` the caller bounds what it reads. ``server`` is what errors call
    the other side, by default its host. ``exceeded`` is the error for an answer beyond the limits, ``refused`` for an
    address that is not public, ``unreachable`` for a name that can't be resolved.
    """

    limits: BodyLimits | None
    guarded: bool  # without a default: a client that nobody thought about must not be an open one
    trusted: Origin | None = None
    server: str = ""
    exceeded: type[BatonError] = ToolFailed
    refused: type[BatonError] = ToolFailed
    unreachable: type[BatonError] = ToolFailed

    def open(self, client_type: type[AnyClient], headers: Mapping[str, str] | None = None, **options: Any) -> AnyClient:
        """A client that keeps these rules. ``headers`` are sent with every request."""
        return client_type(**self.client_options(client_type, headers or {}), **options)

    def client_options(self, client_type: type[AnyClient], headers: Mapping[str, str]) -> dict[str, Any]:
        """The arguments for a client of httpx or httpx2.

        It asks for no compression, unless a request has a header ``accept-encoding`` of its own. It follows no
        redirects: keys, headers and the conversation would go to whatever address a server names.
        """
        library = httpx if issubclass(client_type, httpx.AsyncClient) else httpx2
        encoding = {} if "accept-encoding" in map(str.lower, headers) else {"accept-encoding": "identity"}
        return {
            "headers": {**headers, **encoding},
            "event_hooks": {"request": [self.check], "response": [self.bound]},
            "follow_redirects": False,
            # Not by ``trust_env``: Anthropic's client reads the environment's proxies by itself, and lets mounts win.
            "mounts": {"http://": None, "https://": None} if self.guarded else {},
            "verify": read_once(library.create_ssl_context),
        }

    async def check(self, request: AnyRequest) -> None:
        """Leads a guarded request to the address that was checked, with the name of its host in the header and for TLS.

        Raises ``refused`` or ``unreachable``.
        """
        if not self.guarded or (self.trusted and Origin.of(str(request.url)) == self.trusted):
            return
        host = request.extensions.get("sni_hostname", request.url.host)  # of a request that is sent again
        # An agent card may name an address of any scheme; the client itself refuses one that it does not know.
        address = await self.public_address(host, request.url.port or PORTS.get(request.url.scheme))
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        request.headers["connection"] = "close"  # a connection for this host must not be reused for another one

    async def bound(self, response: AnyResponse) -> None:
        """Bounds the body of a response of which nothing has been read; reading it may raise ``exceeded``."""
        if self.limits is None:
            return
        encoding = response.headers.get("content-encoding", "identity").strip().lower() or "identity"
        if encoding != "identity":  # what reads the body must not unpack it again, nor rely on its length
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
    """What ``create`` makes at first: the ``create_ssl_context`` of the library whose clients share it."""
    return create()


MAX_PIECE = 65_536
"""Bytes that are unpacked in one step."""

PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""The encodings that are unpacked though nobody asks for them, with zlib's number for each."""


class BoundedBody(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    """The unpacked bytes of a body; reading raises what ``refuse`` makes as soon as a limit is exceeded."""

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
        pieces = self._stream if self._encoding == "identity" else self._unpacked()
        async for piece in pieces:
            self._count(piece)
            yield piece

    async def aclose(self) -> None:
        """Closes the connection, or gives it back."""
        await self._stream.aclose()

    def _count(self, piece: bytes) -> None:
        if self._is_stream:
            ended, piece = self._open.take(piece)
            if ended:
                self._size = 0
                self._objects = 0
        self._size += len(piece)
        if self._limits.size is not None and self._size > self._limits.size:
            raise self._refuse(f"gives more than {self._limits.size:,} bytes")
        if self._limits.objects is not None:
            self._objects += count_objects(piece)
            if self._objects > self._limits.objects:
                raise self._refuse(f"gives more than {self._limits.objects:,} objects")

    async def _unpacked(self) -> AsyncIterator[bytes]:
        if self._encoding not in PACKED:
            raise self._refuse(f"compresses its answers by '{self._encoding[:40]}', which was not asked for")
        unpack = zlib.decompressobj(PACKED[self._encoding])
        try:
            async for chunk in self._stream:
                while chunk and not unpack.eof:
                    yield unpack.decompress(chunk, MAX_PIECE)
                    chunk = unpack.unconsumed_tail  # the rest of it
                    await asyncio.sleep(0)  # others go on between two steps
        except zlib.error:
            raise self._refuse("gives an answer that can't be unpacked") from None


class OpenEvent:
    """Finds what of an event stream belongs to the event that is still open: a blank line ends one."""

    BLANK = b"\n\n", b"\r\n\r\n", b"\r\r"

    def __init__(self) -> None:
        self._last = b""

    def take(self, piece: bytes) -> tuple[bool, bytes]:
        """Whether an event ends in the next piece, and what of the piece comes after the last that does."""
        joined = self._last + piece
        ends = [at + len(blank) for blank in self.BLANK if (at := joined.rfind(blank)) >= 0]
        self._last = joined[-3:]
        return (True, joined[max(ends) :]) if ends else (False, piece)


def count_objects(data: bytes) -> int:
    """How many objects and lists JSON has at most; those in texts, which a backslash follows, are none."""
    return sum(data.count(opening) - data.count(opening + b"\\") for opening in (b"{", b"["))


TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")))
"""IPv6 ranges that are translated to IPv4, so that they may lead to any IPv4 address."""

PROTOCOLS = ipaddress.IPv4Network("192.0.0.0/24")
"""Addresses of protocols and of a cloud's metadata: some versions of Python count a part of them as public."""

AZURE_METADATA = ipaddress.IPv4Address("168.63.129.16")
"""Azure's server for its virtual machines: an internal service with an address in the public range."""


async def public_address(host: str, port: int | None) -> str:
    """A public IP address of ``host``. Raises ToolFailed if any address of it is not public.

    The caller must connect to the returned address: another look-up of the name may give a different one.
    """
    try:
        records = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailed(f"{host} can't be found", retryable=True) from None
    addresses = [str(record[4][0]) for record in records]
    if not all(map(_is_public, addresses)):
        raise ToolFailed(
            f"{host} lies in the worker's own network, and no manifest of the worker's own names it, but a run, a call "
            "or a server: BATON_ALLOW_PRIVATE_HOSTS=1 allows it"
        )
    return addresses[0]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if inner := ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1]):
            return _is_public(str(inner))
        if ip.is_site_local or any(ip in network for network in TRANSLATED):
            return False
    return ip.is_global and not ip.is_multicast and ip not in PROTOCOLS and ip != AZURE_METADATA
