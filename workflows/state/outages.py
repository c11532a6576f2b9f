"""Waiting for the end of outages and for Quotas: the calls of a run that do, and the child runs with such calls."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from ...contracts.errors import Failure, Outage, QuotaReached

FIRST_WAIT = 2.0
"""Seconds between the attempts of a call that fail and the next one; they double with each wait."""

LONGEST_WAIT = 300.0
"""Seconds: a call that waits for a day makes some hundred attempts, which its history holds."""

MAX_DOUBLINGS = 20
"""Waits after which none becomes longer: a run may wait for a Quota thousands of times."""

LONGEST_QUOTA_WAIT = 900.0
"""Seconds: a call that waits for the next day or month asks in between, as its Quota may have been raised."""

QUOTA_SPREAD = 5.0
"""Seconds by which the waits for a Quota differ, so that not all calls are made when a period begins."""

EVENTS_OF_A_WAIT = 11
"""Events of a history for a wait, and for the attempts before it."""

MAX_EVENTS = 40_000
"""Events of a history up to which waits are spread over the time that is left. Temporal terminates a run at 51,200."""

BYTES_OF_A_WAIT = 10_000
"""Bytes of a history for a wait, and for the attempts before it, whose request has at most some 4 kB."""

MAX_BYTES = 40_000_000
"""The limit of MAX_EVENTS in bytes. Temporal terminates a run at 50 MB."""

LAST_EVENTS = 1_000
"""The number of events that is assumed to be left once a history has reached these limits."""

SPREAD = 0.25
"""The jitter of a wait, as a fraction of it, so that waiting runs do not all resume at once."""


def seconds_after(waits: int) -> float:
    """How long the next wait is after so many of the same call, before the jitter."""
    doublings: int = 2 ** min(waits, MAX_DOUBLINGS)
    return min(FIRST_WAIT * doublings, LONGEST_WAIT)


def events_left(events: int, size: int) -> int:
    """The events that waits may add to a history with so many events and bytes: a run can't continue as new meanwhile.

    At least LAST_EVENTS.
    """
    waits_by_size = (MAX_BYTES - size) // BYTES_OF_A_WAIT
    return max(LAST_EVENTS, min(MAX_EVENTS - events, waits_by_size * EVENTS_OF_A_WAIT))


def seconds_apart(calls: int, seconds: float, left: int) -> float:
    """The shortest wait of each of so many calls with which all can wait, again and again, for ``seconds`` in total.

    ``left`` is the number of events that these waits may add to the history.
    """
    return seconds * calls * EVENTS_OF_A_WAIT / left


def seconds_spread(waits: int, calls: int, longest: float, left: int) -> float:
    """The next wait of one of so many calls after so many ``waits``: they double until they are the ``longest``.

    Shorter waits may add a quarter of the events that are ``left``. If that is too little, the first ones are left out.
    """
    shorter = left // (4 * calls * EVENTS_OF_A_WAIT) - waits
    doublings: int = 2 ** min(waits, MAX_DOUBLINGS)
    halvings: int = 2 ** min(max(shorter, 0), MAX_DOUBLINGS)
    return min(max(FIRST_WAIT * doublings, longest / halvings), longest)


class Outages:
    """The outages of servers, and the Quotas, that a run waits for. ``on_change`` is called when they change.

    ``asks_again``: the run was told that it may be its turn.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.below: tuple[str, ...] = ()
        self.asks_again = False
        self._shown: dict[str, Outage] = {}
        self._waits: dict[str, int] = {}
        self._circuit_waits: dict[str, int] = {}

    @property
    def own(self) -> tuple[Outage, ...]:
        """Those of the run's own calls."""
        return tuple(self._shown.values())

    @property
    def are_awaited(self) -> bool:
        """Whether this run, or a run below, waits for the end of an outage."""
        return bool(self._shown or self.below)

    def begin(self, activity: str, call: str, failure: Failure, left: timedelta) -> timedelta:
        """Notes that the attempts of an activity have failed, and returns the time until the next ones.

        ``left`` is how long the call may still wait, except for a Quota, whose failure says when it is reset.
        """
        total = left.total_seconds()
        # Whether a call gives up, which replays must repeat, depends on these waits alone; they are spread afterwards.
        jitter = 1 + SPREAD * (2 * workflow.random().random() - 1)
        seconds = max(seconds_after(self._waits.get(activity, 0)) * jitter, failure.wait or 0)
        if failure.type == QuotaReached.__name__:
            # Not longer with each wait: the call would come too late for the minute in which it has a place.
            until_reset = (failure.wait or 0) + QUOTA_SPREAD * workflow.random().random()
            _count(self._waits, activity)
            seconds = min(until_reset, max(LONGEST_QUOTA_WAIT, self._seconds_apart(until_reset)))
        else:
            # Never beyond the time that is left, so that no call gives up sooner because others wait, too.
            waits = _count(self._waits, activity)
            seconds = max(seconds, min(self._seconds_spread(waits, LONGEST_WAIT, total) * jitter, total))
        wait = timedelta(seconds=seconds)
        self.note(activity, call, failure, wait)
        return wait

    def note(self, place: str, call: str, failure: Failure, wait: timedelta) -> None:
        """Notes that a call, named by ``place``, has failed, and that the next attempt follows after ``wait``."""
        known = self._shown.get(place)
        now = workflow.now()
        outage = Outage(
            call=call,
            type=failure.type,
            error=failure.message,
            since=known.since if known else now,
            until=now + wait,
            attempts=(known.attempts if known else 0) + (failure.attempts or 1),
        )
        self._shown[place] = outage
        self.on_change()

    def begin_of_circuit(self, activity: str, failure: Failure, left: timedelta) -> timedelta:
        """The time until the next attempts of a call that an open circuit breaker prevented, which is no outage.

        It is ``failure.wait``, as long as the history has room for that.
        """
        total = left.total_seconds()
        waits = _count(self._circuit_waits, activity)
        return timedelta(seconds=max(failure.wait or 0, min(self._seconds_spread(waits, 0, total), total)))

    def _seconds_spread(self, waits: int, longest: float, seconds: float) -> float:
        """The next wait after so many, at most ``longest`` if the history has room for such waits for ``seconds``."""
        return seconds_spread(waits, self._calls, max(longest, self._seconds_apart(seconds)), _events_left())

    def _seconds_apart(self, seconds: float) -> float:
        return seconds_apart(self._calls, seconds, _events_left())

    @property
    def _calls(self) -> int:
        """The number of calls that wait."""
        return len(self._waits.keys() | self._circuit_waits.keys())

    def end(self, place: str | None) -> None:
        """Notes that a call waits no longer."""
        if place:
            self._waits.pop(place, None)
            self._circuit_waits.pop(place, None)
            if self._shown.pop(place, None):
                self.on_change()

    def child_waits(self, run: str, *, waits: bool) -> None:
        """Notes whether a child run, or a run below it, waits for the end of an outage."""
        if waits != (run in self.below):
            self.below = (*self.below, run) if waits else tuple(child for child in self.below if child != run)
            self.on_change()


def _count(waits: dict[str, int], activity: str) -> int:
    """Counts a wait of a call, and returns how many it had before."""
    before = waits.get(activity, 0)
    waits[activity] = before + 1
    return before


def _events_left() -> int:
    info = workflow.info()
    return events_left(info.get_current_history_length(), info.get_current_history_size())
