"""Executing an activity by its name, on a task queue."""

from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ...resources.base import JsonModel
from ..state.run_state import RunState
from .activity_failure import read_failure
from .options import ActivityOptions

Result = TypeVar("Result", bound=JsonModel)


async def execute_activity(
    run: RunState,
    name: str,
    request: JsonModel,
    result_type: type[Result],
    options: ActivityOptions,
    summary: str,
    task_queue: str | None = None,
) -> Result:
    """The result of an activity on a task queue, by default the run's own.

    Raises ActivityFailed when it fails and is not tried again, ActivityInterrupted when it was cancelled.
    """
    try:
        async with run.activity_slots:
            result: Result = await workflow.execute_activity(
                name,
                request,
                result_type=result_type,
                summary=summary,
                task_queue=task_queue,
                priority=run.priority,
                **options,
            )
            return result
    except ActivityError as error:
        raise read_failure(error.cause, name) from None
