"""Reads the status of a run, and waits for its end."""

import asyncio
import contextlib

from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from ...conversation.contracts.status import Status, format_time
from ...conversation.errors import RunClosed
from .run_handle import RunHandle

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to reach Temporal."""


async def status_of(handle: RunHandle) -> Status:
    """The status of a run, as its workflow answers, for which a worker must run.

    A run that was terminated or timed out in Temporal has the phase Failed, whatever its workflow answers.
    """
    status: Status = await handle.query("status", result_type=Status)
    closed = (await handle.describe()).status
    if status.phase != "Running" or closed in (None, WorkflowExecutionStatus.RUNNING):
        return status
    return status.model_copy(update=_closed_in_temporal(closed))


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
