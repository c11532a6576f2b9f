"""Finds and describes runs."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Collection
from datetime import timedelta
from typing import TypeVar

from pydantic import ValidationError
from temporalio.api.workflowservice.v1 import ListWorkerDeploymentsRequest
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.errors import Failure, InvalidInput, RunClosed
from ...contracts.message import TokenUsage
from ...contracts.settings import SettingsError
from ...contracts.status import Status, turn_status
from ...contracts.text import format_time
from ...contracts.turn import TurnResult
from ...temporal.client import PROGRAM
from ...temporal.client import task_queue as default_task_queue
from ...temporal.executions import first_run_id, key_error, memo_of
from ...temporal.search_attributes import live_workers, quoted
from .listing import newest_runs

_log = logging.getLogger("baton")

RunHandle = WorkflowHandle[object, object]
"""Temporal's handle for the workflow of a run."""

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
            memo = await memo_of(run)
        except SettingsError as error:
            missing_key = error
            return False
        return (memo.get("query"), memo.get("namespace")) == (name, namespace)

    queries = "WorkflowType = 'query'"
    # Most ids begin with the Query's name: the start time of the newest of them limits the search of all others.
    with_name = f"{queries} AND WorkflowId STARTS_WITH {quoted(f'{name}-')}"
    runs = await newest_runs(client, with_name, 1, matches, SEARCH_LIMIT)
    since = f" AND StartTime > '{runs[0].start.isoformat()}'" if runs else ""
    runs += await newest_runs(client, f"{queries}{since}", 1, matches, SEARCH_LIMIT)
    if runs:
        run = max(runs, key=lambda started: started.start).execution
        return await _latest_execution(client, run.id, run.run_id)
    if missing_key:
        raise missing_key
    return None


async def _latest_execution(client: Client, run: str, run_id: str | None) -> RunHandle:
    """A handle without a run id, which follows continue-as-new, unless the id was used again for another run."""
    execution = client.get_workflow_handle(run, run_id=run_id)
    latest = client.get_workflow_handle(run)
    return latest if await first_run_id(latest) == await first_run_id(execution) else execution


RETRY_INTERVAL = 1.0
"""Seconds between two attempts to reach Temporal."""

QUERY_TIMEOUT = timedelta(seconds=5)
"""The timeout of a query for the status of a child run."""

MAX_CONCURRENT_QUERIES = 20
"""The maximum number of children of one run whose status is queried at once."""


async def live_status(client: Client, handle: RunHandle) -> Status:
    """The status of a run; one that has not ended by itself has the messages and the usage of its child runs so far.

    Child runs are queried themselves, as they report to their parent only at their end. A run that was terminated or
    timed out in Temporal has the phase Failed, regardless of the query's result. Raises NotServedError.
    """
    status = await _answer(client, handle)
    if not status.is_open:
        return status
    status = (await _with_runs(client, await _with_responses(client, status, handle.id))).with_budget_left()
    description = await handle.describe()
    closed = description.status
    if closed in (None, WorkflowExecutionStatus.RUNNING):
        return status
    now = await _answer(client, handle)
    if not now.is_open:  # it has ended by itself meanwhile
        return now
    return status.closed_with(_failure_of(closed), description.close_time or description.start_time)


ANSWER_PATIENCE = 2.0
"""Seconds after which it is looked up whether any worker can answer."""


T = TypeVar("T")


async def served(client: Client, handle: RunHandle, request: Awaitable[T], *, awaits_workers: bool = False) -> T:
    """The answer of a run to a query or an update. Raises NotServedError at once if no worker is there to answer.

    Only a request that is not answered says so: a worker that has just started may not be known to Temporal yet. What
    changes a run ``awaits_workers``: it may take effect when they are back, so only ProgramNotRunningError is raised.
    """
    answer = asyncio.ensure_future(request)
    try:
        await asyncio.wait([answer], timeout=ANSWER_PATIENCE)
        if not answer.done() or isinstance(answer.exception(), RPCError):
            await check_served(client, handle, programs_only=awaits_workers)
        return await answer
    except BaseException:
        answer.cancel()
        raise


NOTICE_INTERVAL = 60.0
"""Seconds between looking up whether the program of a run is there, while its end is awaited."""


async def awaited_status(client: Client, handle: RunHandle) -> Status:
    """The final status of a run. While its program is not running it is logged, once, what the run waits for."""
    status = asyncio.ensure_future(final_status(client, handle))
    try:
        await asyncio.wait([status], timeout=ANSWER_PATIENCE)
        while not status.done():
            try:
                await check_served(client, handle, programs_only=True)
            except ProgramNotRunningError as error:
                _log.warning("%s", error)
                break
            except RPCError:
                pass  # the end is awaited with retries
            await asyncio.wait([status], timeout=NOTICE_INTERVAL)
        return await status
    except BaseException:
        status.cancel()
        raise


