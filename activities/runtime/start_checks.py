"""Checks at a worker's start that its journal and manifests match those of the other workers and of open runs."""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Iterator

from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from ...contracts.errors import JournalUnavailable
from ...contracts.requests import JournalName
from ...contracts.settings import SettingsError
from ...journal.database import JournalIdentity, note_namespace
from ...journal.engine import Engine
from ...journal.journal import Journal
from ...journal.manifest_store import WorkerManifests
from ...resources.base import JsonModel
from ...resources.catalog import Catalog
from ...temporal.client import HEARTBEAT_INTERVAL
from ...temporal.search_attributes import (
    OVERDUE_AFTER,
    LiveWorker,
    describe_namespace,
    live_workers,
    quoted,
    root_runs,
)
from .settings import Settings

_log = logging.getLogger(__name__)

NO_MANIFESTS = "-"

_MANIFESTS = re.compile(rf"{NO_MANIFESTS}|[0-9a-f]{{8}}")


def worker_identity(client: Client, manifests: Catalog) -> str:
    """The identity of a worker in Temporal: its process, and a digest of the manifests that it was started with.

    It is short because it is in five history events of every turn.
    """
    return f"{client.identity}/{manifests.sha[:8] if manifests.manifests else NO_MANIFESTS}"


async def check_manifests(client: Client, settings: Settings, identity: str) -> None:
    """Compares the manifests of the worker with this identity with those of the live workers of its task queue and
    deployment version.

    Raises:
        SettingsError: one of two workers has no manifests, so a run that is started by name would fail at random. If
            both have manifests and they differ, as during a rollout, it only logs a warning.
        RPCError: the request to Temporal failed.
    """
    if "workflows" in settings.roles:
        _compare_manifests(await live_workers(client, settings.task_queue), identity, settings)


async def check_manifests_once_listed(client: Client, settings: Settings, identity: str) -> None:
    """Compares again once Temporal lists the worker with this identity.

    Of two workers that start at once, the later one exits. Raises SettingsError.
    """
    if "workflows" not in settings.roles:
        return
    checks = OVERDUE_AFTER // HEARTBEAT_INTERVAL
    for number in range(1, checks + 1):
        await asyncio.sleep(HEARTBEAT_INTERVAL.total_seconds())
        try:
            workers = await live_workers(client, settings.task_queue)
        except RPCError:  # an outage of Temporal must not end a worker
            return
        # Only a heartbeat tells which worker is the older one, and the first may come after the first check.
        is_known = any(worker.identity == identity and worker.since for worker in workers)
        if is_known and (all(worker.since for worker in workers) or number == checks):
            _compare_manifests(workers, identity, settings)
            return


async def publish_manifests(client: Client, journal: Journal, settings: Settings, identity: str, own: Catalog) -> None:
    """Writes the manifests of the worker with this identity to its journal, for clients: ``baton get`` shows them.

    Raises RPCError.
    """
    if "workflows" not in settings.roles:
        return
    digests = {manifests_digest(worker.identity) for worker in await live_workers(client, settings.task_queue)}
    namespace = (await describe_namespace(client)).namespace_info.id
    published = WorkerManifests(journal, namespace, settings.task_queue)
    await published.publish(manifests_digest(identity), own, digests)


def _compare_manifests(workers: list[LiveWorker], identity: str, settings: Settings) -> None:
    """Compares with every older worker. Until this worker is listed, all others count as older."""
    version = f"{settings.deployment}.{settings.build_id}" if settings.deployment else ""
    own_age = next((_age(worker) for worker in workers if worker.identity == identity), None)
    own_manifests = manifests_digest(identity)
    for worker in sorted(workers, key=_age):
        manifests = manifests_digest(worker.identity)
        is_comparable = worker.since and worker.version == version and _MANIFESTS.fullmatch(manifests)
        if not is_comparable or manifests == own_manifests or (own_age and _age(worker) > own_age):
            continue
        difference = "no manifests" if manifests == NO_MANIFESTS else "different manifests"
        text = (
            f"the worker {worker.identity} on the task queue {settings.task_queue} has {difference}: a run that is "
            "started by name may run on either of them. Start both with the same manifests (baton worker -f PATH, "
            "baton dev -f PATH), or set another task queue for this one (BATON_TASK_QUEUE)"
        )
        if NO_MANIFESTS in (own_manifests, manifests):
            raise SettingsError(text)
        _log.warning("%s", text)


