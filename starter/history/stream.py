"""The stream of the events of a run, from its histories, and of live text, from the heartbeats of open calls."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

from temporalio.client import Client

from ...contracts.requests import AskModelResult
from ..runs.runs import RunHandle
from .events import AttemptFailedEvent, Event, TextDeltaEvent, TextRetractedEvent
from .follow import RECONNECT_TIMEOUT, Read, RunReader, RunTree
from .live_state import OpenCall, read_heartbeats
from .run_events import CallEnded, CallScheduled, RunEnded, RunEvent, RunInfo, RunReset
from .translator import EventTranslator

HEARTBEAT_INTERVAL = 0.5
"""Seconds between two readings of the heartbeats of open calls."""


async def stream_events(
    client: Client,
    handle: RunHandle,
    after: str | None = None,
    *,
    wait: bool = True,
    live: bool = True,
    reconnect_timeout: float = RECONNECT_TIMEOUT,
) -> AsyncGenerator[Event, None]:
    """The events of a run and its child runs after a cursor, or all of them, to the end of the run.

    With ``wait`` false only those that exist already; with ``live`` false without text that is still being sent.

    Raises:
        CursorError: if the cursor belongs to another run.
        RPCError: if Temporal is unreachable for longer than ``reconnect_timeout`` seconds.
    """
    tree = RunTree[_Item](client, handle, _items_of, after, wait=wait, reconnect_timeout=reconnect_timeout)
    stream = _EventStream(client, tree)
    async with contextlib.aclosing(stream.read(live=live and wait)) as events:
        async for event in events:
            yield event


class _Base(TypedDict):
    """The fields of all events of an open call."""

    id: str
    run: str
    team: str | None
    at: datetime
    call: str
    speaker: str


@dataclass(frozen=True)
class _Item:
    """An event; or, without one, the run event that starts or ends a call."""

    event: Event | None
    source: RunEvent


def _items_of(run: RunInfo) -> Callable[[RunEvent], Iterable[_Item]]:
    translator = EventTranslator(run)

    def build(run_event: RunEvent) -> Iterator[_Item]:
        # The end of a call comes before its events: what was said of its text is completed first.
        if isinstance(run_event, CallEnded):
            yield _Item(None, run_event)
        for event in translator.translate(run_event):
            yield _Item(event, run_event)
        if isinstance(run_event, CallScheduled):
            yield _Item(None, run_event)

    return build


@dataclass
class _LiveCall:
    """An open call, and how much of its text was read: in which attempt, and how many characters.

    ``said`` is that text; None if an earlier reader has read a part of it.
    """

    call: OpenCall
    reader: RunReader[_Item]
    event_id: int
    attempt: int = 1
    characters: int = 0
    said: str | None = ""

    def advance(self) -> Iterator[Event]:
        """The events for what the last heartbeat has reported."""
        call = self.call
        if call.attempt > self.attempt:
            yield from self._retract()
            self.attempt = call.attempt
            self._note()
            yield AttemptFailedEvent(
                **self._base("attempt.failed"),
                attempt=call.attempt - 1,
                error=call.failure,
                next_at=call.next_at,
            )
        text = "" if call.waiting else call.progress.text
        begun = call.progress.offset
        if begun <= self.characters < begun + len(text):
            yield self._say(text[self.characters - begun :])

    def end(self, result: object, attempts: int) -> Iterator[Event]:
        """Completes the text that was read with the rest of the answer, or takes it back."""
        if self.characters:
            text = result.message.content if isinstance(result, AskModelResult) else ""
            is_same = attempts == self.attempt if self.said is None else text.startswith(self.said)
            is_cut = isinstance(result, AskModelResult) and len(text) < self.characters  # the history has its beginning
            if not (is_same or is_cut):
                yield from self._retract()
            elif len(text) > self.characters:
                yield self._say(text[self.characters :])
        self.reader.place.calls.pop(self.event_id, None)

    def _say(self, text: str) -> Event:
        offset = self.characters
        self.said = None if self.said is None else self.said + text
        self.characters += len(text)
        self._note()
        return TextDeltaEvent(**self._base("text.delta"), offset=offset, text=text)

    def _retract(self) -> Iterator[Event]:
        characters = self.characters
        if characters:
            self.characters = 0
            self.said = ""
            self._note()
            yield TextRetractedEvent(**self._base("text.retracted"), characters=characters)

    def _note(self) -> None:
        self.reader.place.calls[self.event_id] = self.attempt, self.characters

    def _base(self, kind: str) -> _Base:
        run = self.call.run
        return {
            "id": f"{run.run_id}/{self.event_id}/{kind}-{self.attempt}-{self.characters}",
            "run": run.id,
            "team": run.team.name if run.team else None,
            "at": datetime.now(UTC),
            "call": self.call.call.id,
            "speaker": self.call.call.speaker,
        }


class _EventStream:
    """The events of a tree of runs, with the live text of its open calls, by run and call."""

    def __init__(self, client: Client, tree: RunTree[_Item]) -> None:
        self._client = client
        self._tree = tree
        self._calls: dict[tuple[str, str], _LiveCall] = {}
        tree.on_passed = self._track

    async def read(self, *, live: bool) -> AsyncGenerator[Event, None]:
        """The events, each with its cursor."""
        reads = self._tree.read()
        next_read = asyncio.ensure_future(anext(reads))
        heartbeats: asyncio.Task[None] | None = None
        try:
            while True:
                if live and heartbeats is None and self._calls:
                    heartbeats = asyncio.create_task(self._read_heartbeats())
                await asyncio.wait([next_read, *filter(None, [heartbeats])], return_when=asyncio.FIRST_COMPLETED)
                if next_read.done():
                    try:
                        read = next_read.result()
                    except StopAsyncIteration:
                        return
                    for event in self._events_of(read):
                        yield self._with_cursor(event)
                    next_read = asyncio.ensure_future(anext(reads))
                elif heartbeats and heartbeats.done():
                    heartbeats.result()
                    heartbeats = None
                    for call in [*self._calls.values()]:
                        for event in call.advance():
                            yield self._with_cursor(event)
        finally:
            tasks = [task for task in (next_read, heartbeats) if task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await reads.aclose()

    def _with_cursor(self, event: Event) -> Event:
        return event.placed(event.id, self._tree.cursor)

    async def _read_heartbeats(self) -> None:
        await asyncio.sleep(HEARTBEAT_INTERVAL)
        await read_heartbeats(self._client, [live.call for live in self._calls.values()])

    def _events_of(self, read: Read[_Item]) -> Iterator[Event]:
        source = read.item.source
        if read.item.event:
            if isinstance(source, RunReset):
                self._calls = {key: live for key, live in self._calls.items() if live.reader.is_current}
            yield read.item.event.placed(read.id, "")
        elif isinstance(source, CallEnded) and (live := self._calls.get(_key(source))):
            with read.reader.before(read):  # a reader that goes on from one of these events completes the text itself
                yield from live.end(source.result, source.attempts)
        self._track(read)

    def _track(self, read: Read[_Item]) -> None:
        """Notes which calls are open after an item."""
        source = read.item.source
        match source:
            case CallScheduled(run=run, call=call) if call.speaker and not call.hidden:
                attempt, characters = read.reader.place.calls.get(read.event_id, (1, 0))
                live = _LiveCall(OpenCall(run, call), read.reader, read.event_id, attempt, characters)
                live.said = None if characters else ""
                self._calls[_key(source)] = live
            case CallEnded():
                self._calls.pop(_key(source), None)
            case RunEnded(run=ended):
                for key in [
                    key for key, live in self._calls.items() if live.call.run.first_run_id == ended.first_run_id
                ]:
                    del self._calls[key]


def _key(source: CallScheduled | CallEnded) -> tuple[str, str]:
    return source.run.run_id, source.call.id
