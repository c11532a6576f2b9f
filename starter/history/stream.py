"""The stream of the events of a run, from its histories, and of live text, from the heartbeats of open calls."""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.service import RPCError

from ...contracts.requests import AskModelResult, LiveText, SelectRequest, UseToolRequest
from ...contracts.text import beginning_of, full_length, is_cut_from
from ...temporal.histories import decode_payload
from ..runs.runs import RunHandle
from .decoder import decode_failure
from .events import AttemptFailedEvent, Event, TextDeltaEvent, TextRetractedEvent
from .follow import RECONNECT_TIMEOUT, Read, RunReader, RunTree
from .run_events import ActivityCall, CallEnded, CallScheduled, RunEnded, RunEvent, RunInfo, RunReset
from .translator import EventTranslator

if TYPE_CHECKING:  # the journal is loaded once live text is read
    from ...journal.live_text import LivePiece

HEARTBEAT_INTERVAL = 0.5
"""Seconds between two readings of the heartbeats of open calls."""

LIVE_HEARTBEAT_INTERVAL = 2.0
"""The same while their text arrives from the journal: heartbeats only tell of failed attempts then."""

EARLY_PIECES = 1_000
"""Pieces that are kept of calls that the histories, or the heartbeats, have not told of yet."""


async def stream_events(
    client: Client,
    handle: RunHandle,
    after: str | None = None,
    *,
    until: str | None = None,
    wait: bool = True,
    live: bool = True,
    cut: bool = False,
    depth_first: bool = False,
    reconnect_timeout: float = RECONNECT_TIMEOUT,
    environment: Mapping[str, str] = os.environ,
) -> AsyncGenerator[Event, None]:
    """The events of a run and its child runs after a cursor, or all, to the end of the run or ``until`` a cursor.

    With ``wait`` false only those that exist already; with ``live`` false without text that is still being sent. That
    text arrives at once if the ``environment`` names the journal of the run's worker, and else with heartbeats. With
    ``cut``, for readers that only show its end, it may begin anywhere: heartbeats have only the end of a long text.
    With ``depth_first`` all events of a child run come where it starts: in an order that is the same for all readers.

    Raises:
        CursorError: if the cursor belongs to another run.
        RPCError: if Temporal is unreachable for longer than ``reconnect_timeout`` seconds.
    """
    tree = RunTree[_Item](
        client,
        handle,
        _items_of,
        after,
        until=until,
        wait=wait,
        depth_first=depth_first,
        reconnect_timeout=reconnect_timeout,
    )
    stream = _EventStream(client, tree, environment, live=live, cut=cut)
    pieces = _live_pieces(environment, client.namespace, handle.id) if live and wait else None
    async with contextlib.aclosing(stream.read(pieces)) as events:
        async for event in events:
            yield event


async def _live_pieces(
    environment: Mapping[str, str], namespace: str, run_id: str
) -> AsyncGenerator[Sequence["LivePiece"], None]:
    from ...journal.live_text import read_live_text  # noqa: PLC0415  # only programs that read live text need it

    async with contextlib.aclosing(read_live_text(environment, namespace, run_id)) as received:
        async for pieces in received:
            yield pieces


class _Base(TypedDict):
    """The fields of all events of an open call."""

    id: str
    run: str
    team: str | None
    at: datetime
    call: str
    speaker: str


class _Draft(TypedDict):
    """The fields that say which text of a call a piece belongs to."""

    tool: str | None
    attempt: int
    draft: int


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
class _Heartbeat:
    """What Temporal has of an open call: its attempt and the end of the text that its last heartbeat has reported.

    If ``waiting``, the ``attempt`` has not started yet; it starts at ``next_at``. ``failure`` is the error of the
    previous attempt.
    """

    attempt: int = 1
    waiting: bool = False
    failure: str = ""
    next_at: datetime | None = None
    text: LiveText = field(default_factory=LiveText)


