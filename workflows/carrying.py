"""When does a run go on in a new one? When its history has become long, and nothing is going on that would be lost."""

from temporalio import workflow

SIZE = 2_000_000
"""Bytes of history, without the run's input, after which it goes on in a new run."""

EVENTS = 5_000
"""Events after which it does, signals among them: Temporal takes no more than 10,000 signals in one run."""


class Rest(Exception):
    """The run goes on from here in a new one: whoever has a state is asked for it."""


def is_long() -> bool:
    """Whether the run is to go on in a new one as soon as it can."""
    info = workflow.info()
    long = info.get_current_history_size() > SIZE or info.get_current_history_length() > EVENTS
    return (long or info.is_continue_as_new_suggested()) and workflow.all_handlers_finished()
