"""Reads the status of a run, and waits for its end."""

import asyncio
import contextlib
from datetime import timedelta

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.service import RPCError

from ...conversation.contracts.budget_status import BudgetStatus
from ...conversation.contracts.status import Status, format_time
from ...conversation.errors import RunClosed
from .run_handle import RunHandle

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to reach Temporal."""

QUERY_TIMEOUT = timedelta(seconds=5)
"""How long a child run is asked for its status."""


async def status_of(handle: RunHandle) -> Status:
    """The status of a run, as its workflow answers, for which a worker must run.

    A run that was terminated or timed out in Temporal has the phase Failed, whatever its workflow answers.
    """
    status: Status = await handle.query("status", result_type=Status)
    closed = (await handle.describe()).status
    if not status.is_open or closed in (None, WorkflowExecutionStatus.RUNNING):
        return status
    return status.model_copy(update=_closed_in_temporal(closed))


async def live_status(client: Client, handle: RunHandle) -> Status:
    """The status of a run; while it goes on, with what the runs below it have said and used until now.

    Those are asked one by one, as they tell the run above them only at their end.
    """
    status = await status_of(handle)
    if not status.is_open:
        return status
    status = await _with_runs(client, await _with_responses(client, status, handle.id))
    left = BudgetStatus.of(status.budget.limits if status.budget else None, status.token_usage)
    return status.model_copy(update={"budget": left})


async def _with_responses(client: Client, status: Status, own: str) -> Status:
    """The status of the query ``own``, with the answers so far of the targets that are still asked in other runs."""
    responses, usage = [], status.token_usage
    for response in status.responses:
        run = response.run if response.status == "Running" and response.run != own else None
        if run and (below := await _status_below(client, run)):
            known = {"message": below.message, "messages": below.messages, "turns": below.turns}
            more = {"token_usage": below.token_usage, "failure": below.failure}
            response = response.model_copy(update={**known, **more})
            usage += below.token_usage
        responses.append(response)
    said = [each.message for each in responses if each.message]
    message = status.message or (said[0] if len(responses) == 1 and said else "")
    return status.model_copy(update={"responses": tuple(responses), "token_usage": usage, "message": message})


async def _with_runs(client: Client, status: Status) -> Status:
    """The status of a run, with what the runs below it have said, such as those of members that are teams."""
    for run in status.runs or ():
        if below := await _status_below(client, run):
            usage, messages = status.token_usage + below.token_usage, (*status.messages, *below.messages)
            message = below.message or status.message
            status = status.model_copy(update={"token_usage": usage, "messages": messages, "message": message})
    return status


async def _status_below(client: Client, run: str) -> Status | None:
    """The status of a child run; None if it can't be asked, as before its start."""
    handle: RunHandle = client.get_workflow_handle(run)
    with contextlib.suppress(RPCError, WorkflowQueryFailedError):
        status: Status = await handle.query("status", result_type=Status, rpc_timeout=QUERY_TIMEOUT)
        return await _with_runs(client, status)
    return None


async def closed_status(handle: RunHandle) -> Status:
    """The status of a closed run that has no result, as Temporal describes it."""
    about = await handle.describe()
    if about.status in (None, WorkflowExecutionStatus.CANCELED):
        end: dict[str, object] = {"phase": "Canceled", "stop_reason": "canceled"}
    else:
        end = _closed_in_temporal(about.status)
    closed_at = format_time(about.close_time or about.start_time)
    return Status.model_validate({**end, "start_time": format_time(about.start_time), "completion_time": closed_at})


def _closed_in_temporal(closed: WorkflowExecutionStatus) -> dict[str, object]:
    failure = RunClosed(f"the run was closed in Temporal: {closed.name.lower().replace('_', ' ')}").as_failure()
    return {"phase": "Failed", "stop_reason": "failed", "error": failure.message, "failure": failure}


async def wait_until_closed(handle: RunHandle) -> None:
    """Waits until a run is over, however it ends; reconnects to Temporal as long as necessary."""
    while True:
        try:
            await handle.result()
            return
        except WorkflowFailureError:
            return
        except RPCError:
            await asyncio.sleep(RETRY_INTERVAL)


async def final_status(handle: RunHandle) -> Status:
    """Waits until a run is over; its status."""
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    return await status_of(handle)