async def check_served(client: Client, handle: RunHandle, *, programs_only: bool = False) -> None:
    """Raises NotServedError if no worker takes the tasks of a run, and ProgramNotRunningError if no program does.

    With ``programs_only``, only for an open run of a program.
    """
    description = await handle.describe()
    queue = description.task_queue
    if programs_only and (PROGRAM not in queue or description.close_time):
        return
    if reason := await why_not_served(client, queue):
        error = ProgramNotRunningError if PROGRAM in queue else NotServedError
        raise error(f"{handle.id} can't answer: {reason}")


async def _answer(client: Client, handle: RunHandle) -> Status:
    """The answer of a run to the query for its status. Raises NotServedError, also if its workers lack a key."""
    try:
        answer: Status = await served(client, handle, handle.query("status", result_type=Status))
    except (RPCError, WorkflowQueryFailedError):
        if (await handle.describe()).raw_description.pending_workflow_task.attempt > 1:
            with contextlib.suppress(SettingsError, InvalidInput):  # the failure is encrypted as well
                if reason := await key_error(client, handle.id):
                    raise NotServedError(f"{handle.id} can't answer: {reason}") from None
        raise
    return answer


async def _with_responses(client: Client, status: Status, query_id: str) -> Status:
    """The status of the query ``query_id``, with the answers so far of targets in child runs."""
    for index, response in enumerate(status.responses):
        run = response.run if response.status == "Running" and response.run != query_id else None
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


async def result_status(handle: RunHandle) -> Status:
    """The status of a closed run as it is stored, for which no worker is needed."""
    try:
        result = await handle.result()
    except WorkflowFailureError as failure:
        cause = failure.cause
        details = cause.details if isinstance(cause, ApplicationError | CancelledError) else ()
        result = details[0] if details else None
    try:
        return Status.model_validate(result)
    except ValidationError:
        return await closed_status(handle)


async def closed_status(handle: RunHandle) -> Status:
    """The status of a closed run without a result, from Temporal's description."""
    description = await handle.describe()
    end = description.close_time or description.start_time
    status = Status(
        phase="Canceled",
        stop_reason="canceled",
        token_usage=TokenUsage(),
        start_time=format_time(description.start_time),
        completion_time=format_time(end),
    )
    if description.status in (None, WorkflowExecutionStatus.CANCELED):
        return status
    return status.closed_with(_failure_of(description.status), end)


def _failure_of(closed: WorkflowExecutionStatus) -> Failure:
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


async def final_status(client: Client, handle: RunHandle) -> Status:
    """Waits for the end of a run; the status is read from its result, which needs no worker.

    A run that was terminated in Temporal has none: a worker, if one is live, tells what was said and used until then.
    """
    try:
        result: object = await handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
        details = cause.details if isinstance(cause, ApplicationError | CancelledError) else ()
        result = details[0] if details else None
        if not isinstance(result, dict):
            return await _closed_in_temporal(client, handle)
    if isinstance(result, dict) and "phase" in result:
        return Status.model_validate_json(json.dumps(result))
    about = await handle.describe()
    end = about.close_time or about.start_time
    return turn_status(TurnResult.model_validate_json(json.dumps(result)), about.start_time, end)


async def _closed_in_temporal(client: Client, handle: RunHandle) -> Status:
    try:
        return await live_status(client, handle)
    except NotServedError:
        return await closed_status(handle)


CATALOG = "catalog"
"""The memo entry of a run with the SHA-256 of its inline manifests, under which this machine has their files."""


async def catalogs_of_open_runs(client: Client) -> set[str]:
    """The inline manifests that open runs were started with. Raises RPCError, and SettingsError if a key is missing."""
    open_queries = client.list_workflows("ExecutionStatus = 'Running' AND WorkflowType = 'query'")
    return {str((await memo_of(run)).get(CATALOG)) async for run in open_queries}


async def has_open_runs(client: Client) -> bool:
    """Whether any run is open; True if Temporal is unreachable."""
    try:
        return (await client.count_workflows("ExecutionStatus = 'Running'")).count > 0
    except RPCError:
        return True


class NotServedError(Exception):
    """No worker takes the tasks of a run; the text says why, and what to do."""


class ProgramNotRunningError(NotServedError):
    """The program with the functions and keys of a run is not running."""


async def why_not_served(client: Client, task_queue: str | None = None) -> str | None:
    """Why no worker takes new runs of the task queue, and what to do; None if one does."""
    queue = task_queue or default_task_queue()
    workers = await live_workers(client, queue)
    if not workers and PROGRAM in queue:
        return (
            "the program that executes it is not running, or the event loop in which it was started has ended; "
            "continue it with baton.attach(ID, functions=[…])"
        )
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
