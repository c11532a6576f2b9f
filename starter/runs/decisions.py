"""Finds what runs wait for from people, in a run and the runs below it, and decides it."""

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
"""How many runs are asked at once what they wait for."""

ATTEMPTS = 5
"""How often an update is sent to a run that does not know yet that it waits."""

UNPROCESSED = "wasn't processed by worker"
"""What Temporal's server says of an update that no worker has seen."""


class NotDecided(Exception):
    """A decision is refused; the text says why."""


class PendingInRuns(NamedTuple):
    """What runs wait for, each with the id of the run that a client has started; why other runs can't be asked."""

    decisions: list[tuple[str, PendingDecision]]
    unanswered: dict[str, str]


async def pending_decisions(
    client: Client, run: str, run_id: str | None = None, *, query_timeout: timedelta | None = None
) -> list[PendingDecision]:
    """What a run and the runs below it wait for, the oldest first. Runs that end meanwhile wait for nothing.

    ``run_id`` names one of several runs with that id. Each run is asked for as long as ``query_timeout``, or as long
    as Temporal waits for a worker. Raises RPCError if one of them can't be asked.
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
    asked = (pending_decisions(client, each, query_timeout=query_timeout) for each in status.waiting_runs or ())
    below = await asyncio.gather(*asked)
    found = [*(status.pending_decisions or ()), *(each for found in below for each in found)]
    return sorted(found, key=lambda each: each.since)


async def all_pending_decisions(
    client: Client, namespace: str | None = None, queue: str | None = None
) -> PendingInRuns:
    """What all runs of a task queue wait for; with a ``namespace``, those of its Queries alone.

    Where the server has no search attributes, or a run has none, every open run is asked. A run that can't be asked,
    such as one whose workflow tasks fail, does not keep the others from being asked.
    """
    limit, unanswered = asyncio.Semaphore(CONCURRENT_QUERIES), dict[str, str]()

    async def ask(root: WorkflowExecution) -> list[tuple[str, PendingDecision]]:
        async with limit:
            try:
                found = await pending_decisions(client, root.id, query_timeout=QUERY_TIMEOUT)
            except RPCError as error:
                unanswered[root.id] = error.message
                return []
            return [(root.id, each) for each in found]

    roots = [each for each in await _waiting_roots(client, queue or task_queue()) if await _is_of(each, namespace)]
    found = await asyncio.gather(*map(ask, roots))
    return PendingInRuns([each for waiting in found for each in waiting], unanswered)


async def _waiting_roots(client: Client, queue: str) -> list[WorkflowExecution]:
    """The open runs that clients have started and that may wait: those whose phase is another one, or is unknown."""
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
    """Decides a call that waits in a run or in a run below it; the run that waits has the decision then.

    Raises NotDecided: the call is unknown, or decided already, or comes too late; or the arguments don't fit.
    """
    return await _send(
        client, run, "approve", request.call, request, await pending_decisions(client, run.id, run.run_id)
    )


async def reply(client: Client, run: RunHandle, request: ReplyRequest) -> PersonDecision:
    """Replies to a question that waits in a run or in a run below it: the one that ``to`` names, or the only one.

    Raises NotDecided: it is not clear which, or has a reply already, or it is too late; or the reply doesn't fit.
    """
    waiting = await pending_decisions(client, run.id, run.run_id)
    questions = [each for each in waiting if each.kind == "question"]
    if request.to is None and len(questions) > 1:
        listed = ", ".join(f"{each.id} ({each.speaker})" for each in questions[:10])
        raise NotDecided(f"say which question the reply is for; waiting: {listed}")
    to = request.to or (questions[0].id if questions else "")
    if not to:
        raise NotDecided(f"nobody is asked anything in {run.id}")
    return await _send(client, run, "reply", to, request.model_copy(update={"to": to}), waiting)


async def _send(
    client: Client, run: RunHandle, update: str, id_: str, request: JsonModel, waiting: Sequence[PendingDecision]
) -> PersonDecision:
    """Sends an update to the run in which the decision waits.

    A worker that has taken over a run may hand it an update before an older result of an activity, so that it does not
    wait yet for what its status has shown; and a server that was killed may have lost one: then it is sent again.
    """
    for attempt in range(1, ATTEMPTS + 1):
        where = next((each.run for each in waiting if each.id == id_), run.id)
        handle: RunHandle = client.get_workflow_handle(where)
        try:
            decision: PersonDecision = await handle.execute_update(update, request, result_type=PersonDecision)
        except WorkflowUpdateFailedError as error:
            text = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
            again = _is_unknown(text) or UNPROCESSED in text
            waiting = await pending_decisions(client, run.id, run.run_id) if again else waiting
            if attempt == ATTEMPTS or not again or id_ not in {each.id for each in waiting}:
                raise NotDecided(_with_waiting(text, id_, waiting)) from None
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise NotDecided(f"{id_} comes too late: the run {where} has ended") from None
        else:
            return decision
    raise AssertionError("unreachable: the last attempt returns or raises")


def _is_unknown(text: str) -> bool:
    return "does not wait for a decision" in text


def _with_waiting(text: str, call: str, waiting: Sequence[PendingDecision]) -> str:
    """Why a decision is refused; for an unknown call, with those that wait below the run."""
    if not _is_unknown(text):
        return text
    known = ", ".join(each.id for each in waiting[:10]) or "nothing"
    return f"'{call}' does not wait for a decision; waiting: {known}"
