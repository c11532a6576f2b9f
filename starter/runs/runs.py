"""Finds, lists and describes runs."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.workflowservice.v1 import ListWorkerDeploymentsRequest
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.control_messages import TerminateRequest
from ...contracts.errors import Failure, RunClosed
from ...contracts.message import TokenUsage
from ...contracts.settings import SettingsError
from ...contracts.status import Status, format_time
from ...resources.base import JsonObject
from ...temporal.client import PROGRAM
from ...temporal.client import task_queue as default_task_queue
from ...temporal.executions import first_run_id
from ...temporal.search_attributes import PHASE, live_workers, root_runs
from ..text import format_age, format_duration

StartedRun = tuple[datetime, WorkflowExecution]
"""A run with the start of its first execution."""


async def newest_runs(
    client: Client,
    query: str,
    count: int,
    matches: Callable[[WorkflowExecution], Awaitable[bool]],
    limit: int | None = None,
) -> list[StartedRun]:
    """At most ``count`` matching runs of a visibility query, newest first.

    Temporal lists open runs by start time and closed runs by close time, newest first. From both lists it reads
    ``limit`` runs, or until no later entry can be newer than the matches so far. A run that continued as new is
    represented by its last execution.
    """
    newest: list[StartedRun] = []
    ids: set[str] = set()
    for status in ("= 'Running'", "!= 'Running'"):
        async for run in client.list_workflows(f"{query} AND ExecutionStatus {status}", limit=limit):
            if len(newest) == count and (run.close_time or run.start_time) < newest[-1][0]:
                break
            is_earlier_execution = run.status == WorkflowExecutionStatus.CONTINUED_AS_NEW and run.id in ids
            if is_earlier_execution or not await matches(run):
                continue
            ids.add(run.id)
            # A run that closed between the two lists is in both of them.
            newest = [(start, other) for start, other in newest if other.run_id != run.run_id]
            newest.append((await _start_time(client, run), run))
            newest.sort(key=lambda started: started[0], reverse=True)
            del newest[count:]
    return newest


async def _start_time(client: Client, run: WorkflowExecution) -> datetime:
    """The start time of the first execution, or of this one if Temporal has deleted the first."""
    with contextlib.suppress(RPCError):
        first = await first_run_id(client.get_workflow_handle(run.id, run_id=run.run_id))
        return (await client.get_workflow_handle(run.id, run_id=first).describe()).start_time
    return run.start_time


RunHandle = WorkflowHandle[object, object]
"""Temporal's handle for the workflow of a run."""


class RunEndedError(Exception):
    """The run has ended, so that it can't be controlled."""


async def check_open(handle: RunHandle) -> None:
    """Raises RunEndedError if the run has ended: Temporal accepts some requests to an ended run without effect."""
    status = (await handle.describe()).status
    if status is not None and status is not WorkflowExecutionStatus.RUNNING:
        raise RunEndedError(f"{handle.id} has ended: {status.name.lower().replace('_', ' ')}")


async def request_termination(handle: RunHandle, reason: str, *, now: bool) -> None:
    """Requests a run to end after the current turn or, with ``now``, at once; its phase is then Completed."""
    await handle.signal("terminate_team", TerminateRequest(reason=reason, now=now))


SEARCH_LIMIT = 1_000
"""The number of open runs, and of closed runs, that are searched for the run of a Query."""


class NoSuchRunError(Exception):
    """There is no run with that name or id."""


async def find_run(client: Client, name: str, namespace: str) -> RunHandle:
    """The run with that id, or otherwise the newest run of the Query with that name.

    Raises:
        NoSuchRunError: if there is none.
        SettingsError: if a run's memo is encrypted and the key is missing, so that it might be that run.
    """
    handle = client.get_workflow_handle(name)
    try:
        await handle.describe()
        return handle
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
    newest = await _newest_of_query(client, name, namespace)
    if newest is None:
        raise NoSuchRunError(f"there is no run '{name}': no run has this id, and no Query in {namespace} this name")
    return newest


