"""Which call is this? Its id is the same for every attempt at it, and another after a reset."""

from temporalio import activity


def call_id() -> str:
    """``run_id/activity_id`` of the activity that is running."""
    info = activity.info()
    return f"{info.workflow_run_id}/{info.activity_id}"


def run_id() -> str:
    """The id of the run that was started from outside, of which the present call is a part."""
    return str(activity.info().workflow_id).partition("/")[0]
