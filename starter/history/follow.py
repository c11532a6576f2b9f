"""Follows a run and its child runs: reads their histories, open or closed, and reports the run events."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ...resources.strategies import RUN_TYPES
from ...temporal.executions import execution_chain
from ..runs.runs import RunHandle
from .decoder import HistoryDecoder, event_attributes
from .run_events import RunEnded, RunEvent, RunInfo

OnEvent = Callable[[RunEvent], None]

RECONNECT_INTERVAL = 0.5
"""Seconds between two attempts to reconnect."""

RECONNECT_TIMEOUT = 20.0
"""Seconds for which a lost connection is retried: a local server needs some to start again."""


async def follow(
    client: Client,
    handle: RunHandle,
    on_event: OnEvent,
    *,
    wait: bool = True,
    reconnect_timeout: float = RECONNECT_TIMEOUT,
) -> None:
    """Reports all events of a run and its child runs, from the start of the run to its end.

    With ``wait`` false it reports only those that exist already. It reads histories and sends the run nothing, so any
    number of clients can follow a run. A lost connection is retried for ``reconnect_timeout`` seconds.

    Raises:
        RPCError: if Temporal is unreachable for longer than that.
    """
    newest = handle.run_id or (await handle.describe()).run_id
    first, *later = [run_id for run_id, _ in await execution_chain(client, handle.id, newest)]
    reader = _HistoryReader(client, HistoryDecoder(RunInfo(handle.id, first), client.data_converter), later)
    for event in await reader.read_existing():
        on_event(event)
    if wait:
        await _read_to_the_end(reader, on_event, reconnect_timeout)


async def _read_to_the_end(reader: "_HistoryReader", on_event: OnEvent, reconnect_timeout: float) -> None:
    """Reads events until the run is over, and reconnects as long as every connection yields new events in time."""
    count_at_loss = -1
    lost_at = 0.0
    while True:
        try:
            return await reader.read_on(on_event)
        except RPCError:
            if reader.count != count_at_loss:
                count_at_loss = reader.count
                lost_at = time.monotonic()
            if time.monotonic() - lost_at >= reconnect_timeout:
                raise
            await asyncio.sleep(RECONNECT_INTERVAL)


@dataclass
class _HistoryReader:
    """Reads the history of one run, and those of its child runs; it can resume where it stopped.

    ``later`` are the known executions after the current one: after a reset, they differ from those in the history.
    ``children`` are keyed by the execution and the event in which they were started.
    """

    client: Client
    decoder: HistoryDecoder
    later: list[str] = field(default_factory=list)
    last_event_id: int = 0
    own_count: int = 0
    over: bool = False
    children: dict[tuple[str, int], "_HistoryReader"] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of history events read, including those of child runs."""
        return self.own_count + sum(child.count for child in self.children.values())

    async def read_existing(self) -> list[RunEvent]:
        """All existing events, in chronological order."""
        of_run = [event async for _, events in self._read(wait=False) for event in events]
        of_children = await asyncio.gather(*(child.read_existing() for child in self.children.values()))
        return sorted(itertools.chain(of_run, *of_children), key=lambda event: event.at)

    async def read_on(self, on_event: OnEvent) -> None:
        """Reports new events until the run is over; all events of a child run before the next one of its parent."""
        tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

        def follow_children() -> None:
            for start, child in self.children.items():
                if start not in tasks:
                    tasks[start] = asyncio.create_task(child.read_on(on_event))

        follow_children()
        try:
            async for history_event, events in self._read(wait=True):
                for event in events:
                    on_event(event)
                follow_children()
                if (start := (self.decoder.run.run_id, _start_of_ended_child(history_event))) in tasks:
                    await tasks[start]
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()

    async def _read(self, *, wait: bool) -> AsyncIterator[tuple[HistoryEvent, list[RunEvent]]]:
        """The unread history events, decoded; with ``wait`` also future ones."""
        run_id = None
        while not self.over and run_id != self.decoder.run.run_id:
            run_id = self.decoder.run.run_id
            try:
                handle = self.client.get_workflow_handle(self.decoder.run.id, run_id=run_id)
                async for event in handle.fetch_history_events(wait_new_event=wait):
                    if event.event_id > self.last_event_id:
                        self.last_event_id = event.event_id
                        self.own_count += 1
                        yield event, await self._decode(event)
            except RPCError as error:  # Temporal may delete the history of a child run before that of its parent
                if error.status != RPCStatusCode.NOT_FOUND or not self.decoder.run.parent:
                    raise

    async def _decode(self, event: HistoryEvent) -> list[RunEvent]:
        match event_attributes(event):
            case "child_workflow_execution_started", started if started.workflow_type.name in RUN_TYPES:
                execution = started.workflow_execution
                child = self.decoder.calls.child_run(self.decoder.run, execution.workflow_id, execution.run_id)
                reader = _HistoryReader(self.client, HistoryDecoder(child, self.client.data_converter))
                self.children[self.decoder.run.run_id, event.event_id] = reader
            case "workflow_execution_continued_as_new", ended:
                self.decoder.continue_as_new(self.later.pop(0) if self.later else ended.new_execution_run_id)
                self.last_event_id = 0
                return []
        events = await self.decoder.decode(event)
        self.over = any(isinstance(run_event, RunEnded) for run_event in events)
        return events


def _start_of_ended_child(event: HistoryEvent) -> int:
    """The id of the event in which a child run started, if this event is its end; otherwise 0."""
    name, attributes = event_attributes(event)
    if name.startswith("child_workflow_execution_") and name != "child_workflow_execution_started":
        return int(attributes.started_event_id)
    return 0
