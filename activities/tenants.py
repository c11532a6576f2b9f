"""The activities that limit the open runs of a tenant, and what tells waiting runs that their Quotas have changed."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from ..contracts.control_messages import ASK_AGAIN
from ..contracts.errors import BatonError
from ..contracts.requests import AdmitRequest, AdmitResult, ReleaseRequest, ReleaseResult
from ..journal.journal import Journal
from ..journal.quotas import Admissions, KnownRun, QuotaWaits, RunLimit
from ..temporal.activity import own_client, workflow_id
from ..temporal.search_attributes import quoted
from .context.metering import Meters, quota_reached, run_limits, waiting_text

_log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = (20.0, 300.0)
"""Seconds after which a waiting run asks again, if nobody tells it to: among the next ones, and behind them."""

LONGEST_ASK_AGAIN = 900.0
"""Seconds: each time it asks, a run adds to its history, in which there is space for some weeks."""

NEXT = 5
"""The number of runs that count as the next ones."""

CHECK_SECONDS = 5.0
"""Seconds between two checks of whether the runs that keep others waiting are still open."""

CHANGES_SECONDS = 20.0
"""Seconds between two looks of a worker for changed Quotas; each is up to half shorter or longer."""

TOLD_AT_ONCE = 50
"""Runs that are told before that is noted: other workers, or this one after it was killed, tell them again."""

MAX_CHECKED = 200
"""The number of runs that one check describes."""


def ask_again_after(waited: timedelta, before: int) -> float:
    """The seconds after which a run asks again that has ``waited`` so long, and has so many ``before`` it."""
    soon, late = ASK_AGAIN_SECONDS
    return max(soon if before < NEXT else late, min(waited.total_seconds() / 60, LONGEST_ASK_AGAIN))


class TenantActivities:
    """The activities that limit the open runs of a tenant.

    A run that ends releases its place, and wakes the run that waits first. A run that was terminated releases nothing:
    those that wait find it when they ask again.
    """

    def __init__(self, journal: Journal, meters: Meters) -> None:
        self._meters = meters
        self._admissions = Admissions(journal.database)
        self._waits = QuotaWaits(journal.database, meters.task_queue)
        self._checked: dict[str, float] = {}

    @activity.defn(name="admit_run")
    async def admit_run(self, request: AdmitRequest) -> AdmitResult:
        """Admits the run, if its tenant has room for one more. Raises QuotaReached, with which the run waits."""
        tenant = await self._meters.tenant(request.tenant)
        limits = run_limits(tenant) if tenant else []
        run = KnownRun(request.run, workflow_id())
        waiting = await self._admissions.admit(limits, run)
        if waiting and await self._release_ended(waiting.limit):
            waiting = await self._admissions.admit(limits, run)
        if waiting is None:
            return AdmitResult()
        waited = datetime.now(UTC) - request.since if request.since else timedelta()
        seconds = ask_again_after(waited, waiting.before)
        if tenant:
            await self._waits.note(self._meters.quota_wait(tenant), seconds)
        raise quota_reached(waiting_text(waiting), seconds)

    @activity.defn(name="release_run")
    async def release_run(self, request: ReleaseRequest) -> ReleaseResult:
        """Notes that a run has ended, and wakes those that may be next."""
        return ReleaseResult(woken=await self._release([request.run]))

    async def _release(self, runs: Sequence[str]) -> int:
        """Frees the places of runs that have ended, and wakes as many others, but none that has ended as well."""
        woken = 0
        ended = list[str]()
        client = own_client()
        while runs:
            ended += runs
            following = await self._admissions.release(runs)
            answers = await asyncio.gather(*(_wake(client, run) for run in following))
            woken += sum(answers)
            runs = [run.run for run, is_awake in zip(following, answers, strict=True) if not is_awake]
        await self._waits.release(ended)
        await self._admissions.forget(ended)
        return woken

    async def _release_ended(self, limit: RunLimit) -> bool:
        """Whether runs have ended without saying so. It is checked once in a while."""
        now = time.monotonic()
        if now - self._checked.get(limit.id, -CHECK_SECONDS) < CHECK_SECONDS:
            return False
        self._checked[limit.id] = now
        client = own_client()
        runs = await self._admissions.to_check(limit, MAX_CHECKED)
        are_open = await asyncio.gather(*(_is_open(client, run) for run in runs))
        ended = [run.run for run, is_open in zip(runs, are_open, strict=True) if not is_open]
        await self._release(ended)
        return bool(ended)


class QuotaChanges:
    """Tells the runs that wait for a Quota to ask again, once it has changed, and releases what ended ones have booked.

    By themselves they ask rarely, as each time adds to their histories. A run that has ended while one of its calls
    waited for its minute says nothing, and may have been terminated.
    """

    def __init__(self, client: Client, journal: Journal, meters: Meters) -> None:
        self._client = client
        self._meters = meters
        self._waits = QuotaWaits(journal.database, meters.task_queue)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Looks for changes while the block runs."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHANGES_SECONDS * random.uniform(0.5, 1.5))
            try:
                await self.tell()
                await self.release_ended()
            except (BatonError, RPCError) as error:  # without the journal, the calls of runs fail as well, and say so
                _log.debug("changes of Quotas are looked for again: %s", error.message)
            except Exception:  # else no run of this worker would ever be told again
                _log.exception("changes of Quotas are looked for again")

    async def tell(self) -> None:
        """Tells the runs whose Quotas have changed. Raises JournalUnavailable and JournalLost."""
        waiting_tenants = await self._waits.tenants()
        for name, tenant in (await self._meters.tenants(waiting_tenants)).items():
            digest = tenant.digest if tenant else ""
            if new := [*self._meters.new_quotas(name, digest)]:
                await self._waits.note_new(name, new)
                self._meters.forget_new(name, new)
            elif all(digest in digests for digests in waiting_tenants[name]):
                continue
            waiting = await self._waits.to_tell(name, digest)
            for start in range(0, len(waiting), TOLD_AT_ONCE):
                told = list[KnownRun]()
                for run in waiting[start : start + TOLD_AT_ONCE]:
                    with contextlib.suppress(RPCError):  # it is told at the next look
                        await _wake(self._client, run)
                        told.append(run)
                await self._waits.note_told(name, digest, told)

    async def release_ended(self) -> None:
        """Releases the minutes that runs have booked which have ended. Raises JournalUnavailable and JournalLost."""
        if runs := await self._waits.to_check(MAX_CHECKED):
            ids = ", ".join(quoted(run) for run in runs)
            closed = self._client.list_workflows(f"RunId IN ({ids}) AND ExecutionStatus != 'Running'")
            await self._waits.release([execution.run_id async for execution in closed])


async def _wake(client: Client, run: KnownRun) -> bool:
    """Tells a waiting run to ask again. False if it has ended."""
    try:
        await client.get_workflow_handle(run.workflow).signal(ASK_AGAIN)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def _is_open(client: Client, run: KnownRun) -> bool:
    try:
        latest = await client.get_workflow_handle(run.workflow).describe()
    except RPCError as error:
        return error.status is not RPCStatusCode.NOT_FOUND
    is_same = run.run in (latest.run_id, latest.raw_info.first_run_id)
    return is_same and latest.status is WorkflowExecutionStatus.RUNNING
