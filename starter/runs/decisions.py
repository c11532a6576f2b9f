"""Lists pending decisions of a run and its child runs, or of all runs, and sends people's decisions."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, RPCError, WorkflowExecution, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCStatusCode

from ...contracts.decisions import ApproveRequest, GiveResultRequest, PendingDecision, ReplyRequest
from ...contracts.errors import InvalidInput, UnknownDecision
from ...contracts.message import PersonDecision
from ...contracts.settings import SettingsError
from ...contracts.status import Status
from ...temporal.executions import memo_of, run_tree
from ...temporal.histories import decode_payload
from ...temporal.personal_data import MESSAGES, personal_data_in
from ...temporal.search_attributes import PHASE
from .listing import shown_roots
from .runs import QUERY_TIMEOUT, NotServedError, RunHandle, served

CONCURRENT_QUERIES = 10
"""The number of runs that are queried for their pending decisions concurrently."""

ATTEMPTS = 5
"""How often an update is sent to a run in which the decision is not pending yet."""

UNPROCESSED = "wasn't processed by worker"
"""The server's error for an update that no worker has received."""


Sign = Callable[[PendingDecision, ApproveRequest | ReplyRequest], ApproveRequest | ReplyRequest]
"""Adds the verified identity of its sender to a request about a pending decision."""


def unsigned(_: PendingDecision, request: ApproveRequest | ReplyRequest) -> ApproveRequest | ReplyRequest:
    """A ``Sign`` that verifies nobody."""
    return request


class NotDecided(Exception):
    """A run rejected a decision; the text has the reason."""


class PendingInRuns(NamedTuple):
    """Pending decisions with the ids of their root runs; the errors of runs that can't be queried, by id."""

    decisions: list[tuple[str, PendingDecision]]
    unanswered: dict[str, str]


async def pending_decisions(
    client: Client, run: str, run_id: str | None = None, *, query_timeout: timedelta | None = None
) -> list[PendingDecision]:
    """The pending decisions of a run and its child runs, oldest first; a run that has just ended has none.

    ``run_id`` selects one of several runs with that id. ``query_timeout`` is the timeout per run; the default is
    Temporal's. Raises RPCError if one of the runs can't be queried, and without a timeout NotServedError.
    """
    handle: RunHandle = client.get_workflow_handle(run, run_id=run_id)
    try:
        query = handle.query("status", result_type=Status, rpc_timeout=query_timeout)
        status: Status = await (query if query_timeout else served(client, handle, query))
    except WorkflowQueryFailedError:
        return []
    except NotServedError:
        if (await handle.describe()).close_time:
            return []
        raise
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
    client: Client,
    namespace: str | None = None,
    queue: str | None = None,
    *,
    visible: Callable[[Mapping[str, object]], Awaitable[bool]] | None = None,
) -> PendingInRuns:
    """The pending decisions of all runs, of a ``queue`` as ``shown_roots`` says; with a ``namespace``, of its Queries.

    Only those of runs for whose memo ``visible`` is true.

    If the server or a run has no search attributes, open runs are queried regardless of their phase. A run that can't
    be queried, such as one whose workflow tasks fail or whose key is missing, does not affect the others.
    """
    limit = asyncio.Semaphore(CONCURRENT_QUERIES)
    unanswered: dict[str, str] = {}

    async def query(root: WorkflowExecution) -> list[tuple[str, PendingDecision]]:
        async with limit:
            try:
                if not await _is_of(root, namespace, visible):
                    return []
                pending = await pending_decisions(client, root.id, query_timeout=QUERY_TIMEOUT)
            except (RPCError, InvalidInput) as error:  # such as a run whose status an application's codec has encoded
                unanswered[root.id] = error.message
                return []
            except SettingsError as error:  # the key is missing
                unanswered[root.id] = str(error)
                return []
            return [(root.id, decision) for decision in pending]

    pending = await asyncio.gather(*map(query, await _waiting_roots(client, queue)))
    return PendingInRuns([decision for of_root in pending for decision in of_root], unanswered)


