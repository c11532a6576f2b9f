"""When does a run go on in a new one? When its history has become long, and nothing is going on that would be lost."""

from datetime import timedelta
from typing import NoReturn

from temporalio import workflow

from ...conversation.contracts.requests import Item
from ...conversation.messages.message import AROUND, Message
from ...resources.base import Plain

SIZE = 2_000_000
"""Bytes of history, without the run's input, after which it goes on in a new run."""

EVENTS = 1_500
"""Events after which it does, so that a worker that has never seen it can replay it within its task timeout."""

PATIENT, MOST = timedelta(seconds=10), 5_000
"""Events after which a run of that task timeout does: Temporal takes no more than 10,000 signals in one run."""

AT_ONCE = 500
"""Activities of a run that are under way at once: Temporal takes 2,000, and 4 MB of requests from one task."""

WIDTH = 100
"""Members or targets that speak at once: what they say must fit into the run in which they have begun."""

PORTION = 6_000
"""Bytes that join a conversation in one request, if each of them is smaller: AT_ONCE such requests fit in one task."""


class Rest(Exception):
    """The run goes on from here in a new one: whoever has a state is asked for it."""


def is_long() -> bool:
    """Whether the run is to go on in a new one as soon as it can."""
    info = workflow.info()
    events = EVENTS if info.task_timeout < PATIENT else MOST
    long = info.get_current_history_size() > SIZE or info.get_current_history_length() > events
    return (long or info.is_continue_as_new_suggested()) and workflow.all_handlers_finished()


def portions(items: tuple[Item, ...]) -> list[tuple[Item, ...]]:
    """The items in their order, in groups that a request can hold beside many others."""
    groups: list[tuple[Item, ...]] = []
    room = 0
    for item in items:
        heavy = AROUND + (item.weight if isinstance(item, Message) else 0)
        if heavy > room:
            groups.append(())
            room = PORTION
        groups[-1] += (item,)
        room -= heavy
    return groups


def go_on(given: Plain) -> NoReturn:
    """Goes on in a new run, which begins on the version of the workers that is current then."""
    behavior = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
    workflow.continue_as_new(given, initial_versioning_behavior=behavior)
