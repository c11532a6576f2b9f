"""Follows a run and its child runs: reads their histories, open or closed, in an order that any reader can resume.

Each run of the tree has its own history, and all of them grow at once. A reader's *place* is a vector: for each open
run of the tree, the last event read of it. Child runs are between two events of their parent, their start and their
end, so those that have not started yet, or whose end was read, need no entry. Everything before a place is read and
everything after it is not, whoever reads: so a place is enough to go on from.
"""

import asyncio
import base64
import contextlib
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Generic, NamedTuple, TypeVar

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ...temporal.executions import Started, execution_chain
from ..runs.runs import RunHandle
from .decoder import HistoryDecoder, carried_state, event_attributes, tells_all
from .run_events import ChildEnded, ChildStarted, RunEnded, RunEvent, RunInfo, RunReset

RECONNECT_INTERVAL = 0.5
"""Seconds between two attempts to reconnect."""

RECONNECT_TIMEOUT = 20.0
"""Seconds for which a lost connection is retried: a local server needs some to start again."""

CONCURRENT_READS = 16
"""How many histories are read to the present at once."""


class CursorError(ValueError):
    """A cursor that is not one, or that belongs to another run."""


@dataclass
class Place:
    """How far a run was read, with its child runs that were open then, by the event in which they started.

    ``execution`` is the index in the continue-as-new chain. The events up to and including ``event`` were read; of that
    one only the first ``count`` items, if it is not 0. ``calls`` are the open calls whose live text was read, by the
    event in which they were scheduled: the number of the attempt, and of the characters.
    """

    execution: int = 0
    event: int = 0
    count: int = 0
    children: dict[int, "Place"] = field(default_factory=dict)
    calls: dict[int, tuple[int, int]] = field(default_factory=dict)

    def numbers(self) -> Iterator[int]:
        """The place as a sequence of numbers."""
        yield from (self.execution, self.event, self.count, len(self.calls))
        for event, (attempt, characters) in self.calls.items():
            yield from (event, attempt, characters)
        yield len(self.children)
        for event, child in self.children.items():
            yield event
            yield from child.numbers()

    @classmethod
    def read(cls, numbers: Iterator[int]) -> "Place":
        """The place that is next in a sequence of numbers. Raises StopIteration if the sequence is too short."""
        place = cls(next(numbers), next(numbers), next(numbers))
        for _ in range(next(numbers)):
            event, attempt, characters = next(numbers), next(numbers), next(numbers)
            place.calls[event] = attempt, characters
        for _ in range(next(numbers)):
            event = next(numbers)
            place.children[event] = cls.read(numbers)
        return place


def write_cursor(run_id: str, place: Place) -> str:
    """The cursor for a place in the tree of a run, whose current execution has this run id."""
    data = uuid.UUID(run_id).bytes + b"".join(map(_number_bytes, place.numbers()))
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


LARGE = 240
"""The largest number that is one byte of a cursor; before a larger one is its length, added to this."""