def manifests_digest(identity: str) -> str:
    """The digest of a worker's manifests, from its identity."""
    return identity.rpartition("/")[2]


def _age(worker: LiveWorker) -> tuple[float, str]:
    return worker.since, worker.key


def check_journal_is_shared(settings: Settings, address: str) -> None:
    """Raises JournalUnavailable if the journal is the default, a local file, and Temporal's ``address`` is remote.

    There may be workers on other machines then, and they need a journal that they can reach.
    """
    if not settings.journal_url and not _is_loopback(address):
        raise JournalUnavailable(
            f"Temporal at {address} is not on this machine, and the default journal is a local file: "
            "set BATON_JOURNAL_URL to a database that all workers share"
        )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


MAX_RUNS = 20
"""Open runs whose journals are compared, newest first."""

MAX_EVENTS = 30
"""Events at the beginning of a history that are searched for the result of ``pin``."""


async def check_journal(client: Client, engine: Engine, task_queue: str) -> JournalIdentity:
    """The identity of a worker's journal, which is recorded as that of the client's namespace.

    Raises:
        SettingsError: an open run of the task queue was started with another journal, which this one does not replace.
        JournalUnavailable, RPCError: the journal or Temporal can't be reached.
    """
    identity = await JournalIdentity.read(engine)
    query = f"TaskQueue = {quoted(task_queue)} AND ExecutionStatus = 'Running' AND {await root_runs(client)}"
    runs = [run async for run in client.list_workflows(query, limit=MAX_RUNS)]
    journals = await asyncio.gather(*(_journal_of(client, run.id, run.run_id) for run in runs))
    foreign = [
        (run.id, journal)
        for run, journal in zip(runs, journals, strict=True)
        if journal and journal.id not in (identity.name.id, *identity.replaces)
    ]
    if foreign:
        run_id, journal = foreign[0]
        ids = " ".join(sorted({journal.id for _, journal in foreign}))
        raise SettingsError(
            f"this worker has the journal {identity.name.id} at {identity.name.place}, but the open run {run_id} was "
            f"started with the journal {journal.id} at {journal.place}. Start the worker with that BATON_HOME or "
            "BATON_JOURNAL_URL: until then the run waits. "
            f"If that journal is lost, replace it with this one: baton replace-journal {ids}"
        )
    namespace = (await describe_namespace(client)).namespace_info
    await note_namespace(engine, namespace.id, namespace.name)
    return identity


class _Pinned(JsonModel):
    """The parts of ``pin``'s result that are read here."""

    thread: object
    plan: object
    journal: JournalName


class _Carried(JsonModel):
    pinned: _Pinned


class _Continued(JsonModel):
    """The input of a run after continue-as-new."""

    carried: _Carried


async def _journal_of(client: Client, workflow_id: str, run_id: str) -> JournalName | None:
    """The journal that a run was started with, from its history; None if it is not pinned yet, or can't be decoded."""
    events = client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events(page_size=MAX_EVENTS)
    async for event in events:
        for payloads, kind in _pinned_in(event):
            try:
                (value,) = await client.data_converter.decode(payloads.payloads[:1], [kind])
            except Exception:  # not the result of pin: a client's payload, or one encrypted with a missing key
                continue
            return value.carried.pinned.journal if isinstance(value, _Continued) else value.journal
        if event.event_id >= MAX_EVENTS:
            break
    return None


def _pinned_in(event: HistoryEvent) -> Iterator[tuple[Payloads, type[_Pinned] | type[_Continued]]]:
    """Payloads that may be the result of ``pin``: of an activity, of a local activity, or carried over by a run."""
    started = event.workflow_execution_started_event_attributes
    if started.continued_execution_run_id:
        yield started.input, _Continued
    marker = event.marker_recorded_event_attributes
    if marker.marker_name == "core_local_activity":
        yield marker.details["result"], _Pinned
    if event.HasField("activity_task_completed_event_attributes"):
        yield event.activity_task_completed_event_attributes.result, _Pinned
        yield event.activity_task_completed_event_attributes.result, _Continued  # of a retried run
