"""The activity ``expire``: deletes what a query has left, from Temporal and from the journal, when its ttl is over."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ..conversation.contracts.expiry import ExpireRequest, ExpireResult
from ..conversation.temporal.run_tree import RunExecution, run_tree
from .journal.journal import Journal
from .journal.prune import delete_runs, delete_values, live_runs, runs_after
from .journal.storage_driver import workflow_family

POLL_INTERVAL = 1.0
"""Seconds between two looks at runs that are still closing."""


class Expire:
    """The activity ``expire``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="expire")
    async def expire(self, request: ExpireRequest) -> ExpireResult:
        """Deletes the executions of a query and of the runs below it, after their rows in the journal.

        Rows from which others go on stay, and so do those of an execution that was reset, and what a younger run with
        the same workflow id has. Another attempt finds what is left.
        """
        client = activity.client()
        tree = await _closed_tree(client, request)
        runs = {request.run_id, *(each.run_id for each in tree)}
        kept = await _is_any_reset(client, tree, runs) or not await self._delete_rows(client, runs)
        await self._delete_long_values(client, request.workflow_id, runs)
        for each in reversed(tree):
            await _delete(client, each)
        return ExpireResult(runs=len(tree), journal_kept=kept)

    async def _delete_rows(self, client: Client, runs: set[str]) -> bool:
        """Deletes the rows of the runs, unless somebody goes on from them. Extends ``runs`` by what is below them and
        unknown to Temporal by now."""
        engine = self._journal.database.engine
        while others := await engine.run(partial(runs_after, runs=runs)):
            if await _is_any_known(client, others):
                return False
            runs |= others
        if runs & await engine.run(live_runs):
            return False
        await engine.run(partial(delete_runs, runs=runs))
        return True

    async def _delete_long_values(self, client: Client, workflow_id: str, runs: set[str]) -> None:
        """Deletes the long values of the query's family of workflows, unless others are of that family, too."""
        before, family = datetime.now(UTC), workflow_family(workflow_id)
        first = workflow_id.partition("/")[0].replace("\\", "\\\\").replace("'", "\\'")
        async for each in client.list_workflows(f"WorkflowId STARTS_WITH '{first}'"):
            if each.run_id not in runs and workflow_family(each.id) == family:
                return
        await self._journal.database.engine.run(partial(delete_values, families={family}, before=before))


async def _closed_tree(client: Client, request: ExpireRequest) -> list[RunExecution]:
    """The executions of the query, but not what waits for its ttl; returns when all of them are closed."""
    while True:
        found = await run_tree(client, request.workflow_id, request.run_id)
        tree = [each for each in found if each.type != "expire"]
        if not any(each.is_open for each in tree):
            return tree
        await asyncio.sleep(POLL_INTERVAL)


async def _is_any_reset(client: Client, tree: list[RunExecution], runs: set[str]) -> bool:
    """Whether one of these executions goes on in another, as it was reset: that reads rows, and may have none yet."""
    first_runs = {each.first_run_id for each in tree}
    for workflow_id in {each.workflow_id for each in tree}:
        try:
            latest = await client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            continue  # it was deleted meanwhile
        if latest.run_id not in runs and latest.raw_info.first_run_id in first_runs:
            return True
    return False


async def _is_any_known(client: Client, runs: Iterable[str]) -> bool:
    """Whether Temporal has any of these executions."""
    for run in runs:
        async for _ in client.list_workflows(f"RunId = '{run}'", limit=1):
            return True
    return False


async def _delete(client: Client, run: RunExecution) -> None:
    execution = WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
    try:
        await client.workflow_service.delete_workflow_execution(request, retry=True)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
