"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from starlette.responses import StreamingResponse

PING_SECONDS = 15.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection open."""

HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
"""The headers of a stream: no cache or proxy may hold events back."""

PING = b": ping\n\n"

T = TypeVar("T")


def encode(data: str, *, event: str | None = None, id: str | None = None) -> bytes:  # noqa: A002  # the field's name
    """One event. A line break in its data begins another ``data`` line; there must be none in its type and id."""
    fields = [f"event: {event}"] if event else []
    if id:
        fields.append(f"id: {id}")
    fields += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return ("\n".join(fields) + "\n\n").encode()


def comment(text: str) -> bytes:
    """A comment, which clients ignore and people may read."""
    return f": {' '.join(text.split())}\n\n".encode()


def event_stream(events: AsyncGenerator[bytes, None], *, headers: dict[str, str] | None = None) -> StreamingResponse:
    """The response with encoded events. ``events`` is closed when the client disconnects."""
    return StreamingResponse(with_pings(events), media_type="text/event-stream", headers={**HEADERS, **(headers or {})})


async def with_pings(events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The events, with a comment in each pause of PING_SECONDS."""
    async with contextlib.aclosing(events):
        following: asyncio.Task[bytes] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(_next(events))
                done, _ = await asyncio.wait([following], timeout=PING_SECONDS)
                if not done:
                    yield PING
                    continue
                finished, following = following, None
                try:
                    event = finished.result()
                except StopAsyncIteration:
                    return
                yield event
        finally:
            if following:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await following


async def _next(events: AsyncGenerator[T, None]) -> T:
    return await anext(events)
