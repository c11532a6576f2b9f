"""Lists and makes the pending decisions of a run and its child runs, or of all runs."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from temporalio.client import Client, RPCError, WorkflowExecution, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCStatusCode

from ...contracts.decisions import ApproveRequest, PendingDecision, ReplyRequest
from ...contracts.message import PersonDecision
from ...contracts.status import Status
from ...resources.base import JsonModel
from ...temporal.client import task_queue
from ...temporal.search_attributes import PHASE
from .runs import QUERY_TIMEOUT, ROOT_RUNS, RunHandle

COLUMNS = "RUN", "CALL", "WHO", "WAITS UNTIL", "TOOL", "ARGUMENTS"

CONCURRENT_QUERIES = 10
"""The number of runs that are queried for their pending decisions at once."""

ATTEMPTS = 5
"""The number of times an update is sent to a run that does not know its pending decision yet."""

UNPROCESSED = "wasn't processed by worker"
"""The server's error for an update that no worker has received."""


class NotDecided(Exception):
    """A run refused a decision; the text says why."""


class PendingInRuns(NamedTuple):
    """Pending decisions after the ids of their root runs; the errors of runs that can't be queried, by their ids."""

    decisions: list[tuple[str, PendingDecision]]
    unanswered: dict[str, str]


async def pending_decisions(
    client: Client, run: str, run_id: str | None = None, *, query_timeout: timedelta | None = None
) -> list[PendingDecision]:
    """The pending decisions of a run and its child runs, the oldest first; a run that has just ended has none.

    ``run_id`` selects one of several runs with that id. ``query_timeout`` is that of each run; by default it is as long
    as Temporal waits for a worker. Raises RPCError if one of the runs can't be queried.
    """
    handle: RunHandle = client.get_workflow_handle(run, run_id=run_id)
    try:
        status: Status = await handle.query("status", result_type=Status, rpc_timeout=query_timeout)
    except WorkflowQueryFailedError:
        return []
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return []
    pending = [*(status.pending_decisions or ())]
    queries = (pending_decisions(client, child, query_timeout=query_timeout) for child in status.waiting_runs or ())
    for of_child in await asyncio.gather(*queries):
        pending += of_child
    return sorted(pending, key=lambda decision: decision.since)


async def all_pending_decisions(
    client: Client, namespace: str | None = None, queue: str | None = None
) -> PendingInRuns:
    """The pending decisions of all runs of a task queue; with a ``namespace``, only of runs of its Queries.

    If the server or a run has no search attributes, open runs are queried whatever their phase. A run that can't be
    queried, such as one whose workflow tasks fail, does not hide the others.
    """
    limit = asyncio.Semaphore(CONCURRENT_QUERIES)
    unanswered: dict[str, str] = {}

    async def query(root: WorkflowExecution) -> list[tuple[str, PendingDecision]]:
        async with limit:
            try:
                pending = await pending_decisions(client, root.id, query_timeout=QUERY_TIMEOUT)
            except RPCError as error:
                unanswered[root.id] = error.message
                return []
            return [(root.id, decision) for decision in pending]

    roots = [root for root in await _waiting_roots(client, queue or task_queue()) if await _is_of(root, namespace)]
    pending = await asyncio.gather(*map(query, roots))
    return PendingInRuns([decision for of_root in pending for decision in of_root], unanswered)


async def _waiting_roots(client: Client, queue: str) -> list[WorkflowExecution]:
    """The open root runs that may have pending decisions: those whose phase is not Running, or is unknown."""
    open_runs = f"TaskQueue = '{queue}' AND {ROOT_RUNS} AND ExecutionStatus = 'Running'"
    may_wait = f"{open_runs} AND ({PHASE.name} IS NULL OR {PHASE.name} != 'Running')"
    try:
        return [run async for run in client.list_workflows(may_wait)]
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            raise
        return [run async for run in client.list_workflows(open_runs)]


async def _is_of(run: WorkflowExecution, namespace: str | None) -> bool:
    return namespace is None or (await run.memo()).get("namespace") == namespace


async def decide(client: Client, run: RunHandle, request: ApproveRequest) -> PersonDecision:
    """Decides a pending call of a run or of its child runs.

    Raises NotDecided if the call is unknown, was decided already or timed out, or if the arguments are invalid.
    """
    pending = await pending_decisions(client, run.id, run.run_id)
    return await _send(client, run, "approve", request.call, request, pending)


async def reply(client: Client, run: RunHandle, request: ReplyRequest) -> PersonDecision:
    """Replies to an open question of a run or of its child runs: to the one with the id ``to``, or to the only one.

    Raises NotDecided if it is unclear which question, if that has a reply or timed out, or if the reply is invalid.
    """
    pending = await pending_decisions(client, run.id, run.run_id)
    questions = [decision for decision in pending if decision.kind == "question"]
    if request.to is None and len(questions) > 1:
        listed = ", ".join(f"{question.id} ({question.speaker})" for question in questions[:10])
        raise NotDecided(f"specify which question the reply is for; waiting: {listed}")
    to = request.to or (questions[0].id if questions else "")
    if not to:
        raise NotDecided(f"{run.id} has no open question")
    addressed = ReplyRequest(text=request.text, to=to, by=request.by, declines=request.declines)
    return await _send(client, run, "reply", to, addressed, pending)


async def _send(
    client: Client,
    run: RunHandle,
    update: str,
    decision_id: str,
    request: JsonModel,
    pending: Sequence[PendingDecision],
) -> PersonDecision:
    """Sends an update to the run with the pending decision.

    It is sent again if a worker that took over the run delivered it before an older result of an activity, so that the
    decision was not pending yet, or if a server that was killed lost it.
    """
    for attempt in range(1, ATTEMPTS + 1):
        where = next((decision.run for decision in pending if decision.id == decision_id), run.id)
        handle: RunHandle = client.get_workflow_handle(where)
        try:
            decision: PersonDecision = await handle.execute_update(update, request, result_type=PersonDecision)
        except WorkflowUpdateFailedError as error:
            text = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
            again = _is_unknown(text) or UNPROCESSED in text
            if again:
                pending = await pending_decisions(client, run.id, run.run_id)
            if attempt == ATTEMPTS or not again or decision_id not in {decision.id for decision in pending}:
                raise NotDecided(_with_pending(text, decision_id, pending)) from None
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise NotDecided(f"{decision_id} can't be decided: the run {where} has ended") from None
        else:
            return decision
    raise AssertionError("unreachable: the last attempt returns or raises")


def _is_unknown(text: str) -> bool:
    return "does not wait for a decision" in text


def _with_pending(text: str, decision_id: str, pending: Sequence[PendingDecision]) -> str:
    """Why a decision was refused; for an unknown id, with the pending ones of the run and its child runs."""
    if not _is_unknown(text):
        return text
    known = ", ".join(decision.id for decision in pending[:10]) or "nothing"
    return f"'{decision_id}' does not wait for a decision; waiting: {known}"
