"""The activities of a run as a whole: ``append``, ``grant``, ``read_failed_run``, ``last_failures`` and ``expire``."""

import asyncio
from collections.abc import Collection, Iterable
from functools import partial

from pydantic import JsonValue
from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from ..contracts.decisions import GrantRequest, GrantResult
from ..contracts.errors import Cause, InvalidInput, JournalUnavailable
from ..contracts.inputs import FailedRun
from ..contracts.message import Head, Message
from ..contracts.requests import (
    AppendRequest,
    ExpireRequest,
    ExpireResult,
    LastFailures,
    LastFailuresRequest,
    ReadFailedRunRequest,
)
from ..journal.accounts import Accounts, Amount
from ..journal.database import JournalIdentity
from ..journal.engine import Engine
from ..journal.external_storage import workflow_family
from ..journal.journal import Journal
from ..journal.prune import database_now, delete_runs, delete_values, forget, live_runs, runs_after
from ..journal.schema import copies
from ..resources.base import JsonObject
from ..resources.budget import NANO
from ..resources.tool import OWN_ACTIVITIES
from ..temporal.activity import idempotency_key, own_client
from ..temporal.executions import RunExecution, delete_execution, delete_pushes, run_tree
from ..temporal.search_attributes import quoted

MAX_DEPTH = 10
"""Levels of nested runs that are described."""

CLOSE_EVENT = WorkflowHistoryEventFilterType.CLOSE_EVENT

POLL_INTERVAL = 1.0
"""Seconds between two checks of runs that are still open."""


