"""The ids of the running activity: its idempotency key, and the workflow id of its run."""

from temporalio import activity


def idempotency_key() -> str:
    """``run_id/activity_id`` of the running activity: the same for all its attempts, and another one after a reset."""
    return key_of(activity.info().activity_id)


def key_of(activity_id: str) -> str:
    """The idempotency key of another activity of the same run, or of what several of its activities share."""
    return f"{activity.info().workflow_run_id}/{activity_id}"


def workflow_id() -> str:
    """The workflow id of the run that has called the activity."""
    return activity.info().workflow_id or ""


def root_id() -> str | None:
    """The same, of a run that a client has started; None where runs below it find it in their own workflow ids."""
    return workflow_id() if "/" in workflow_id() else None