def _number_bytes(number: int) -> bytes:
    if number <= LARGE:
        return bytes([number])
    data = number.to_bytes((number.bit_length() + 7) // 8)
    return bytes([LARGE + len(data)]) + data


def read_cursor(cursor: str) -> tuple[str, Place]:
    """The run id and the place of a cursor. Raises CursorError."""
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        run_id = str(uuid.UUID(bytes=data[:16]))
        numbers = _read_numbers(iter(data[16:]))
        place = Place.read(numbers)
        if next(numbers, None) is None:
            return run_id, place
    except (ValueError, StopIteration, RuntimeError, RecursionError):
        pass
    raise CursorError("not a cursor of an event")


MAX_NUMBER_BYTES = 8
"""Bytes of a number in a cursor: those after a place in it are written as well."""


def _read_numbers(data: Iterator[int]) -> Iterator[int]:
    """The numbers of a cursor. Raises ValueError for one that is larger than any of a history."""
    for byte in data:
        if byte > LARGE + MAX_NUMBER_BYTES:
            raise ValueError("a number of a cursor is too large")
        yield byte if byte <= LARGE else int.from_bytes([next(data) for _ in range(byte - LARGE)])


T = TypeVar("T")

Build = Callable[[RunEvent], Iterable[T]]
"""Makes the items of one run from its run events, in order. They must depend on nothing else."""


class Read(NamedTuple, Generic[T]):
    """An item that was read: the run, the execution and the history event that it is from, and its number there."""

    item: T
    reader: "RunReader[T]"
    run_id: str
    event_id: int
    number: int

    @property
    def id(self) -> str:
        """An id that is the same for every reader."""
        return f"{self.run_id}/{self.event_id}.{self.number}"


async def follow(
    client: Client,
    handle: RunHandle,
    on_event: Callable[[RunEvent], None],
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
    tree = RunTree[RunEvent](client, handle, _as_they_are, wait=wait, reconnect_timeout=reconnect_timeout)
    async with contextlib.aclosing(tree.read()) as reads:
        async for read in reads:
            on_event(read.item)


def _as_they_are(_run: RunInfo) -> Build[RunEvent]:
    return lambda event: (event,)


class RunTree(Generic[T]):
    """A run with its child runs, read from a place to its end, or with ``wait`` false as far as it exists.

    The items of one run come in the order of its history, and those of a child run after its start and before its end
    in the history of its parent. Among what can be read next, the earliest comes first. So all readers of what exists
    receive it in the same order; while several runs of the tree proceed at once, two readers may see different
    interleavings of them, but each item once.

    ``depth_first``: all of a child run comes before what follows its start in the history of its parent. This order is
    the same for all readers, also while the runs proceed; what comes later has to wait for what comes earlier.

    ``until``: it ends at the place of that cursor.
    """

    def __init__(
        self,
        client: Client,
        handle: RunHandle,
        build: Callable[[RunInfo], Build[T]],
        after: str | None = None,
        *,
        until: str | None = None,
        wait: bool = True,
        depth_first: bool = False,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
    ) -> None:
        self.client = client
        self.wait = wait
        self.depth_first = depth_first
        self.build = build
        self.reconnect_timeout = reconnect_timeout
        self.changed = asyncio.Event()
        self.reading = asyncio.Semaphore(CONCURRENT_READS)
        self.tasks: set[asyncio.Task[None]] = set()
        self.root: RunReader[T] | None = None
        self.on_passed: Callable[[Read[T]], None] = lambda _: None
        """Receives what is not read, because it is before the place."""
        self._handle = handle
        self._after = read_cursor(after) if after else None
        self._until = read_cursor(until) if until else None

    @property
    def cursor(self) -> str:
        """The cursor after everything that was read."""
        assert self.root
        return write_cursor(self.root.run_id, self.root.place)

    async def read(self) -> AsyncGenerator[Read[T], None]:
        """The items after the place. Raises RPCError, and CursorError if the cursor belongs to another run."""
        try:
            while True:
                try:
                    for read in await self._begin():
                        yield read
                    while (reader := await self._next()) is not None:
                        for read in reader.take():
                            yield read
                    return
                except _WasResetError:
                    self._after = read_cursor(self.cursor)
                    await self._stop()
        finally:
            await self._stop()

    async def _begin(self) -> list[Read[T]]:
        """Starts to read the run from the place, and returns the items of a reset after it."""
        newest = self._handle.run_id or (await self._handle.describe()).run_id
        executions = await execution_chain(self.client, self._handle.id, newest)
        chain = [run_id for run_id, _ in executions]
        reset = None
        place = None
        until = None
        if self._after:
            place, reset = await self._find(chain, *self._after)
        if self._until:
            until, _ = await self._find(chain, *self._until)
        root = self.root = RunReader(self, RunInfo(self._handle.id, chain[0]), executions, place, until)
        root.run_id = chain[place.execution] if place else chain[0]
        root.start()
        if not (reset and place):
            return []
        made = root.build(RunReset(root.decoder.run, *reset))
        return [Read(item, root, root.run_id, place.event, -1 - index) for index, item in enumerate(made)]

    async def _find(
        self, chain: list[str], run_id: str, place: Place
    ) -> tuple[Place, tuple[datetime, datetime] | None]:
        """A place in the current chain of executions, and the times of the reset that has taken it back, if one has.

        A reset copies the events before it to a new execution.
        """
        if run_id in chain:
            place.execution = chain.index(run_id)
            return place, None
        try:
            old = [old_id for old_id, _ in await execution_chain(self.client, self._handle.id, run_id)]
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise CursorError(
                f"the cursor does not belong to the run {self._handle.id}, or its history was deleted"
            ) from None
        common = [new_id for new_id in chain if new_id in old]
        base = old[old.index(common[-1]) + 1] if common else old[0]
        forked = await self._fork(chain[len(common)], base) if len(common) < len(chain) else None
        if forked is None:
            raise CursorError(f"the cursor belongs to an earlier run with the id {self._handle.id}")
        event, at, since = forked
        execution = len(common)
        if run_id == base and place.event < event:
            place.execution = execution
            return place, None
        children = place.children if run_id == base else {}
        children = {start: child for start, child in children.items() if start < event}
        return Place(execution, event - 1, children=children), (at, since)

    async def _fork(self, run_id: str, base: str) -> tuple[int, datetime, datetime] | None:
        """The event of the reset from which an execution comes, its time, and that of the event before it."""
        found = None
        before = datetime.min.replace(tzinfo=UTC)
        handle = self.client.get_workflow_handle(self._handle.id, run_id=run_id)
        async for event in handle.fetch_history_events():
            failed = event.workflow_task_failed_event_attributes
            at = event.event_time.ToDatetime(UTC)
            if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
                found = event.event_id, at, before
                if failed.base_run_id == base:
                    break
            before = at
        return found

    async def check_reset(self, run_id: str) -> None:
        """Raises _WasResetError if the run goes on from a copy of a terminated execution."""
        if self._handle.run_id:
            return
        newest = (await self._handle.describe()).run_id
        chain = [new_id for new_id, _ in await execution_chain(self.client, self._handle.id, newest)]
        if run_id not in chain and any([await self._fork(new_id, run_id) for new_id in chain]):
            raise _WasResetError

    async def _next(self) -> "RunReader[T] | None":
        """The reader whose next step comes next; None at the end. Waits for one."""
        assert self.root
        while True:
            self.changed.clear()
            for task in [task for task in self.tasks if task.done()]:
                self.tasks.discard(task)
                task.result()
            readers = [*self.root.walk()]
            if all(reader.steps or reader.caught_up for reader in readers):
                ready = self._ready(readers)
                if ready:
                    return min(ready, key=lambda reader: (reader.steps[0].at, reader.path))
                if all(reader.over for reader in readers) or not (self.wait or self.tasks):
                    return None
            await self.changed.wait()

    def _ready(self, readers: "Sequence[RunReader[T]]") -> "list[RunReader[T]]":
        """The readers of which a step may come next."""
        if self.depth_first:
            open_readers = [reader for reader in readers if reader.steps or not reader.over]
            readers = [min(open_readers, key=lambda reader: reader.next_place)] if open_readers else []
        return [reader for reader in readers if reader.steps and not reader.is_blocked]

    async def _stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()


class _WasResetError(Exception):
    """The run was reset while it was read."""


@dataclass
class _Step(Generic[T]):
    """A history event that was not read yet: its items, and the child run that it starts or ends.

    ``is_cut``: the reader ends before the rest of its items.
    """

    run_id: str
    execution: int
    event_id: int
    at: datetime
    items: list[T]
    first: int = 0
    starts: "RunReader[T] | None" = None
    ends: int = 0
    is_cut: bool = False


class RunReader(Generic[T]):
    """Reads the history of one run of the tree, across its continue-as-new chain.

    ``chain`` are the known executions: after a reset, they differ from those in the history. It begins with one of
    them from which on nothing is missing that the events after the place depend on, and not before the first one.
    ``place`` is how far it was read; ``steps`` come next, up to the place ``until``. It is ``caught_up`` if it has read
    the history to the present, and ``over`` if there is nothing more to come. ``children`` are the open child runs, by
    the event of their start.
    """

    def __init__(
        self,
        tree: RunTree[T],
        run: RunInfo,
        chain: Sequence[tuple[str, Started]] = (),
        after: Place | None = None,
        until: Place | None = None,
        path: tuple[int, ...] = (),
        root: "RunReader[T] | None" = None,
    ) -> None:
        self.decoder = HistoryDecoder(run, tree.client.data_converter)
        self.build = tree.build(run)
        self.place = after or Place()
        self.run_id = run.run_id
        self.path = path
        self.steps: deque[_Step[T]] = deque()
        self.children: dict[int, RunReader[T]] = {}
        self.caught_up = False
        self.over = False
        self.ended_in_parent = False
        self._tree = tree
        self._root: RunReader[T] = root or self
        self._after = replace(self.place, children={**self.place.children})
        self._until = until
        self._chain = chain
        self._has_begun = False
        self._later = [run_id for run_id, _ in chain[1:]]
        self._execution = 0
        self._last_event = 0
        self._last_at = datetime.min.replace(tzinfo=UTC)
        self._unread: dict[int, RunReader[T]] = {}
        self._task: asyncio.Task[None] | None = None
        self._lost_at: float | None = None

    def start(self) -> None:
        """Starts to read in the background."""
        self._task = asyncio.create_task(self._fill())
        self._tree.tasks.add(self._task)
        self._task.add_done_callback(lambda _: self._tree.changed.set())

    def walk(self) -> "Iterator[RunReader[T]]":
        """This run and the open runs below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    @property
    def next_place(self) -> tuple[int, ...]:
        """The place in the tree of the step that comes next, if it comes."""
        if self.steps:
            return (*self.path, self.steps[0].execution, self.steps[0].event_id)
        return (*self.path, self._execution, self._last_event + 1)

    @property
    def is_blocked(self) -> bool:
        """Whether the next step is the end of a child run of which something is still to be read."""
        child = self.children.get(self.steps[0].ends)
        return child is not None and not all(run.over and not run.steps for run in child.walk())

    def take(self) -> Iterator[Read[T]]:
        """Reads the next step, item by item."""
        step = self.steps[0]
        self.run_id = step.run_id
        self.place.execution = step.execution
        self.place.event = step.event_id
        last = len(step.items) - 1
        for index, item in enumerate(step.items):
            if index < last or step.is_cut:
                self.place.count = step.first + index + 1
            else:
                self._finish(step)
            yield Read(item, self, step.run_id, step.event_id, step.first + index)
        if step.is_cut:
            self.steps.popleft()
        elif not step.items:
            self._finish(step)

    @contextlib.contextmanager
    def before(self, read: Read[T]) -> Iterator[None]:
        """While the block runs, the place is before an item that was just taken."""
        place = self.place
        event, count = place.event, place.count
        place.event, place.count = (read.event_id, read.number) if read.number else (read.event_id - 1, 0)
        yield
        place.event, place.count = event, count

    @property
    def is_current(self) -> bool:
        """Whether the run is still a part of its tree, which begins anew after a reset."""
        return self._root is self._tree.root

    def _finish(self, step: _Step[T]) -> None:
        self.steps.popleft()
        self.place.count = 0
        if step.starts:
            self.children[step.event_id] = step.starts
            self.place.children[step.event_id] = step.starts.place
        if step.ends:
            self.children.pop(step.ends, None)
            self.place.children.pop(step.ends, None)

    async def _fill(self) -> None:
        """Reads the history to its end, or to the present; a lost connection is retried."""
        while not self.over:
            try:
                if not self._has_begun:
                    await self._begin()
                    self._has_begun = True
                if not self.caught_up:
                    async with self._tree.reading:
                        await self._read(wait=False)
                elif self._tree.wait:
                    await self._read(wait=True)
                elif self.ended_in_parent:  # its history was read before its end
                    await self._read(wait=False)
                else:
                    return
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND and self.path:
                    self.over = True  # Temporal may delete the history of a child run before that of its parent
                elif not self._tree.wait or self._is_lost_for_long():
                    raise
                else:
                    await asyncio.sleep(RECONNECT_INTERVAL)
                    continue
            self.caught_up = True
            self._tree.changed.set()

    def _is_lost_for_long(self) -> bool:
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        return now - self._lost_at >= self._tree.reconnect_timeout

    async def _begin(self) -> None:
        """Skips the executions of which the events after the place are independent."""
        place = self._after.execution
        if place < 2:
            return
        chain = self._chain or await self._executions()
        if len(chain) <= place or chain[0][0] != self.decoder.run.run_id:
            return
        converter = self._tree.client.data_converter
        later = await carried_state(converter, chain[place][1])
        for number in range(place - 1, 0, -1):
            carried = await carried_state(converter, chain[number][1])
            if carried is None or later is None:
                return
            if tells_all(carried, later):
                for run_event in await self.decoder.begin_at(chain[number][0], chain[0][1], carried):
                    for _ in self.build(run_event):
                        pass
                self._execution = number
                if self._later:
                    self._later = [run_id for run_id, _ in chain[number + 1 :]]
                return

    async def _executions(self) -> Sequence[tuple[str, Started]]:
        """The executions of a child run; none if another run has its id by now."""
        client = self._tree.client
        newest = (await client.get_workflow_handle(self.decoder.run.id).describe()).run_id
        return await execution_chain(client, self.decoder.run.id, newest)

    async def _read(self, *, wait: bool) -> None:
        """Reads the history events that were not read before; with ``wait`` also future ones."""
        run_id = None
        while not self.over and run_id != self.decoder.run.run_id:
            run_id = self.decoder.run.run_id
            handle = self._tree.client.get_workflow_handle(self.decoder.run.id, run_id=run_id)
            async for event in handle.fetch_history_events(wait_new_event=wait):
                self._lost_at = None
                if event.event_id > self._last_event:
                    await self._add(event)
                    self._tree.changed.set()
                if self.over:
                    break

    async def _add(self, event: HistoryEvent) -> None:
        """Decodes the next history event, and adds its step unless it was read before."""
        if self._is_at_end(event.event_id):
            self.over = True
            return
        name, attributes = event_attributes(event)
        run_id = self.decoder.run.run_id
        if name == "workflow_execution_terminated" and self._tree.wait and not self.path:
            await self._tree.check_reset(run_id)
        self._last_event = event.event_id
        self._last_at = max(self._last_at, event.event_time.ToDatetime(UTC))
        if name == "workflow_execution_continued_as_new":
            later = self._later.pop(0) if self._later else attributes.new_execution_run_id
            self.decoder.continue_as_new(later)
            self._execution += 1
            self._last_event = 0
            return
        run_events = await self.decoder.decode(event)
        items = [item for run_event in run_events for item in self.build(run_event)]
        step = _Step(run_id, self._execution, event.event_id, self._last_at, items)
        for run_event in run_events:
            match run_event:
                case ChildStarted(child=child):
                    step.starts = self._child(event.event_id, child)
                case ChildEnded():
                    step.ends = attributes.started_event_id
                    self._ends(step.ends)
        if any(isinstance(run_event, RunEnded) for run_event in run_events):
            self.over = True
        self._cut_at_end(step)
        if self._is_read(step):
            return
        if step.items or step.starts or step.ends:
            self.steps.append(step)

    def _is_at_end(self, event: int) -> bool:
        """Whether an event is after the place until which it reads."""
        until = self._until
        return until is not None and (self._execution, event) > (until.execution, until.event)

    def _cut_at_end(self, step: _Step[T]) -> None:
        """Leaves of the step at the place until which it reads the items before that."""
        until = self._until
        if until and until.count and (step.execution, step.event_id) == (until.execution, until.event):
            step.items = step.items[: until.count]
            step.ends = 0
            step.is_cut = True

    def _is_read(self, step: _Step[T]) -> bool:
        """Whether the step is before the place from which this reader goes on; of the step there, the rest remains."""
        after = self._after
        here = step.execution, step.event_id
        if here > (after.execution, after.event):
            return False
        is_part = here == (after.execution, after.event) and after.count > 0
        passed = after.count if is_part else len(step.items)
        for number, item in enumerate(step.items[:passed]):
            self._tree.on_passed(Read(item, self, step.run_id, step.event_id, number))
        if is_part:
            step.items = step.items[passed:]
            step.first = passed
            return False
        if step.starts:
            self.children[step.event_id] = step.starts
        if step.ends:
            self.children.pop(step.ends, None)
            self._unread.pop(step.ends, None)
        return True

    def _child(self, start: int, run: RunInfo) -> "RunReader[T] | None":
        """The reader of a child run; None if it was read to its end before the place, or starts at its end."""
        after = self._after
        until = self._until if self._until and self._until.execution == self._execution else None
        if until and until.count and until.event == start:
            return None
        here = self._execution, start
        was_started = here < (after.execution, after.event) or (
            here == (after.execution, after.event) and not after.count
        )
        place = after.children.get(start) if was_started and self._execution == after.execution else None
        if was_started and place is None:
            return None
        child = RunReader(
            self._tree,
            run,
            after=place,
            until=until.children.get(start) if until else None,
            path=(*self.path, self._execution, start),
            root=self._root,
        )
        self._unread[start] = child
        child.start()
        return child

    def _ends(self, start: int) -> None:
        """Notes that a child run has ended: its history can now be read to its end."""
        child = self._unread.pop(start, None)
        if child:
            child.ended_in_parent = True
            if child._task and child._task.done() and not child.over:
                child.start()
