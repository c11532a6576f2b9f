"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

PING_SECONDS = 15.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection open."""

FIRST_SECONDS = 1.0
"""Seconds for which a response waits for the first event, so that an error has its own status."""

HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
"""The headers of a stream: no cache or proxy may hold events back."""

PING = b": ping\n\n"


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


class EventStream(StreamingResponse):
    """The response with encoded events, which are closed with it, also if its client has left before it has begun."""

    def __init__(self, events: AsyncGenerator[bytes, None], *, headers: dict[str, str] | None = None) -> None:
        self._events = events
        self._following: asyncio.Task[bytes] | None = None
        super().__init__(self._with_pings(), media_type="text/event-stream", headers={**HEADERS, **(headers or {})})

    async def begun(self) -> Self:
        """The response, once its first event was read, or after FIRST_SECONDS: the event may come hours later.

        Raises what the reading of that event raises: an error has its own status as long as the response has not begun.
        """
        following = self._follow()
        try:
            await asyncio.wait([following], timeout=FIRST_SECONDS)
        except asyncio.CancelledError:
            following.cancel()
            raise
        if following.done() and (error := following.exception()) and not isinstance(error, StopAsyncIteration):
            raise error
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._following:
                self._following.cancel()
                await asyncio.gather(self._following, return_exceptions=True)
            await self._events.aclose()

    def _follow(self) -> "asyncio.Task[bytes]":
        self._following = self._following or asyncio.ensure_future(_next(self._events))
        return self._following

    async def _with_pings(self) -> AsyncIterator[bytes]:
        """The events, with a comment in each pause of PING_SECONDS."""
        while True:
            following = self._follow()
            await asyncio.wait([following], timeout=PING_SECONDS)
            if not following.done():
                yield PING
                continue
            self._following = None
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            yield event


async def _next(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)
