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

SPREAD = 0.25
"""The jitter of a wait, as a fraction of it, so that waiting runs do not all resume at once."""


def seconds_after(waits: int) -> float:
    """How long the next wait is after so many of the same call, before the jitter."""
    doublings: int = 2 ** min(waits, MAX_DOUBLINGS)
    return min(FIRST_WAIT * doublings, LONGEST_WAIT)


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

    def begin(self, activity: str, call: str, failure: Failure) -> timedelta:
        """Notes that the attempts of an activity have failed, and returns the time until the next ones."""
        known, waits = self._waits.get(activity, (None, 0))
        seconds = seconds_after(waits)
        seconds *= 1 + SPREAD * (2 * workflow.random().random() - 1)
        seconds = max(seconds, failure.wait or 0)
        if failure.type == QuotaReached.__name__:
            # Not longer with each wait: the call would come too late for the minute in which it has a place.
            seconds = min((failure.wait or 0) + QUOTA_SPREAD * workflow.random().random(), LONGEST_QUOTA_WAIT)
        wait = timedelta(seconds=seconds)
        now = workflow.now()
        outage = Outage(
            call=call,
            type=failure.type,
            error=failure.message,
            since=known.since if known else now,
            until=now + wait,
            attempts=(known.attempts if known else 0) + (failure.attempts or 1),
        )
        self._waits[activity] = outage, waits + 1
        self.on_change()
        return wait

    def end(self, activity: str | None) -> None:
        """Notes that a call waits no longer."""
        if activity and self._waits.pop(activity, None):
            self.on_change()

    def child_waits(self, run: str, *, waits: bool) -> None:
        """Notes whether a child run, or a run below it, waits for the end of an outage."""
        if waits != (run in self.below):
            self.below = (*self.below, run) if waits else tuple(child for child in self.below if child != run)
            self.on_change()