@dataclass
class _LiveCall:
    """An open call, and how much of its text was read: in which attempt, and how many characters.

    ``said`` is that text; None if an earlier reader has read a part of it. ``heartbeat`` is the last one.
    """

    run: RunInfo
    call: ActivityCall
    reader: RunReader[_Item]
    event_id: int
    cut: bool
    attempt: int = 1
    characters: int = 0
    said: str | None = ""
    heartbeat: _Heartbeat = field(default_factory=_Heartbeat)
    whole: str | None = None
    """The answer as the journal has it, if the history has only its beginning."""

    def advance(self) -> Iterator[Event]:
        """The events for what the last heartbeat has reported."""
        known = self.heartbeat
        if known.attempt > self.attempt:
            yield from self._retract()
            self.attempt = known.attempt
            self._note()
            yield AttemptFailedEvent(
                **self._base("attempt.failed"),
                attempt=known.attempt - 1,
                error=known.failure,
                next_at=known.next_at,
            )
        if not known.waiting:
            yield from self.add(known.text)

    def add(self, piece: LiveText) -> Iterator[Event]:
        """The event for a piece of the text of this attempt, unless all of it was read; later text must wait for it.

        If the text may be ``cut``, later text does not wait. What a selector says is no text: it is a choice.
        """
        if isinstance(self.call.request, SelectRequest):
            return
        begun = piece.offset
        if self.cut and begun > self.characters:
            self.characters = begun
            self.said = None
        if begun <= self.characters < begun + len(piece.text):
            yield self._say(piece.text[self.characters - begun :])

    def end(self, result: object, attempts: int) -> Iterator[Event]:
        """Completes the text that was read with the rest of the answer, or takes it back.

        It is taken back whenever the answer is another draft, for every reader at the same place. A reader that has
        gone on within the text is told of the rest also if it is empty: it can't know the length of what was read
        before.
        """
        if self.characters:
            match result:
                case AskModelResult(message=message, restated=False) if attempts == self.attempt:
                    yield from self._complete(message.content)
                case _:
                    yield from self._retract()
        self.reader.place.calls.pop(self.event_id, None)

    def _complete(self, text: str) -> Iterator[Event]:
        said = self.said
        if not (said is None or text.startswith(said) or is_cut_from(text, said)):
            yield from self._retract()  # a worker of an earlier version does not tell that the text is another one
            return
        rest = self._rest(text)
        if rest or self.said is None:
            last = self._say(rest)
            if not rest:  # its cursor is after the call, so that it comes once
                self.reader.place.calls.pop(self.event_id, None)
            yield last

    def _rest(self, text: str) -> str:
        """What is missing of the answer. Without the journal, a long one ends with the mark that it goes on."""
        begins = text.startswith(self.said) if self.said is not None else self.characters <= len(beginning_of(text))
        if self.whole is not None and self.whole.startswith(self.said or beginning_of(text)):
            return self.whole[self.characters :]
        if begins:
            return text[self.characters :]
        return text[len(beginning_of(text)) :] if self.characters < full_length(text) else ""

    def _say(self, text: str) -> Event:
        offset = self.characters
        self.said = None if self.said is None else self.said + text
        self.characters += len(text)
        self._note()
        kind = "text.delta" if text else "text.delta-end"  # the piece before has the same number of characters
        return TextDeltaEvent(**self._base(kind), **self._draft, offset=offset, text=text)

    def _retract(self) -> Iterator[Event]:
        characters = self.characters
        if characters:
            self.characters = 0
            self.said = ""
            self._note()
            yield TextRetractedEvent(**self._base("text.retracted"), **self._draft, characters=characters)

    def _note(self) -> None:
        self.reader.place.calls[self.event_id] = self.attempt, self.characters

    @property
    def _draft(self) -> _Draft:
        call = self.call
        tool = call.name if isinstance(call.request, UseToolRequest) else None
        return {"tool": tool, "attempt": self.attempt, "draft": call.earlier + self.attempt}

    def _base(self, kind: str) -> _Base:
        run = self.run
        return {
            "id": f"{run.run_id}/{self.event_id}/{kind}-{self.attempt}-{self.characters}",
            "run": run.id,
            "team": run.team.name if run.team else None,
            "at": datetime.now(UTC),
            "call": self.call.id,
            "speaker": self.call.speaker,
        }


