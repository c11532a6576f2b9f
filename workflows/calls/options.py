"""The timeouts and retries of activities."""

from datetime import timedelta
from typing import TypedDict

from temporalio.common import RetryPolicy

from ...conversation.contracts.heartbeats import MISSED_HEARTBEATS


class ActivityOptions(TypedDict, total=False):
    """An activity's timeouts and retries, as arguments of the SDK."""

    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


HEARTBEAT_TIMEOUT = timedelta(seconds=2.5)
"""After this long without a heartbeat an activity is tried again: its worker has died."""

LOCAL_TIMEOUT = timedelta(seconds=1)
"""How long a local activity may hold up a workflow task, of which a worker runs only some at a time."""

JOURNAL = ActivityOptions(
    start_to_close_timeout=timedelta(seconds=30),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30)),
)
"""Options of activities that read and write the journal alone."""

LOOK = ActivityOptions(
    schedule_to_close_timeout=timedelta(seconds=5),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_attempts=1),
)
"""Options of activities that look at Temporal, and without which a run can do."""

CALL = ActivityOptions(
    start_to_close_timeout=timedelta(minutes=5),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30), maximum_attempts=4
    ),
)
"""Options of activities that call a model, a tool or a function."""


MEMORY = ActivityOptions(
    start_to_close_timeout=timedelta(minutes=5),
    schedule_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5),
        maximum_interval=timedelta(seconds=30),
        maximum_attempts=6 + MISSED_HEARTBEATS,
    ),
)
"""Options of activities that read and write a Memory at its address; a missed heartbeat counts as no attempt."""


CANCEL = ActivityOptions(
    start_to_close_timeout=timedelta(seconds=15),
    schedule_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_attempts=3),
)
"""Options of activities that cancel what is left open elsewhere. A run that was canceled waits for them."""


def call_timeouts(seconds: float | None) -> ActivityOptions:
    """The timeouts of a call that may take so many seconds: it gives up by itself before Temporal gives it up."""
    once = max(CALL["start_to_close_timeout"], timedelta(seconds=(seconds or 0) + 10))
    return {"start_to_close_timeout": once, "schedule_to_close_timeout": 6 * once}
