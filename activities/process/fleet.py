"""Compares the manifests of the workers on a task queue: a run that is started by a name may go to any of them."""

import asyncio
import logging
import re

from temporalio.client import Client
from temporalio.service import RPCError

from ...conversation.settings_error import SettingsError
from ...conversation.temporal.live_workers import HEARTBEAT_INTERVAL, OVERDUE_AFTER, LiveWorker, live_workers
from ...resources.catalog import Catalog
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