async def _read_heartbeats(client: Client, calls: Iterable[_LiveCall]) -> None:
    """Updates open calls from their latest heartbeats, which Temporal stores; no workflow is queried."""
    runs: dict[str, list[_LiveCall]] = {}
    for live in calls:
        runs.setdefault(live.run.run_id, []).append(live)
    await asyncio.gather(*(_read_heartbeats_of(client, live[0].run, live) for live in runs.values()))


async def _read_heartbeats_of(client: Client, run: RunInfo, calls: Iterable[_LiveCall]) -> None:
    """Updates open calls of one run."""
    try:
        described = await client.get_workflow_handle(run.id, run_id=run.run_id).describe()
    except RPCError:
        return  # the reader of the history gets the same error, and reports it
    pending = {activity.activity_id: activity for activity in described.raw_description.pending_activities}
    for live in calls:
        if activity := pending.get(live.call.id):
            known = live.heartbeat
            known.attempt = activity.attempt
            known.waiting = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            is_planned = known.waiting and activity.HasField("next_attempt_schedule_time")
            known.next_at = activity.next_attempt_schedule_time.ToDatetime(UTC) if is_planned else None
            if activity.HasField("last_failure"):
                known.failure = (await decode_failure(client.data_converter, activity.last_failure)).message
            if _is_of_earlier_attempt(activity):
                known.text = LiveText()
            elif activity.heartbeat_details.payloads:
                known.text = await decode_payload(client.data_converter, activity.heartbeat_details, LiveText)


def _is_of_earlier_attempt(activity: PendingActivityInfo) -> bool:
    """Whether the last heartbeat is from before the start of the current attempt."""
    if not (activity.HasField("last_started_time") and activity.HasField("last_heartbeat_time")):
        return False
    return activity.last_heartbeat_time.ToNanoseconds() < activity.last_started_time.ToNanoseconds()