async def _newest_of_query(client: Client, name: str, namespace: str) -> RunHandle | None:
    """The newest run of a Query: its name and namespace are in the run's memo."""
    missing_key: SettingsError | None = None

    async def matches(run: WorkflowExecution) -> bool:
        nonlocal missing_key
        try:
            memo = await run.memo()
        except SettingsError as error:
            missing_key = error
            return False
        return (memo.get("query"), memo.get("namespace")) == (name, namespace)

    queries = "WorkflowType = 'query'"
    # Most ids begin with the Query's name: the start time of the newest of them limits the search of all others.
    with_name = f"{queries} AND WorkflowId STARTS_WITH '{_escape(name)}-'"
    runs = await newest_runs(client, with_name, 1, matches, SEARCH_LIMIT)
    since = f" AND StartTime > '{runs[0][0].isoformat()}'" if runs else ""
    runs += await newest_runs(client, f"{queries}{since}", 1, matches, SEARCH_LIMIT)
    if runs:
        _, run = max(runs, key=lambda started: started[0])
        return await _latest_execution(client, run.id, run.run_id)
    if missing_key:
        raise missing_key
    return None


async def _latest_execution(client: Client, run: str, run_id: str | None) -> RunHandle:
    """A handle without a run id, which follows continue-as-new, unless the id was used again for another run."""
    execution = client.get_workflow_handle(run, run_id=run_id)
    latest = client.get_workflow_handle(run)
    return latest if await first_run_id(latest) == await first_run_id(execution) else execution


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


@dataclass(frozen=True)
class ListedRun:
    """A root run. ``name`` and ``namespace`` are those of its Query, if its memo has them.

    ``parent`` is the id of the workflow of another application that has started it, if one has.
    """

    id: str
    name: str | None
    namespace: str | None
    type: str
    state: str
    start: datetime
    end: datetime | None
    parent: str | None = None

    @property
    def duration(self) -> timedelta:
        """The time between its start and its end, or until now."""
        return (self.end or datetime.now(UTC)) - self.start

    @property
    def value(self) -> JsonObject:
        """The run as JSON."""
        value: JsonObject = {
            "id": self.id,
            "name": self.name,
            "namespace": self.namespace,
            "type": self.type,
            "state": self.state,
            "parent": self.parent,
            "startTime": format_time(self.start),
            "completionTime": format_time(self.end) if self.end else None,
            "durationSeconds": round(self.duration.total_seconds(), 3),
        }
        return {key: item for key, item in value.items() if item is not None}

    @property
    def row(self) -> tuple[str, ...]:
        """The run as the cells of a table, in the order of COLUMNS."""
        return self.id, self.type, self.state, format_duration(self.duration), format_age(self.start)

    @property
    def wide_row(self) -> tuple[str, ...]:
        """The run as the cells of a table, in the order of WIDE_COLUMNS."""
        return (*self.row, *(text or "-" for text in (self.name, self.namespace, self.parent)))


def of_queue(queue: str) -> str:
    """The filter for runs of a task queue, with those that programs with functions of their own execute."""
    return f"(TaskQueue = '{queue}' OR TaskQueue STARTS_WITH '{queue}{PROGRAM}')"


COLUMNS = "ID", "TYPE", "STATE", "DURATION", "AGE"
WIDE_COLUMNS = (*COLUMNS, "QUERY", "NAMESPACE", "PARENT")


async def recent_runs(client: Client, namespace: str | None, limit: int, queue: str | None = None) -> list[ListedRun]:
    """The newest root runs, at most ``limit``; with a ``namespace``, only those of its Queries."""

    async def matches(run: WorkflowExecution) -> bool:
        return namespace in (None, (await _memo(run)).get("namespace"))

    roots = f"{of_queue(queue or default_task_queue())} AND {await root_runs(client)}"
    last = "ExecutionStatus != 'ContinuedAsNew'"  # of the executions of a run
    runs = await newest_runs(client, f"{roots} AND {last}", limit, matches)
    return [await _describe(run, start) for start, run in runs]


