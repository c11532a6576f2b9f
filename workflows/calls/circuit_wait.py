"""Waits in the workflow, without a worker, until a call may begin whose server has an open circuit breaker."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

from temporalio import workflow

from ...conversation.failure import Failure
from ..state.errors import ActivityFailed, ActivityInterrupted
from ..state.metrics import wait_begins, wait_ends
from ..state.run_state import RunState
from .options import ActivityOptions


async def options_after_wait(
    run: RunState, failure: Failure, options: ActivityOptions, until: datetime, activity: str
) -> ActivityOptions:
    """Waits as long as the failure says, and while the run is paused; then the call's options for the next time.

    The attempt that did not begin the call does not count: the next time it has as many attempts left as before it.

    Raises:
        ActivityFailed: it would take longer than ``until``.
        ActivityInterrupted: the run is to stop; with the id of the activity, which may have begun something before.
    """
    wait = timedelta(seconds=failure.wait or 0)
    if workflow.now() + wait > until:
        raise ActivityFailed(failure.model_copy(update={"wait": None}))
    since, outcome = workflow.now(), "stopped"
    wait_begins("circuit_breaker")
    try:
        with run.trace.inside(run.trace.new_wait("circuit_breaker")):
            await workflow.sleep(wait, summary=failure.message)
        outcome = "over"
        await run.ready()
    except (asyncio.CancelledError, ActivityInterrupted):
        raise ActivityInterrupted(activity) from None
    finally:
        wait_ends("circuit_breaker", since, outcome)
    policy, once = options["retry_policy"], options.get("start_to_close_timeout", timedelta())
    left = policy.maximum_attempts and policy.maximum_attempts - (failure.attempts or 1) + 1
    again: ActivityOptions = {**options, "retry_policy": replace(policy, maximum_attempts=left)}
    return {**again, "schedule_to_close_timeout": max(until - workflow.now(), once)}
