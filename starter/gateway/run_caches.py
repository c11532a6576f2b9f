"""What is known of runs that many people look at: their statuses, and what their members have used."""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from temporalio.client import Client, WorkflowExecutionStatus

from ...contracts.status import Status
from ..history.events import RunEndedEvent, RunResetEvent
from ..history.follow import CursorError
from ..history.members import MemberSum, MemberSums
from ..history.status import current_status
from ..runs.runs import result_status
from .run import Run

PROGRESS_SECONDS = 1.5
"""Seconds for which the status of an open run is cached for lists of runs."""

MAX_PROGRESS = 1_000
"""The most statuses that are cached."""


class ProgressCache:
    """The statuses of listed runs, so that many people can look at a list that is read often."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, tuple[float, Status]] = {}
        """The statuses by the run ids of their executions, and the times until which they are valid."""

    async def get(self, run: "Run") -> Status:
        """The status of a run. Raises NotServedError and RPCError."""
        description = await run.describe()
        until, status = self._known.get(description.run_id, (0.0, None))
        if status is not None and time.monotonic() < until:
            return status
        is_open = description.status in (None, WorkflowExecutionStatus.RUNNING)
        status = await (current_status(self._client, run.handle) if is_open else result_status(run.handle))
        while len(self._known) >= MAX_PROGRESS:
            del self._known[next(iter(self._known))]
        until = time.monotonic() + PROGRESS_SECONDS if is_open else math.inf
        self._known[description.run_id] = (until, status)
        return status


SUMS_PATIENCE = 1.0
"""Seconds after which a caller gets the sums as far as they are known."""

MAX_SUMS = 200
"""The most runs whose sums are kept."""

CONCURRENT_SUMS = 2
"""The number of runs that are read at once for their sums."""


@dataclass
class _SummedRun:
    """A run that is summed up: what was read up to ``cursor``, and the ``task`` that reads the rest, if one does.

    ``ended_in`` is the run id of the execution in which the run has ended: a reset opens it again in another one.
    """

    sums: MemberSums = field(default_factory=MemberSums)
    cursor: str | None = None
    task: "asyncio.Task[None] | None" = None
    ended_in: str | None = None


class SumsCache:
    """What the members of runs have used. A run is read once; later, only what has happened since then."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(CONCURRENT_SUMS)
        self._known: OrderedDict[tuple[str, str], _SummedRun] = OrderedDict()

    async def get(self, run: Run) -> tuple[Sequence[MemberSum], bool]:
        """The sums of a run, and whether they are those of all that has happened. Raises RPCError."""
        description = await run.describe()
        key = run.id, description.raw_info.first_run_id
        known = self._known.setdefault(key, _SummedRun())
        self._known.move_to_end(key)
        while len(self._known) > MAX_SUMS:
            _, oldest = self._known.popitem(last=False)
            if oldest.task:
                oldest.task.cancel()
        if known.task is None and known.ended_in != description.run_id:
            known.task = asyncio.create_task(self._read(run, known, description.run_id))
        if known.task:
            done, _ = await asyncio.wait([known.task], timeout=SUMS_PATIENCE)
            for task in done:
                known.task = None
                await task
        return [*known.sums.members.values()], known.task is None

    async def _read(self, run: Run, known: _SummedRun, newest: str) -> None:
        """Reads what was not read before, or the whole run after a reset, which takes events back."""
        async with self._slots:
            try:
                was_reset = await self._add(run, known, newest)
            except CursorError:
                was_reset = True
            if was_reset:
                known.sums = MemberSums()
                known.cursor = None
                await self._add(run, known, newest)

    async def _add(self, run: Run, known: _SummedRun, newest: str) -> bool:
        """Adds the events after the cursor; whether the run was reset since then."""
        known.ended_in = None
        async with contextlib.aclosing(run.events(known.cursor, wait=False, live=False)) as events:
            async for event in events:
                if isinstance(event, RunResetEvent):
                    return True
                known.sums.apply(event)
                known.cursor = event.cursor
                if isinstance(event, RunEndedEvent) and event.run == run.id:
                    known.ended_in = newest
        return False