class _EventStream:
    """The events of a tree of runs, with the live text of its open calls, by run and call."""

    def __init__(
        self, client: Client, tree: RunTree[_Item], environment: Mapping[str, str], *, live: bool, cut: bool
    ) -> None:
        self._client = client
        self._environment = environment
        self._tree = tree
        self._live = live
        self._cut = cut
        self._calls: dict[tuple[str, str], _LiveCall] = {}
        self._early: deque[LivePiece] = deque(maxlen=EARLY_PIECES)
        self._received_at = -LIVE_HEARTBEAT_INTERVAL
        self._hurry = asyncio.Event()
        self._opened = asyncio.Event()
        tree.on_passed = self._track

    async def read(  # noqa: C901  # one case for each source
        self, pieces: AsyncGenerator[Sequence["LivePiece"], None] | None
    ) -> AsyncGenerator[Event, None]:
        """The events, each with its cursor; live text also from ``pieces``, if they are given."""
        reads = self._tree.read()
        next_read = asyncio.ensure_future(anext(reads))
        next_pieces = asyncio.ensure_future(anext(pieces)) if pieces else None
        heartbeats: asyncio.Task[None] | None = None
        try:
            while True:
                if self._live and self._tree.wait and heartbeats is None:
                    heartbeats = asyncio.create_task(self._next_heartbeats())
                sources = [next_read, *filter(None, [next_pieces, heartbeats])]
                await asyncio.wait(sources, return_when=asyncio.FIRST_COMPLETED)
                if next_read.done():
                    try:
                        read = next_read.result()
                    except StopAsyncIteration:
                        break
                    await self._complete(read)
                    for event in self._events_of(read):
                        yield self._with_cursor(event)
                    next_read = asyncio.ensure_future(anext(reads))
                    for event in self._read_early():
                        yield self._with_cursor(event)
                elif pieces and next_pieces and next_pieces.done():
                    try:
                        self._early.extend(next_pieces.result())
                        next_pieces = asyncio.ensure_future(anext(pieces))
                    except StopAsyncIteration:
                        next_pieces = None
                    for event in self._read_early():
                        yield self._with_cursor(event)
                    if any(self._is_of_later_attempt(piece) for piece in self._early):
                        self._hurry.set()
                elif heartbeats and heartbeats.done():
                    heartbeats.result()
                    heartbeats = None
                    for event in self._advance():
                        yield self._with_cursor(event)
                    for event in self._read_early():
                        yield self._with_cursor(event)
            if self._live and not self._tree.wait:
                await _read_heartbeats(self._client, self._calls.values())
                for event in self._advance():
                    yield self._with_cursor(event)
        finally:
            tasks = [task for task in (next_read, next_pieces, heartbeats) if task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await reads.aclose()
            if pieces:
                await pieces.aclose()

    def _advance(self) -> Iterator[Event]:
        for live in [*self._calls.values()]:
            yield from live.advance()

    def _read_early(self) -> Iterator[Event]:
        """The events of pieces of open calls. Those of an attempt that no event has told of yet wait for it.

        The text of the attempt before is taken back first, and not that of a new one with it.
        """
        for _ in range(len(self._early)):
            piece = self._early.popleft()
            live = self._calls.get((piece.run, piece.call))
            if live is None or piece.attempt > live.attempt:
                self._early.append(piece)
            elif piece.attempt == live.attempt:
                self._received_at = time.monotonic()
                yield from live.add(piece)

    def _is_of_later_attempt(self, piece: "LivePiece") -> bool:
        live = self._calls.get((piece.run, piece.call))
        return live is not None and piece.attempt > live.attempt

    def _with_cursor(self, event: Event) -> Event:
        return event.placed(event.id, self._tree.cursor)

    async def _next_heartbeats(self) -> None:
        """Waits, and reads the heartbeats of open calls.

        A reader that goes on within a call passes its beginning without an event.
        """
        if not self._calls:
            self._opened.clear()
            await self._opened.wait()
        is_live = time.monotonic() - self._received_at < LIVE_HEARTBEAT_INTERVAL
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIVE_HEARTBEAT_INTERVAL if is_live else HEARTBEAT_INTERVAL):
                await self._hurry.wait()
        self._hurry.clear()
        await _read_heartbeats(self._client, [*self._calls.values()])

    async def _complete(self, read: Read[_Item]) -> None:
        """Reads the whole answer whose text was being read, if the history has only its beginning."""
        source = read.item.source
        if read.item.event or not isinstance(source, CallEnded) or not isinstance(source.result, AskModelResult):
            return
        live = self._calls.get(_key(source))
        text = source.result.message.content
        if live and live.characters and not self._cut and beginning_of(text) != text:
            from ...journal.live_text import read_answer  # noqa: PLC0415

            live.whole = await read_answer(self._environment, self._client.namespace, source.result.head.id)

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
            # Not before all its events were read: text that has arrived already would come before the call itself.
            case CallScheduled(run=run, call=call) if read.item.event is None and call.speaker and not call.hidden:
                attempt, characters = read.reader.place.calls.get(read.event_id, (1, 0))
                self._calls[_key(source)] = _LiveCall(
                    run=run,
                    call=call,
                    reader=read.reader,
                    event_id=read.event_id,
                    cut=self._cut,
                    attempt=attempt,
                    characters=characters,
                    said=None if characters else "",
                )
                self._opened.set()
            case CallEnded():
                self._calls.pop(_key(source), None)
            case RunEnded(run=ended):
                for key in [key for key, live in self._calls.items() if live.run.first_run_id == ended.first_run_id]:
                    del self._calls[key]


def _key(source: CallScheduled | CallEnded) -> tuple[str, str]:
    return source.run.run_id, source.call.id
