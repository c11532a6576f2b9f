"""The activity ``last_failures``: what has failed last in runs whose calls are being tried again."""

import asyncio

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from ..conversation.contracts.last_failures import LastFailures, LastFailuresRequest
from ..conversation.failure import Cause

MAX_DEPTH = 10
"""How deeply nested runs are looked into."""


class FindLastFailures:
    """The activity ``last_failures``. Only Temporal knows the failed attempts of a call that is tried again."""

    @activity.defn(name="last_failures")
    async def last_failures(self, request: LastFailuresRequest) -> LastFailures:
        """The failure with the most attempts in each run, those of the runs below it included."""
        client = activity.client()
        found = await asyncio.gather(*(_last_failure(client, run, MAX_DEPTH) for run in request.runs))
        return LastFailures(by_run={run: cause for run, cause in zip(request.runs, found, strict=True) if cause})


async def _last_failure(client: Client, run: str, depth: int) -> Cause | None:
    try:
        about = (await client.get_workflow_handle(run).describe()).raw_description
    except RPCError:  # it has not begun, or is gone
        return None
    below = about.pending_children if depth else ()
    found = await asyncio.gather(
        *(_cause(client, each) for each in about.pending_activities if each.HasField("last_failure")),
        *(_last_failure(client, each.workflow_id, depth - 1) for each in below),
    )
    return max((each for each in found if each), key=lambda cause: cause.attempts or 0, default=None)


async def _cause(client: Client, pending: PendingActivityInfo) -> Cause:
    """The failure of the last attempt. While a call waits for its next attempt, that one is counted already."""
    error = await client.data_converter.decode_failure(pending.last_failure)
    waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    family, kind = "TimeoutError", type(error).__name__
    if isinstance(error, ApplicationError):
        family, kind = str(error.details[0]) if error.details else "ActivityError", error.type or kind
    return Cause(
        family=family,
        type=kind,
        message=str(getattr(error, "message", error)),
        attempts=max(1, pending.attempt - waits),
    )
