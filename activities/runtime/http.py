"""What all HTTP clients share: bounded response bodies, certificates, and which failures are retryable."""

import asyncio
import email.utils
import functools
import math
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import httpx2

MAX_PIECE = 65_536
"""Bytes that are unpacked in one step."""

PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""The encodings that are unpacked though nobody asks for them, with zlib's number for each."""


@dataclass(frozen=True)
class BodyLimits:
    """The limits of a body, or of one event of an event stream; None for no limit.

    ``size`` counts bytes after unpacking, and ``objects`` opening braces and brackets: many small values take far
    longer to read than one long text. ``refuse`` makes the error that is raised from what the server does.
    """

    size: int | None
    objects: int | None
    refuse: Callable[[str], Exception]


def client_options(limits: BodyLimits) -> dict[str, Any]:
    """Arguments for an ``AsyncClient`` of httpx or httpx2: it asks for no compression, and what it reads is bounded.

    Redirects and errors are bounded, too. A header ``accept-encoding`` of a request itself is kept.
    """

    async def bound(response: Any) -> None:
        bound_response(response, limits)

    hooks: dict[str, list[Callable[[Any], Awaitable[None]]]] = {"response": [bound]}
    return {"headers": {"accept-encoding": "identity"}, "event_hooks": hooks}


def bound_response(response: httpx.Response | httpx2.Response, limits: BodyLimits) -> None:
    """Bounds the body of a response of which nothing has been read."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower() or "identity"
    if encoding != "identity":  # what reads the body must not unpack it again, nor rely on its length
        del response.headers["content-encoding"]
        response.headers.pop("content-length", None)
    is_stream = "text/event-stream" in response.headers.get("content-type", "")
    body: Any = response.stream
    response.stream = BoundedBody(body, limits, encoding, is_stream=is_stream)


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


class BoundedBody(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    """The unpacked bytes of a body; reading raises what ``limits.refuse`` makes as soon as a limit is exceeded."""

    def __init__(
        self,
        stream: httpx.AsyncByteStream | httpx2.AsyncByteStream,
        limits: BodyLimits,
        encoding: str,
        *,
        is_stream: bool,
    ) -> None:
        self._stream = stream
        self._limits = limits
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
        limits = self._limits
        if limits.size is not None and self._size > limits.size:
            raise limits.refuse(f"gives more than {limits.size:,} bytes")
        if limits.objects is not None:
            self._objects += piece.count(b"{") + piece.count(b"[")
            if self._objects > limits.objects:
                raise limits.refuse(f"gives more than {limits.objects:,} objects")

    async def _unpacked(self) -> AsyncIterator[bytes]:
        if self._encoding not in PACKED:
            raise self._limits.refuse(f"compresses its answers by '{self._encoding[:40]}', which was not asked for")
        unpack = zlib.decompressobj(PACKED[self._encoding])
        try:
            async for chunk in self._stream:
                while chunk and not unpack.eof:
                    yield unpack.decompress(chunk, MAX_PIECE)
                    chunk = unpack.unconsumed_tail  # the rest of it
                    await asyncio.sleep(0)  # others go on between two steps
        except zlib.error:
            raise self._limits.refuse("gives an answer that can't be unpacked") from None


@functools.cache
def read_once(create: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """What ``create`` makes at first: the ``create_ssl_context`` of the library whose clients share it."""
    return create()


RETRYABLE = frozenset({408, 409, 425, 429})
"""HTTP status codes below 500 after which the same request may succeed later."""

LONGEST_DELAY = timedelta(minutes=5)

LATE_ATTEMPT = 6
SHORT_DELAY = timedelta(seconds=15)
"""From the late attempt on, a server's delay that is shorter than this is ignored: see ``retry_delay``."""


def is_retryable(status: int) -> bool:
    """Whether a later request may succeed where this one was answered with ``status``."""
    return status in RETRYABLE or status >= 500


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """How long a server asks the client to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date.

    At most five minutes; None where the headers say nothing, or nothing that can be read.
    """
    milliseconds = headers.get("retry-after-ms")
    text = headers.get("retry-after")
    try:
        if milliseconds is not None:
            seconds = float(milliseconds) / 1000
        elif text is None:
            return None
        elif text.strip().replace(".", "", 1).isdigit():
            seconds = float(text)
        else:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    if not math.isfinite(seconds):
        return None
    return timedelta(seconds=min(max(seconds, 0), LONGEST_DELAY.total_seconds()))


def retry_delay(requested: timedelta | None, attempt: int) -> timedelta | None:
    """The delay before the next attempt: what the server requests, or None for the delay of Temporal's retry policy.

    A server that requests one second every time would use up all attempts within ten, so late attempts wait longer.
    """
    if requested is not None and attempt >= LATE_ATTEMPT and requested < SHORT_DELAY:
        return None
    return requested