class RunActivities:
    """The activities of a run as a whole."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="append")
    async def append(self, request: AppendRequest) -> Head:
        """Appends the items after the head and returns the new head; a retry returns the same head.

        A bookmark is moved to the new head. Without items, it is set for the first time.
        """
        head = await self._journal.append(request.head, request.items, idempotency_key())
        if request.bookmark:
            await self._journal.set_bookmark(request.bookmark, head, new=not request.items)
        return head

    @activity.defn(name="grant")
    async def grant(self, request: GrantRequest) -> GrantResult:
        """Adds the amounts to an account once, even if several runs request the same grant."""
        more = request.more
        cost = round((more.cost or 0) * NANO)
        amount = Amount(more.tokens or 0, cost, more.model_calls or 0, more.tool_calls or 0)
        await Accounts(self._journal.database).grant(request.account, request.number, amount, more.seconds)
        return GrantResult()

    @activity.defn(name="read_failed_run")
    async def read_failed_run(self, request: ReadFailedRunRequest) -> JsonObject:
        """The input with which this run resumes an earlier run of its own workflow id and type.

        A worker of this task queue answers from the history of that run: a worker of another queue might not be
        Baton's. Raises InvalidInput if the run can't be retried.

        A row that nobody reads, after those of the failed run, keeps them from being deleted with that run.
        """
        client = own_client()
        info = activity.info()
        run = await _last_execution(client, info.workflow_id or "", request.run)
        if run.status not in RETRIED:
            raise InvalidInput(f"the run {request.run} has not failed")
        if (run.workflow_type, run.task_queue) != (info.workflow_type, info.task_queue):
            expected = f"{info.workflow_type} on the task queue {info.task_queue}"
            raise InvalidInput(f"the run {request.run} is not of the type {expected}")
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        state: JsonObject = await handle.query("retry_input", result_type=dict[str, JsonValue])
        if head := FailedRun.model_validate(state).head:
            await self._journal.append(head, (Message(role="system", content="retried"),), idempotency_key())
        return state

    @activity.defn(name="last_failures")
    async def last_failures(self, request: LastFailuresRequest) -> LastFailures:
        """The failure with the most attempts in every run and its child runs.

        Only Temporal has the failed attempts of an activity that is being retried.
        """
        client = own_client()
        failures = await asyncio.gather(*(_last_failure(client, run, MAX_DEPTH) for run in request.runs))
        return LastFailures(by_run={run: cause for run, cause in zip(request.runs, failures, strict=True) if cause})

    @activity.defn(name="expire")
    async def expire(self, request: ExpireRequest) -> ExpireResult:
        """Deletes the rows of a query in the journal, then its executions and those of its child runs.

        Rows that other runs continue from are not deleted, nor those of an execution that was reset, nor those of a
        later run with the same workflow id. A retry deletes the rest.
        """
        client = own_client()
        tree = await _closed_tree(client, request)
        runs = {request.run_id, *(execution.run_id for execution in tree)}
        journal_kept = await _is_any_reset(client, tree, runs) or not await self._delete_rows(client, runs)
        await self._delete_long_values(client, request.workflow_id, runs)
        if await _is_latest(client, request):
            await delete_pushes(client, request.workflow_id)
        for execution in reversed(tree):
            await delete_execution(client, execution.workflow_id, execution.run_id)
        return ExpireResult(runs=len(tree), journal_kept=journal_kept)

    async def _delete_rows(self, client: Client, runs: set[str]) -> bool:
        """Deletes the rows of the runs, unless another run continues from them. Returns whether it did.

        Adds to ``runs`` the runs that continue from them and that Temporal has deleted.
        """
        engine = self._journal.database.engine
        namespace = self._journal.database.namespace
        while others := await engine.run(partial(runs_after, namespace=namespace, runs=runs)):
            several_servers = len((await JournalIdentity.read(engine)).ids_of(namespace)) > 1
            if several_servers or await _is_any_known(client, others):  # another server may have the other runs
                return False
            runs |= others
        if await engine.run(partial(live_runs, runs=runs)):
            return False
        if not await forget(engine, namespace, runs, tables=[copies]):
            return False
        await delete_runs(engine, runs)
        return True

    async def _delete_long_values(self, client: Client, workflow_id: str, runs: set[str]) -> None:
        """Deletes the externally stored payloads of the query and its children, unless other runs share them."""
        if await delete_long_values(self._journal.database.engine, client, [workflow_id], runs):
            raise JournalUnavailable("long values of the run were stored while they were deleted")  # it is retried


async def delete_long_values(
    engine: Engine, client: Client, workflow_ids: Iterable[str], runs: Collection[str]
) -> list[str]:
    """Deletes the long values in the journal of workflows that have no other executions in Temporal than ``runs``.

    Returns those of the workflow ids of which values were stored meanwhile, although no other execution has begun.
    """
    until = await engine.run(database_now)  # first: a run that begins later may need what it stores
    alone = {workflow_family(each): each for each in workflow_ids if not await _is_family_shared(client, each, runs)}
    left = await delete_values(engine, client.namespace, alone.keys(), until)
    return [alone[family] for family in sorted(left) if not await _is_family_shared(client, alone[family], runs)]


async def _is_family_shared(client: Client, workflow_id: str, runs: Collection[str]) -> bool:
    """Whether the family of a workflow has another execution than ``runs`` in Temporal, which may need its values."""
    family = workflow_family(workflow_id)
    first = workflow_id.partition("/")[0]
    async for execution in client.list_workflows(f"WorkflowId STARTS_WITH {quoted(first)}"):
        if execution.run_id not in runs and workflow_family(execution.id) == family:
            return True
    return False


RETRIED = (WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.CANCELED)
"""The final statuses of runs that can be retried; a canceled run only with the parent that canceled it."""


async def _last_execution(client: Client, workflow_id: str, run_id: str) -> WorkflowExecutionDescription:
    """The last execution of the run with this first run id. Raises InvalidInput if Temporal has deleted it."""
    try:
        while True:
            handle = client.get_workflow_handle(workflow_id, run_id=run_id)
            run = await handle.describe()
            if run.status != WorkflowExecutionStatus.CONTINUED_AS_NEW:
                return run
            async for event in handle.fetch_history_events(event_filter_type=CLOSE_EVENT):
                run_id = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        raise InvalidInput(f"Temporal has deleted the run {run_id} of {workflow_id}, so it can't be retried") from None


async def _last_failure(client: Client, run: str, depth: int) -> Cause | None:
    try:
        description = (await client.get_workflow_handle(run).describe()).raw_description
    except RPCError:  # not started yet, or deleted
        return None
    children = description.pending_children if depth else ()
    causes = await asyncio.gather(
        *(_cause(client, pending) for pending in description.pending_activities if pending.HasField("last_failure")),
        *(_last_failure(client, child.workflow_id, depth - 1) for child in children),
    )
    return max((cause for cause in causes if cause), key=lambda cause: cause.attempts or 0, default=None)


async def _cause(client: Client, pending: PendingActivityInfo) -> Cause:
    """The failure of the last attempt. While an activity waits for a retry, Temporal already counts that attempt."""
    error = await client.data_converter.decode_failure(pending.last_failure)
    waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    family = "TimeoutError"
    kind = type(error).__name__
    if isinstance(error, ApplicationError):
        is_own = pending.activity_type.name in OWN_ACTIVITIES
        family = str(error.details[0]) if error.details and is_own else "ActivityError"
        kind = error.type or kind
    return Cause(
        family=family,
        type=kind,
        message=str(getattr(error, "message", error)),
        attempts=max(1, pending.attempt - waits),
    )


async def _closed_tree(client: Client, request: ExpireRequest) -> list[RunExecution]:
    """The executions of the query once all are closed, without the workflow ``expire`` that waits for its ttl."""
    while True:
        executions = await run_tree(client, request.workflow_id, request.run_id)
        tree = [execution for execution in executions if execution.type != "expire"]
        if not any(execution.is_open for execution in tree):
            return tree
        await asyncio.sleep(POLL_INTERVAL)


async def _is_any_reset(client: Client, tree: list[RunExecution], runs: set[str]) -> bool:
    """Whether one of these executions was reset. The new execution reads the rows, even before it has its own."""
    first_runs = {execution.first_run_id for execution in tree}
    for workflow_id in {execution.workflow_id for execution in tree}:
        try:
            latest = await client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            continue  # deleted in the meantime
        if latest.run_id not in runs and latest.raw_info.first_run_id in first_runs:
            return True
    return False


async def _is_latest(client: Client, request: ExpireRequest) -> bool:
    """Whether no later run has the same workflow id; a retry finds none if it is deleted already."""
    try:
        latest = await client.get_workflow_handle(request.workflow_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return True
    return latest.run_id == request.run_id


async def _is_any_known(client: Client, runs: Iterable[str]) -> bool:
    """Whether Temporal has any of these executions."""
    for run in runs:
        async for _ in client.list_workflows(f"RunId = '{run}'", limit=1):
            return True
    return False
