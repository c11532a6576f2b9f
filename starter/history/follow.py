"""What happens in a run and in its child runs? Read from Temporal's history, as it is written or afterwards."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ..runs.execution_chain import execution_chain
from ..runs.runs import Handle
from .history_decoder import HistoryDecoder, event_attributes
from .run_events import RunEvent, RunInfo, RunEnded

OnEvent = Callable[[RunEvent], None]

AGAIN = 0.5
"""Seconds until a lost connection is tried again."""


async def follow(client: Client, handle: Handle, on_event: OnEvent, *, wait: bool = True, reconnect_timeout: float = 0) -> None:
    """Tells what happens in a run and in its child runs, from its beginning to its end, or with ``wait`` false to now.

    It only reads: the run doesn't notice, however many follow it. A connection that is lost meanwhile is tried again
    for ``patience`` seconds; then Temporal's RPCError is raised.
    """
    newest = handle.run_id or (await handle.describe()).run_id
    first, *later = [run_id for run_id, _ in await execution_chain(client, handle.id, newest)]
    trail = _Trail(client, HistoryDecoder(RunInfo(handle.id, first), client.data_converter), later)
    for happening in await trail.past():
        on_event(happening)
    if wait:
        await _to_the_end(trail, on_event, reconnect_timeout)


async def _to_the_end(trail: "_Trail", tell: OnEvent, patience: float) -> None:
    """Goes on with a trail, again and again where the connection breaks off."""
    lost_at, since = -1, 0.0
    while True:
        try:
            return await trail.go_on(tell)
        except RPCError:
            if trail.read != lost_at:
                lost_at, since = trail.read, time.monotonic()
            if time.monotonic() - since >= patience:
                raise
            await asyncio.sleep(AGAIN)


@dataclass
class _Trail:
    """The history of a run, read up to the event ``last``, and its child runs' by the events of their start.

    ``later`` are runs in which it is known to go on; after a reset they are others than its history tells.
    """

    client: Client
    reader: HistoryDecoder
    later: list[str] = field(default_factory=list)
    last: int = 0
    seen: int = 0
    over: bool = False
    children: dict[tuple[str, int], "_Trail"] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """How many events have been read, those of child runs included."""
        return self.seen + sum(child.read for child in self.children.values())

    async def past(self) -> list[RunEvent]:
        """What has happened until now, in the order of time."""
        own = [happening async for _, happenings in self._new(wait=False) for happening in happenings]
        inner = await asyncio.gather(*(child.past() for child in self.children.values()))
        return sorted(itertools.chain(own, *inner), key=lambda happening: happening.at)

    async def go_on(self, tell: OnEvent) -> None:
        """Tells what happens from now on; all of a child run before what its parent does next."""
        tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

        def follow_children() -> None:
            for start, child in self.children.items():
                if start not in tasks:
                    tasks[start] = asyncio.create_task(child.go_on(tell))

        follow_children()
        try:
            async for event, happenings in self._new(wait=True):
                for happening in happenings:
                    tell(happening)
                follow_children()
                if (start := (self.reader.run.run_id, _ended_child(event))) in tasks:
                    await tasks[start]
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()

    async def _new(self, *, wait: bool) -> AsyncIterator[tuple[HistoryEvent, list[RunEvent]]]:
        """The events that have not been read, and what they tell; with ``wait`` also those to come, up to the end."""
        read = None
        while not self.over and read != self.reader.run.run_id:
            read = self.reader.run.run_id
            try:
                handle = self.client.get_workflow_handle(self.reader.run.id, run_id=read)
                async for event in handle.fetch_history_events(wait_new_event=wait):
                    if event.event_id > self.last:
                        self.last, self.seen = event.event_id, self.seen + 1
                        yield event, await self._read(event)
            except RPCError as error:  # the history of a child may have been deleted before that of its parent
                if error.status != RPCStatusCode.NOT_FOUND or not self.reader.run.parent:
                    raise

    async def _read(self, event: HistoryEvent) -> list[RunEvent]:
        match event_attributes(event):
            case "child_workflow_execution_started", started:
                inner = started.workflow_execution
                child = self.reader.calls.child(self.reader.run, inner.workflow_id, inner.run_id)
                trail = _Trail(self.client, HistoryDecoder(child, self.client.data_converter))
                self.children[self.reader.run.run_id, event.event_id] = trail
            case "workflow_execution_continued_as_new", ended:
                self.reader.continue_as_new(self.later.pop(0) if self.later else ended.new_execution_run_id)
                self.last = 0
                return []
        happenings = await self.reader.decode(event)
        self.over = any(isinstance(each, RunEnded) for each in happenings)
        return happenings


def _ended_child(event: HistoryEvent) -> int:
    """The event that told the start of the child run whose end an event tells, if it does."""
    name, about = event_attributes(event)
    if name.startswith("child_workflow_execution_") and name != "child_workflow_execution_started":
        return int(about.started_event_id)
    return 0