async def _describe(run: WorkflowExecution, start: datetime) -> ListedRun:
    memo = await _memo(run)
    name, namespace = (str(memo[key]) if key in memo else None for key in ("query", "namespace"))
    state = run.status.name.replace("_", " ").capitalize() if run.status else "Unknown"
    phase = run.typed_search_attributes.get(PHASE)
    if state == "Running" and phase in ("Paused", "InputRequired", "Waiting"):
        state = phase
    return ListedRun(run.id, name, namespace, run.workflow_type, state, start, run.close_time, run.parent_id)


async def _memo(run: WorkflowExecution) -> Mapping[str, object]:
    """The memo; empty if it is encrypted and the key is missing, so that the run is listed without its name."""
    with contextlib.suppress(SettingsError):
        return await run.memo()
    return {}


RETRY_INTERVAL = 1.0
"""Seconds between two attempts to reach Temporal."""

QUERY_TIMEOUT = timedelta(seconds=5)
"""The timeout of a query for the status of a child run."""

MAX_CONCURRENT_QUERIES = 20
"""The maximum number of children of one run whose status is queried at once."""


async def status_of(handle: RunHandle) -> Status:
    """The status of a run from a query to its workflow, which needs a running worker.

    A run that was terminated or timed out in Temporal has the phase Failed, regardless of the query's result.
    """
    status: Status = await handle.query("status", result_type=Status)
    closed = (await handle.describe()).status
    if not status.is_open or closed in (None, WorkflowExecutionStatus.RUNNING):
        return status
    return status.failed_with(_closed_in_temporal(closed))


async def live_status(client: Client, handle: RunHandle) -> Status:
    """The status of a run; while it is open, with the messages and the usage of its child runs so far.

    Child runs are queried themselves, as they report to their parent only at their end. Raises NotServedError.
    """
    status = await _answer(client, handle)
    if not status.is_open:
        return status
    return (await _with_runs(client, await _with_responses(client, status, handle.id))).with_budget_left()


ANSWER_PATIENCE = 2.0
"""Seconds after which it is looked up whether any worker can answer."""


async def _answer(client: Client, handle: RunHandle) -> Status:
    """The answer of a run to the query for its status. Raises NotServedError at once if no worker is there to answer.

    Only a query that is not answered says so: a worker that has just started may not be known to Temporal yet.
    """
    answer = asyncio.create_task(status_of(handle))
    await asyncio.wait([answer], timeout=ANSWER_PATIENCE)
    if not answer.done() or isinstance(answer.exception(), RPCError):
        try:
            if reason := await why_not_served(client, (await handle.describe()).task_queue):
                raise NotServedError(f"{handle.id} can't answer: {reason}")
        except BaseException:
            answer.cancel()
            raise
    return await answer


async def _with_responses(client: Client, status: Status, own: str) -> Status:
    """The status of the query ``own``, with the answers so far of targets in child runs."""
    for index, response in enumerate(status.responses):
        run = response.run if response.status == "Running" and response.run != own else None
        if run and (below := await _status_below(client, run)):
            status = status.with_target_progress(index, below)
    return status


async def _with_runs(client: Client, status: Status) -> Status:
    """The status of a run, with the progress of its child runs, such as those of nested teams."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)

    async def query(run: str) -> Status | None:
        async with slots:
            return await _status_below(client, run)

    for below in await asyncio.gather(*map(query, status.runs or ())):
        if below:
            status = status.with_child_progress(below)
    return status


async def _status_below(client: Client, run: str) -> Status | None:
    """The status of a child run; None if it can't be queried, as before its start."""
    handle: RunHandle = client.get_workflow_handle(run)
    with contextlib.suppress(RPCError, WorkflowQueryFailedError):
        status: Status = await handle.query("status", result_type=Status, rpc_timeout=QUERY_TIMEOUT)
        return await _with_runs(client, status)
    return None