async def _waiting_roots(client: Client, queue: str | None) -> list[WorkflowExecution]:
    """The open root runs that may have pending decisions: those whose phase is not Running, or is unknown."""
    open_runs = f"{await shown_roots(client, queue)} AND ExecutionStatus = 'Running'"
    may_wait = f"{open_runs} AND ({PHASE.name} IS NULL OR {PHASE.name} != 'Running')"
    try:
        return [run async for run in client.list_workflows(may_wait)]
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            raise
        return [run async for run in client.list_workflows(open_runs)]


async def _is_of(
    run: WorkflowExecution,
    namespace: str | None,
    visible: Callable[[Mapping[str, object]], Awaitable[bool]] | None,
) -> bool:
    if namespace is None and visible is None:
        return True
    memo = await memo_of(run)
    return namespace in (None, memo.get("namespace")) and (visible is None or await visible(memo))


async def only_call(client: Client, run: RunHandle) -> str:
    """The id of the only call of a run, or of its child runs, that waits for approval.

    Raises NotDecided if none waits, or if several do.
    """
    pending = await pending_decisions(client, run.id, run.run_id)
    calls = [decision for decision in pending if decision.needs_approval]
    if not calls:
        raise NotDecided(f"nothing in {run.id} waits for approval")
    if len(calls) > 1:
        listed = ", ".join(f"{call.id} ({call.tool or call.kind})" for call in calls[:10])
        raise NotDecided(f"specify which call to decide; waiting: {listed}")
    return calls[0].id


async def decide(
    client: Client,
    run: RunHandle,
    request: ApproveRequest,
    request_id: str | None = None,
    sign: Sign = unsigned,
) -> PersonDecision:
    """Decides a pending call of a run or of its child runs. ``has_taken`` knows the decision by its ``request_id``.

    ``sign`` adds who decides, if that is verified. Where several people have to approve, the decision says how many
    are missing still.

    Raises NotDecided if the call is unknown, already decided or timed out, or if the arguments are invalid.
    """
    pending = await pending_decisions(client, run.id, run.run_id)
    clean = await _redacted(client, "approve", request)
    return await _send(client, run, "approve", request.call, clean, pending, request_id, sign)


