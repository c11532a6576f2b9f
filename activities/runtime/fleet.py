"""Compares the manifests and the journal of the workers of a task queue."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ...contracts.errors import JournalLost
from ...contracts.message import Head
from ...contracts.settings import SettingsError
from ...contracts.turn import Thread
from ...resources.catalog import Catalog
from ...temporal.activity import workflow_id
from ...temporal.search_attributes import HEARTBEAT_INTERVAL, OVERDUE_AFTER, LiveWorker, live_workers
from .settings import Settings

_log = logging.getLogger(__name__)

NO_MANIFESTS = "-"

_MANIFESTS = re.compile(rf"{NO_MANIFESTS}|[0-9a-f]{{8}}")


def worker_identity(client: Client, own: Catalog) -> str:
    """The identity of a worker in Temporal: its process, and a digest of the manifests that it was started with.

    It is short, because five events of each turn hold it.
    """
    return f"{client.identity}/{own.sha[:8] if own.manifests else NO_MANIFESTS}"


class Fleet:
    """The workers of the same version on the task queue of runs, as one of them sees them.

    It may not share the queue with an earlier worker if one of the two knows no manifests. If both know some, and they
    differ, as when a changed manifest is rolled out, it warns.
    """

    def __init__(self, client: Client, settings: Settings, own: Catalog) -> None:
        self._client, self._queue, self._identity = client, settings.task_queue, worker_identity(client, own)
        self._version = f"{settings.deployment}.{settings.build_id}" if settings.deployment else ""
        self._runs_workflows = "workflows" in settings.roles

    async def check_before_start(self) -> None:
        """Compares this worker with those that live; raises SettingsError and RPCError."""
        if self._runs_workflows:
            self._compare(await live_workers(self._client, self._queue))

    async def check_until(self, stopped: asyncio.Event) -> None:
        """Waits for ``stopped``, and compares again once Temporal knows this worker; raises SettingsError.

        So of two workers that start at the same moment, the later one finds the other.
        """
        checking = asyncio.create_task(self._check_after_start() if self._runs_workflows else asyncio.sleep(0))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([checking, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not checking.done():
            checking.cancel()
        elif not isinstance(checking.exception(), RPCError):  # if Temporal is away, the worker waits for it
            checking.result()
        await stopping

    async def _check_after_start(self) -> None:
        for _ in range(OVERDUE_AFTER // HEARTBEAT_INTERVAL):
            await asyncio.sleep(HEARTBEAT_INTERVAL.total_seconds())
            workers = await live_workers(self._client, self._queue)
            if any(each.identity == self._identity for each in workers):
                self._compare(workers)
                return

    def _compare(self, workers: list[LiveWorker]) -> None:
        own = next((_age(each) for each in workers if each.identity == self._identity), None)
        manifests = _manifests_of(self._identity)
        for other in sorted(workers, key=_age):
            theirs = _manifests_of(other.identity)
            comparable = other.since and other.version == self._version and _MANIFESTS.fullmatch(theirs)
            if not comparable or theirs == manifests or (own and _age(other) > own):
                continue
            if NO_MANIFESTS in (manifests, theirs):
                raise SettingsError(self._explain(other.identity))
            _log.warning("%s", self._explain(other.identity))

    def _explain(self, other: str) -> str:
        what = "no manifests" if _manifests_of(other) == NO_MANIFESTS else "other manifests than this one"
        return (
            f"the worker {other} on the task queue {self._queue} knows {what}: a run that is started by a name could "
            "go to either of them. Start both with the same manifests (baton worker -f PATH, baton dev -f PATH), "
            "or give this one a task queue of its own (BATON_TASK_QUEUE)"
        )


def _manifests_of(identity: str) -> str:
    return identity.rpartition("/")[2]


def _age(worker: LiveWorker) -> tuple[float, str]:
    return worker.since, worker.key


INTERVAL = 1.0
"""Seconds between two looks."""


class OwnJournal(Interceptor):
    """Tells a journal that is not the run's own from one that has lost a row of the run.

    A run's journal has the first row of its conversation. Where that is missing too, this worker was started with
    another journal, or with an empty one: its activities wait here until the row is there, or the worker ends and
    another one with the right journal takes them. ``find_row`` gives a row of the journal at ``place``, or None.
    Nothing ``waits`` where the journal takes the place of one that is lost.
    """

    def __init__(self, find_row: Callable[[str], Awaitable[object]], place: str, *, waits: bool) -> None:
        self._find_row, self._place, self.waits = find_row, place, waits

    async def has(self, row: str) -> bool:
        """Whether the journal has a row."""
        return await self._find_row(row) is not None

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _WaitingActivities(super().intercept_activity(next), self)

    async def wait_for(self, row: str) -> None:
        """Returns when the journal has a row."""
        _log.warning(
            "%s waits: its conversation is not in the journal at %s. Start this worker with the BATON_HOME or the "
            "BATON_JOURNAL_URL with which the run began, or restore that journal",
            workflow_id(),
            self._place,
        )
        while not await self.has(row):
            await asyncio.sleep(INTERVAL)


class _WaitingActivities(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, journal: OwnJournal) -> None:
        super().__init__(next_interceptor)
        self._journal = journal

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        try:
            return await super().execute_activity(input)
        except JournalLost:
            row = _first_row(input.args[0]) if input.args else ""
            if not row or not self._journal.waits or await self._journal.has(row):
                raise
        await self._journal.wait_for(row)
        return await super().execute_activity(input)


def _first_row(request: object) -> str:
    """The id of a row that a run's own journal has: the question of the run, or what an activity goes on from."""
    thread, head = getattr(request, "thread", None), getattr(request, "head", None)
    if isinstance(thread, Thread):
        return thread.question
    return head.id if isinstance(head, Head) else ""
