"""When a run continues as new: its history has become long, and no handler of a message is under way."""

from typing import NoReturn

from temporalio import workflow

from ...resources.base import JsonModel
from .constants import LONG_TASK_TIMEOUT, MAX_HISTORY_BYTES, MAX_HISTORY_EVENTS, MAX_HISTORY_EVENTS_LONG


def should_continue_as_new() -> bool:
    """Whether the run is to continue as new as soon as its state is complete."""
    info = workflow.info()
    events = MAX_HISTORY_EVENTS if info.task_timeout < LONG_TASK_TIMEOUT else MAX_HISTORY_EVENTS_LONG
    long = info.get_current_history_size() > MAX_HISTORY_BYTES or info.get_current_history_length() > events
    return (long or info.is_continue_as_new_suggested()) and workflow.all_handlers_finished()


def continue_as_new(given: JsonModel) -> NoReturn:
    """Ends this run and starts the next one with that input, on the worker version that is current then."""
    behavior = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
    workflow.continue_as_new(given, initial_versioning_behavior=behavior)
