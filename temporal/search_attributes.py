"""Baton's search attributes, and queries about a namespace and its workers."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeTaskQueueRequest,
    DescribeWorkerRequest,
    ListWorkersRequest,
)
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from ..resources.strategies import RUN_TYPES
from .client import HEARTBEAT_INTERVAL

TEAM = SearchAttributeKey.for_keyword("BatonTeam")
STRATEGY = SearchAttributeKey.for_keyword("BatonStrategy")
PHASE = SearchAttributeKey.for_keyword("BatonPhase")
STOP_REASON = SearchAttributeKey.for_keyword("BatonStopReason")

PARENT = SearchAttributeKey.for_keyword("BatonParent")
"""The workflow id of the run that started a child run. A root run has none, even if another application started it."""

COST = SearchAttributeKey.for_float("BatonCost")

FORKED_FROM = SearchAttributeKey.for_keyword("BatonForkedFrom")
"""The workflow id of the run that a fork has gone on from."""

CALLER = SearchAttributeKey.for_keyword("BatonCaller")
"""The digest of the caller of a gateway that has started a run."""

ALL = (TEAM, STRATEGY, PHASE, STOP_REASON, PARENT)
"""The keyword attributes; a server may lack COST, FORKED_FROM and CALLER, which were added later."""

AttributeValues = Mapping[SearchAttributeKey[str], str | None]


def updates(values: AttributeValues) -> list[SearchAttributeUpdate[str]]:
    """The updates that set these attributes on a run; attributes without a value are not changed."""
    return [key.value_set(value) for key, value in values.items() if value]


def of_child(parent: str) -> TypedSearchAttributes:
    """The attributes with which a run starts a child run; ``parent`` is its own workflow id."""
    return TypedSearchAttributes([SearchAttributePair(PARENT, parent)])


async def root_runs(client: Client) -> str:
    """The filter for root runs: those started by clients, and by workflows of other applications.

    A server without Baton's attributes can't tell the latter from child runs, and finds only those without a parent.
    """
    parent = PARENT.name if await registered(client) else "ParentWorkflowId"
    types = ", ".join(f"'{name}'" for name in RUN_TYPES)
    return f"{parent} IS NULL AND WorkflowType IN ({types})"


async def registered(client: Client) -> bool:
    """Whether the namespace has all keyword attributes; False if listing them is not permitted."""
    return (await _known(client))["searchable"]


async def shows_forks(client: Client) -> bool:
    """Whether the namespace has the attribute FORKED_FROM, which is missing if an earlier release has set it up."""
    return (await _known(client))["shows_forks"]


async def _known(client: Client) -> dict[str, bool]:
    """What ``KnownAttributes.known`` returns, by one request."""
    types = await _types(client)
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    return {
        "searchable": all(types.get(key.name) == keyword for key in ALL),
        "shows_cost": types.get(COST.name) == IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
        "shows_forks": types.get(FORKED_FROM.name) == keyword,
        "shows_callers": types.get(CALLER.name) == keyword,
    }


async def _types(client: Client) -> Mapping[str, int]:
    try:
        response = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), retry=True
        )
    except RPCError:
        return {}
    return response.custom_attributes


async def register(client: Client) -> None:
    """Registers the attributes with the server; raises RPCError if that is not permitted."""
    if not all((await _known(client)).values()):
        types = {key.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for key in (*ALL, FORKED_FROM, CALLER)}
        types[COST.name] = IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE
        request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
        await client.operator_service.add_search_attributes(request, retry=True)


CHECK_INTERVAL = 30.0
"""Seconds between two requests for the attributes, as long as one is missing."""


class KnownAttributes:
    """The registered attributes of a server, cached. They may be registered after the worker has started."""

    def __init__(self, client: Client, interval: float = CHECK_INTERVAL) -> None:
        self._client = client
        self._interval = interval
        self._known = {"searchable": False, "shows_cost": False, "shows_forks": False, "shows_callers": False}
        self._next_request = 0.0
        self._lock = asyncio.Lock()

    async def known(self) -> dict[str, bool]:
        """``searchable``: the server has the keyword attributes; the others: also COST, FORKED_FROM, or CALLER."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if not all(self._known.values()) and now >= self._next_request:
                self._known = await _known(self._client)
                self._next_request = now + self._interval
        return self._known


OVERDUE_AFTER = timedelta(seconds=10)
"""A worker with the interval HEARTBEAT_INTERVAL whose last heartbeat is older has ended, or can't reach Temporal."""

SDK_HEARTBEAT_INTERVAL = timedelta(seconds=60)
"""The SDK's default interval of worker heartbeats."""

POLL_TIMEOUT = timedelta(seconds=60)
"""A worker without tasks polls anew after this time."""


@dataclass(frozen=True)
class LiveWorker:
    """A worker on a task queue. ``since`` is its start time; 0 if Temporal only reports its poller."""

    key: str
    identity: str
    version: str = ""
    since: float = 0


