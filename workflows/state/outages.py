"""Waiting for the end of outages and for Quotas: the calls of a run that do, and the child runs with such calls."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from ...contracts.errors import Failure, Outage, QuotaReached

FIRST_WAIT = 2.0
"""Seconds between the attempts of a call that fail and the next one; they double with each wait."""

LONGEST_WAIT = 300.0
"""Seconds: a call that waits for a day makes some hundred attempts, which its history holds."""

MAX_DOUBLINGS = 10
"""Waits after which none becomes longer: a run may wait for a Quota thousands of times."""

LONGEST_QUOTA_WAIT = 900.0
"""Seconds: a call that waits for the next day or month asks in between, as its Quota may have been raised."""

QUOTA_SPREAD = 5.0
"""Seconds by which the waits for a Quota differ, so that not all calls are made when a period begins."""

EVENTS_OF_A_WAIT = 11
"""Events of a history for a wait, and for the attempts before it."""

MAX_EVENTS = 40_000
"""Events of a history up to which waits are spread over the time that is left. Temporal terminates a run at 51,200."""

MAX_BYTES = 40_000_000
"""The same limit in bytes. Temporal terminates a run at 50 MB."""

LAST_EVENTS = 1_000
"""The number of events that is assumed to be left once a history has reached these limits."""

SPREAD = 0.25
"""The jitter of a wait, as a fraction of it, so that waiting runs do not all resume at once."""


def seconds_after(waits: int) -> float:
    """How long the next wait is after so many of the same call, before the jitter."""
    doublings: int = 2 ** min(waits, MAX_DOUBLINGS)
    return min(FIRST_WAIT * doublings, LONGEST_WAIT)


def seconds_apart(calls: int, seconds: float, events: int, size: int) -> float:
    """The shortest wait of each of so many calls with which all can wait, again and again, for ``seconds`` in total.

    The run can't continue as new meanwhile, so the waits have to fit into the rest of its history, which has so many
    events and so many bytes.
    """
    events_left = min(MAX_EVENTS - events, (MAX_BYTES - size) * events // max(1, size))
    return seconds * calls * EVENTS_OF_A_WAIT / max(events_left, LAST_EVENTS)


class Outages:
    """The outages of servers, and the Quotas, that a run waits for. ``on_change`` is called when they change.

    ``asks_again``: the run was told that it may be its turn.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.below: tuple[str, ...] = ()
        self.asks_again = False
        self._waits: dict[str, tuple[Outage, int]] = {}

    @property
    def own(self) -> tuple[Outage, ...]:
        """Those of the run's own calls."""
        return tuple(outage for outage, _ in self._waits.values())

    @property
    def are_awaited(self) -> bool:
        """Whether this run, or a run below, waits for the end of an outage."""
        return bool(self._waits or self.below)

    def begin(self, activity: str, call: str, failure: Failure, left: timedelta) -> timedelta:
        """Notes that the attempts of an activity have failed, and returns the time until the next ones.

        ``left`` is how long the call may still wait, except for a Quota, whose failure says when it is reset.
        """
        _, waits = self._waits.get(activity, (None, 0))
        seconds = seconds_after(waits)
        seconds *= 1 + SPREAD * (2 * workflow.random().random() - 1)
        seconds = max(seconds, failure.wait or 0)
        if failure.type == QuotaReached.__name__:
            # Not longer with each wait: the call would come too late for the minute in which it has a place.
            until_reset = (failure.wait or 0) + QUOTA_SPREAD * workflow.random().random()
            seconds = min(until_reset, max(LONGEST_QUOTA_WAIT, self._seconds_apart(activity, until_reset)))
        else:
            # Never beyond the time that is left, so that no call gives up sooner because others wait, too.
            total = left.total_seconds()
            seconds = max(seconds, min(self._seconds_apart(activity, total), total))
        wait = timedelta(seconds=seconds)
        self.note(activity, call, failure, wait)
        return wait

    def note(self, place: str, call: str, failure: Failure, wait: timedelta) -> None:
        """Notes that a call, named by ``place``, has failed, and that the next attempt follows after ``wait``."""
        known, waits = self._waits.get(place, (None, 0))
        now = workflow.now()
        outage = Outage(
            call=call,
            type=failure.type,
            error=failure.message,
            since=known.since if known else now,
            until=now + wait,
            attempts=(known.attempts if known else 0) + (failure.attempts or 1),
        )
        self._waits[place] = outage, waits + 1
        self.on_change()

    def _seconds_apart(self, activity: str, seconds: float) -> float:
        info = workflow.info()
        calls = len(self._waits) + (activity not in self._waits)
        return seconds_apart(calls, seconds, info.get_current_history_length(), info.get_current_history_size())

    def end(self, place: str | None) -> None:
        """Notes that a call waits no longer."""
        if place and self._waits.pop(place, None):
            self.on_change()

    def child_waits(self, run: str, *, waits: bool) -> None:
        """Notes whether a child run, or a run below it, waits for the end of an outage."""
        if waits != (run in self.below):
            self.below = (*self.below, run) if waits else tuple(child for child in self.below if child != run)
            self.on_change()