async def closed_status(handle: RunHandle) -> Status:
    """The status of a closed run without a result, from Temporal's description."""
    description = await handle.describe()
    status = Status(
        phase="Canceled",
        stop_reason="canceled",
        token_usage=TokenUsage(),
        start_time=format_time(description.start_time),
        completion_time=format_time(description.close_time or description.start_time),
    )
    if description.status in (None, WorkflowExecutionStatus.CANCELED):
        return status
    return status.failed_with(_closed_in_temporal(description.status))


def _closed_in_temporal(closed: WorkflowExecutionStatus) -> Failure:
    return RunClosed(f"the run was closed in Temporal: {closed.name.lower().replace('_', ' ')}").as_failure()


async def open_task_queue(client: Client, run_id: str) -> str | None:
    """The task queue of the open run with that id; None if there is none."""
    try:
        described = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None
    return described.task_queue if described.status is WorkflowExecutionStatus.RUNNING else None


async def wait_until_closed(handle: RunHandle) -> None:
    """Waits for the end of a run, regardless of its result; reconnects to Temporal as long as necessary."""
    while True:
        try:
            await handle.result()
            return
        except WorkflowFailureError:
            return
        except RPCError:
            await asyncio.sleep(RETRY_INTERVAL)


async def final_status(handle: RunHandle) -> Status:
    """Waits for the end of a run and returns its status."""
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    return await status_of(handle)


CATALOG = "catalog"
"""The memo entry of a run with the SHA-256 of its inline manifests, under which this machine has their files."""


async def catalogs_of_open_runs(client: Client) -> set[str]:
    """The inline manifests that open runs were started with. Raises RPCError, and SettingsError if a key is missing."""
    open_queries = client.list_workflows("ExecutionStatus = 'Running' AND WorkflowType = 'query'")
    return {str((await run.memo()).get(CATALOG)) async for run in open_queries}


async def has_open_runs(client: Client) -> bool:
    """Whether any run is open; True if Temporal is unreachable."""
    try:
        return (await client.count_workflows("ExecutionStatus = 'Running'")).count > 0
    except RPCError:
        return True


async def open_runs(client: Client, limit: int = 3) -> list[str]:
    """The ids of the newest open root runs, at most ``limit``."""
    query = f"ExecutionStatus = 'Running' AND {await root_runs(client)}"
    return [run.id async for run in client.list_workflows(query, limit=limit)]


class NotServedError(Exception):
    """No worker takes the tasks of a run; the text says why, and what to do."""


async def why_not_served(client: Client, task_queue: str | None = None) -> str | None:
    """Why no worker takes new runs of the task queue, and what to do; None if one does."""
    queue = task_queue or default_task_queue()
    workers = await live_workers(client, queue)
    if not workers and PROGRAM in queue:
        return "the program that executes it is not running; continue it there with baton.attach or baton.retry"
    if not workers:
        return f"no worker is running on the task queue {queue}; start one with: baton worker"
    versions = sorted(worker.version for worker in workers)
    if not all(versions) or await _has_current_version(client, {version.partition(".")[0] for version in versions}):
        return None
    deployment, _, build = versions[-1].partition(".")
    return (
        f"the worker deployment {deployment} has no current version, so no run starts; set it with: temporal worker "
        f"deployment set-current-version --deployment-name {deployment} --build-id {build}"
    )


async def _has_current_version(client: Client, deployments: Collection[str]) -> bool:
    """Whether one of these worker deployments has a current version, or one to which it ramps."""
    request = ListWorkerDeploymentsRequest(namespace=client.namespace)
    while True:
        page = await client.workflow_service.list_worker_deployments(request, retry=True)
        for deployment in page.worker_deployments:
            routing = deployment.routing_config
            takes_runs = routing.HasField("current_deployment_version") or routing.ramping_version_percentage
            if deployment.name in deployments and takes_runs:
                return True
        if not page.next_page_token:
            return False
        request.next_page_token = page.next_page_token