async def reply(
    client: Client,
    run: RunHandle,
    request: ReplyRequest,
    request_id: str | None = None,
    sign: Sign = unsigned,
) -> PersonDecision:
    """Replies to an open question of a run or of its child runs: to the one with the id ``to``, or to the only one.

    ``has_taken`` knows the reply by its ``request_id``. Raises NotDecided if the question is ambiguous, already
    answered or timed out, or if the reply is invalid.
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
    clean = await _redacted(client, "reply", addressed)
    return await _send(client, run, "reply", to, clean, pending, request_id, sign)


Decision = TypeVar("Decision", bound=ApproveRequest | ReplyRequest)


async def _redacted(client: Client, update: str, request: Decision) -> Decision:
    """A request as the client sends it: what is signed, and compared with earlier requests, has no personal data."""
    personal_data = personal_data_in(client)
    if personal_data is None:
        return request
    clean = await personal_data.fields(request, MESSAGES[update])
    assert isinstance(clean, type(request))
    return clean


async def has_taken(client: Client, run: RunHandle, request_id: str) -> bool:
    """Whether a run, or one below it, has carried out an update that was sent with that ``request_id``.

    Several updates of one request have it with a slash and what tells them apart.
    Reads the histories of all of them: only a request that may be a repeated one needs it.
    """
    newest = run.run_id or (await run.describe()).run_id
    for execution in await run_tree(client, run.id, newest):
        handle: RunHandle = client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id)
        async for event in handle.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
                ended = event.workflow_execution_update_completed_event_attributes
                # Of an update that is sent again, the id ends with the number of the attempt.
                if ended.meta.update_id.partition("/")[0] == request_id and ended.outcome.HasField("success"):
                    return True
    return False


async def earlier_decision(
    client: Client, run: RunHandle, update: str, request: ApproveRequest | ReplyRequest
) -> PersonDecision | None:
    """What a run, or one below it, has responded to an ``update`` with exactly that request; None if it got none.

    Reads the histories of all of them: only a request that may be a repeated one needs it.
    """
    newest = run.run_id or (await run.describe()).run_id
    converter = client.data_converter
    request = await _redacted(client, update, request)
    for execution in await run_tree(client, run.id, newest):
        handle: RunHandle = client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id)
        accepted: set[int] = set()
        async for event in handle.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                sent = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
                if sent.name != update:
                    continue
                if (await decode_payload(converter, sent.args, type(request))).signed(None) == request:
                    accepted.add(event.event_id)
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
                ended = event.workflow_execution_update_completed_event_attributes
                if ended.accepted_event_id in accepted and ended.outcome.HasField("success"):
                    return await decode_payload(converter, ended.outcome.success, PersonDecision)
    return None


async def give_result(
    client: Client, run: RunHandle, request: GiveResultRequest, request_id: str | None = None
) -> PersonDecision:
    """Gives the result of a client's tool, for a call of a run or of its child runs; the same again has no effect.

    ``has_taken`` knows the result by its ``request_id``. Raises NotDecided if the call is unknown, or has got another
    result, or if the result is too large.
    """
    pending = await pending_decisions(client, run.id, run.run_id)
    return await _send(client, run, "give_result", request.call, request, pending, request_id)


async def _send(
    client: Client,
    run: RunHandle,
    update: str,
    decision_id: str,
    request: ApproveRequest | ReplyRequest | GiveResultRequest,
    pending: Sequence[PendingDecision],
    request_id: str | None = None,
    sign: Sign = unsigned,
) -> PersonDecision:
    """Sends an update to the run with the pending decision. What the run would reject is not sent: if it is large, not
    the update but the workflow task would fail.

    It is sent again if the decision was not pending yet, because a worker that took over the run received the update
    before an earlier activity result, or if a crashed server lost it.
    """
    if problem := request.problem:
        raise NotDecided(problem)
    for attempt in range(1, ATTEMPTS + 1):
        decided = next((decision for decision in pending if decision.id == decision_id), None)
        where = decided.run if decided else run.id
        handle: RunHandle = client.get_workflow_handle(where)
        signed = sign(decided, request) if decided and isinstance(request, ApproveRequest | ReplyRequest) else request
        try:
            update_id = f"{request_id}/{attempt}" if request_id else None
            sent = handle.execute_update(update, signed, id=update_id, result_type=PersonDecision)
            decision: PersonDecision = await served(client, handle, sent, awaits_workers=True)
        except WorkflowUpdateFailedError as error:
            text = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
            is_unknown = isinstance(error.cause, ApplicationError) and error.cause.type == UnknownDecision.__name__
            again = is_unknown or UNPROCESSED in text
            if again:
                pending = await pending_decisions(client, run.id, run.run_id)
            if attempt == ATTEMPTS or not again or decision_id not in {decision.id for decision in pending}:
                raise NotDecided(_with_pending(decision_id, pending) if is_unknown else text) from None
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise NotDecided(f"{decision_id} can't be decided: the run {where} has ended") from None
        else:
            return decision
    raise AssertionError("unreachable: the last attempt returns or raises")


def _with_pending(decision_id: str, pending: Sequence[PendingDecision]) -> str:
    """The reason why a decision with an unknown id was rejected, with the pending ids of the run and its child runs."""
    known = ", ".join(decision.id for decision in pending[:10]) or "nothing"
    return f"'{decision_id}' is not waiting for a decision; waiting: {known}"