async def live_workers(client: Client, task_queue: str) -> list[LiveWorker]:
    """The live workers of a task queue; raises RPCError.

    A worker that has just started has polled, but sent no heartbeat yet. A worker in a program that sets no interval
    sends a heartbeat each minute, or none. A server without worker heartbeats returns all that have polled within the
    last five minutes, although they may have ended since.
    """
    namespace = await describe_namespace(client)
    pollers = await pollers_of(client, task_queue)
    if not namespace.namespace_info.capabilities.worker_heartbeats:
        return [LiveWorker(key=identity, identity=identity) for identity in sorted(pollers)]
    now = datetime.now(UTC)
    overdue = now - OVERDUE_AFTER
    polls = {identity for identity, last in pollers.items() if last > overdue - POLL_TIMEOUT}
    of_queue = f"TaskQueue = {quoted(task_queue)}"
    # In this order: a worker that sends its first heartbeat between the requests is live, and would be left out if it
    # was known only after the live ones were listed.
    known = {worker.identity for worker in await _list(client, of_queue)}
    running = f"{of_queue} AND WorkerStatus = 'Running'"
    live = await _list(client, f"{running} AND HeartbeatTime > '{overdue.isoformat()}'")
    # What follows is only for workers with rare heartbeats: each is asked for its interval.
    silent = _processes(polls) - _processes(worker.identity for worker in live)
    for worker in await _list(client, running) if silent else ():
        if _process_of(worker.identity) in silent and await _is_due(client, worker, now):
            live.append(worker)
    known.update(worker.identity for worker in live)
    unnamed = sorted(identity for identity in pollers if identity not in known)
    workers: list[LiveWorker] = []
    for worker in live:
        process = _process_of(worker.identity)
        own = next((identity for identity in unnamed if _process_of(identity) == process), None)
        if own and worker.identity not in pollers:
            # In the heartbeats of all workers of a client, the SDK names the first one of them.
            unnamed.remove(own)
            workers.append(replace(worker, identity=own))
        else:
            workers.append(worker)
    alive = _processes(worker.identity for worker in live)
    ended = _processes(known) - alive
    for identity in unnamed:
        process = _process_of(identity)
        without_heartbeats = identity in polls and process not in ended
        if pollers[identity] > overdue or process in alive or without_heartbeats:
            workers.append(LiveWorker(key=identity, identity=identity))
    return workers


async def _is_due(client: Client, worker: LiveWorker, now: datetime) -> bool:
    """Whether the next heartbeat of a worker may still come, by the interval between its last two."""
    request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=worker.key)
    try:
        answer = await client.workflow_service.describe_worker(request, retry=True)
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.UNIMPLEMENTED):
            return False
        raise
    heartbeat = answer.worker_info.worker_heartbeat
    interval = SDK_HEARTBEAT_INTERVAL
    if heartbeat.HasField("elapsed_since_last_heartbeat"):
        interval = heartbeat.elapsed_since_last_heartbeat.ToTimedelta()
    return now - heartbeat.heartbeat_time.ToDatetime(UTC) < interval - HEARTBEAT_INTERVAL + OVERDUE_AFTER


def _processes(identities: Iterable[str]) -> set[str]:
    return set(map(_process_of, identities))


def _process_of(identity: str) -> str:
    """The part of a worker's identity before the digest of its manifests."""
    return identity.rpartition("/")[0] or identity


async def describe_namespace(client: Client) -> DescribeNamespaceResponse:
    """The description of the client's namespace; raises RPCError."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    return await client.workflow_service.describe_namespace(request, retry=True)


async def _list(client: Client, query: str) -> list[LiveWorker]:
    request = ListWorkersRequest(namespace=client.namespace, query=query)
    workers: list[LiveWorker] = []
    while True:
        page = await client.workflow_service.list_workers(request, retry=True)
        for worker in page.workers:
            deployment = worker.deployment_version  # without a name, its build id was generated by the SDK
            workers.append(
                LiveWorker(
                    key=worker.worker_instance_key,
                    identity=worker.worker_identity,
                    version=f"{deployment.deployment_name}.{deployment.build_id}" if deployment.deployment_name else "",
                    since=worker.start_time.ToNanoseconds() / 1e9,
                )
            )
        if not page.next_page_token:
            return workers
        request.next_page_token = page.next_page_token


async def pollers_of(client: Client, task_queue: str) -> dict[str, datetime]:
    """The identities that poll for activities, as every worker of Baton does, with the time of the last poll."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    answer = await client.workflow_service.describe_task_queue(request, retry=True)
    return {poller.identity: poller.last_access_time.ToDatetime(UTC) for poller in answer.pollers}


@dataclass(frozen=True)
class Backlog:
    """The tasks of a task queue that wait for a worker: their approximate number, and the oldest's age in seconds."""

    count: int
    age: float


async def backlog_of(client: Client, queue: str, kind: str) -> Backlog:
    """The backlog of ``workflow`` or ``activity`` tasks. Raises RPCError."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.Value(f"TASK_QUEUE_TYPE_{kind.upper()}"),
        report_stats=True,
    )
    stats = (await client.workflow_service.describe_task_queue(request, retry=True)).stats
    return Backlog(
        count=int(stats.approximate_backlog_count),
        age=stats.approximate_backlog_age.ToTimedelta().total_seconds(),
    )


def quoted(text: str) -> str:
    """A text in quotes, for a query of Temporal's visibility."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
