"""All metrics of Baton: names, units, labels and descriptions. They are recorded with OpenTelemetry.

Labels have few values: never the id of a run, nor text from a manifest, client or server that the worker did not know
at startup.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from opentelemetry.metrics import get_meter

from ..contracts.errors import BatonError
from ..contracts.message import TokenUsage
from .run_log import log_call

OTHER = "(other)"
"""The name label of everything that is not among the worker's own manifests."""

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""Upper bounds of the buckets of call and statement durations, and of the durations in the SDK's metrics."""

WAIT_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
"""Upper bounds of the buckets of waits, mostly for people."""


@dataclass(frozen=True)
class Metric:
    """An OpenTelemetry metric; in Prometheus ``baton.call.duration`` is named ``baton_call_duration_seconds``.

    ``up_down`` is an up-down counter. ``buckets`` are those of a histogram.
    """

    name: str
    kind: Literal["counter", "up_down", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    def record(self, value: float = 1, /, **labels: str) -> None:
        """Adds to a counter, sets a gauge, or records a value; ``labels`` must be exactly those of the metric.

        Does nothing in a process without a meter provider. Workflow code calls ``record`` of
        ``workflows/state/decisions.py`` instead, which records nothing during replay.
        """
        _recorder(self)(value, labels)


@lru_cache(maxsize=100)
def _recorder(metric: Metric) -> Callable[[float, dict[str, str]], None]:
    meter = get_meter("baton")
    if metric.kind == "counter":
        return meter.create_counter(metric.name, metric.unit, metric.help).add
    if metric.kind == "up_down":
        return meter.create_up_down_counter(metric.name, metric.unit, metric.help).add
    if metric.kind == "gauge":
        return meter.create_gauge(metric.name, metric.unit, metric.help).set
    buckets = metric.buckets
    return meter.create_histogram(
        metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=buckets
    ).record


RUNS_BEGUN = Metric("baton.runs.begun", "counter", "Runs that have begun, including child runs.", ("workflow_type",))
RUNS_ENDED = Metric(
    "baton.runs.ended",
    "counter",
    "Runs that have ended, including child runs, by phase and stop reason.",
    ("workflow_type", "phase", "reason"),
)
RUNS_WAITING = Metric(
    "baton.runs.waiting",
    "gauge",
    "Root runs that wait now, for a person (InputRequired), for the end of an outage or a Quota (Waiting) or to be "
    "resumed (Paused), in the whole task queue: every worker reports the same number. Refreshed every 30 seconds.",
    ("phase",),
)
RUNS_STUCK = Metric(
    "baton.runs.stuck",
    "gauge",
    "Open runs, including child runs, whose workflow tasks keep failing, in the whole task queue: every worker reports "
    "the same number. Refreshed every 30 seconds.",
)
BACKLOG = Metric(
    "baton.backlog",
    "gauge",
    "Tasks that wait for a worker, by task queue and kind (workflow, activity): every worker of the queue, and every "
    "worker with the role `workflows`, reports the same number. Refreshed every 30 seconds.",
    ("task_queue", "kind"),
)
BACKLOG_AGE = Metric(
    "baton.backlog.age",
    "gauge",
    "How long the oldest of these tasks has waited.",
    ("task_queue", "kind"),
    "s",
)
CHECK_OK = Metric(
    "baton.check.ok",
    "gauge",
    "Whether a check of /readyz (worker, temporal, journal) has passed: 1, or 0. Refreshed every 15 seconds.",
    ("check",),
)
TURNS = Metric(
    "baton.turns",
    "counter",
    "Turns that members of teams have taken, by the kind of member and the turn's stop reason.",
    ("workflow_type", "kind", "outcome"),
)
WAITS_BEGUN = Metric(
    "baton.waits.begun",
    "counter",
    "Waits that runs have begun: for an approval, a budget, the answer to a question, the result of a client's tool, "
    "the end of a pause, a circuit breaker, the end of an outage, or a Quota.",
    ("workflow_type", "kind"),
)
WAIT_DURATION = Metric(
    "baton.wait.duration",
    "histogram",
    "How long runs have waited, by what they waited for and how the wait ended.",
    ("workflow_type", "kind", "outcome"),
    "s",
    WAIT_SECONDS,
)
CALLS = Metric(
    "baton.calls",
    "counter",
    "Calls of models, tools, remote agents and functions; each attempt counts. "
    "The outcome is ok, canceled, question (a tool asks a person), the type of the error, or bug.",
    ("kind", "name", "outcome"),
)
CALL_DURATION = Metric(
    "baton.call.duration", "histogram", "How long these calls have taken.", ("kind", "name"), "s", SECONDS
)
TOKENS = Metric(
    "baton.tokens",
    "counter",
    "Tokens of the answers of models, and of remote agents that report them; direction is prompt or completion.",
    ("kind", "name", "direction"),
)
CACHED_TOKENS = Metric(
    "baton.cached_tokens", "counter", "Prompt tokens served from the provider's cache.", ("kind", "name")
)
COST = Metric(
    "baton.cost",
    "counter",
    "Cost of the answers of models whose Models have prices.",
    ("kind", "name"),
    "usd",
)
CIRCUITS_OPENED = Metric(
    "baton.circuit_breaker.openings",
    "counter",
    "How often circuit breakers of this worker have opened; opening again after a failed probe counts, too.",
    ("kind", "name"),
)
CIRCUITS_OPEN = Metric(
    "baton.circuit_breakers.open", "up_down", "Circuit breakers of this worker that are not closed.", ("kind", "name")
)
JOURNAL_DURATION = Metric(
    "baton.journal.duration",
    "histogram",
    "How long statements of the journal's database have taken, including the wait for a connection, by the kind of "
    "statement and its outcome (ok, unavailable, or error).",
    ("operation", "outcome"),
    "s",
    SECONDS,
)
JOURNAL_MISSING = Metric(
    "baton.journal.missing",
    "counter",
    "Attempts of activities that found a row of the journal missing (JournalLost) or unreadable (JournalDamaged).",
    ("error",),
)
JOURNAL_FREE = Metric(
    "baton.journal.free",
    "gauge",
    "Free space on the disk of a journal in SQLite. A database server doesn't tell. Refreshed every 15 seconds.",
    (),
    "bytes",
)
EVENT_LOOP_LAG = Metric(
    "baton.event_loop.lag",
    "histogram",
    "How long the worker's event loop was blocked, measured 20 times a second.",
    (),
    "s",
    SECONDS,
)
REDACTIONS = Metric(
    "baton.redactions",
    "counter",
    "Secrets that were replaced by [secret] in messages, errors, and log lines.",
)

ALL = tuple(value for value in vars().copy().values() if isinstance(value, Metric))
"""All metrics, in the order of this file."""


CallKind = Literal["model", "tool", "agent", "function"]


class InputRequired(Exception):
    """A call ends with a question to a person instead of an answer or an error."""


class Call:
    """A running call, with its labels in metrics, and the usage that its server has reported."""

    def __init__(self, kind: CallKind, name: str) -> None:
        self._labels = {"kind": kind, "name": name}
        self.usage: TokenUsage | None = None

    def used(self, usage: TokenUsage | None) -> None:
        """Counts the tokens of the answer, and their cost."""
        self.usage = usage
        if usage:
            TOKENS.record(usage.prompt_tokens, **self._labels, direction="prompt")
            TOKENS.record(usage.completion_tokens, **self._labels, direction="completion")
            CACHED_TOKENS.record(usage.cached_tokens, **self._labels)
            COST.record(usage.cost or 0, **self._labels)


@contextlib.contextmanager
def metered(kind: CallKind, name: str, shown: str = "") -> Iterator[Call]:
    """A context manager that records the outcome and the duration of a call, and logs it if calls are logged.

    ``shown`` is its name in the log, if that differs from the label ``name``.
    """
    began = time.monotonic()
    outcome = "ok"
    call = Call(kind, name)
    try:
        yield call
    except BaseException as error:
        outcome = _outcome(error)
        raise
    finally:
        seconds = time.monotonic() - began
        CALLS.record(kind=kind, name=name, outcome=outcome)
        CALL_DURATION.record(seconds, kind=kind, name=name)
        log_call(
            {
                "kind": kind,
                "subject": shown or name,
                "outcome": outcome,
                "tokens": call.usage.total_tokens if call.usage else None,
                "cost": call.usage.cost if call.usage else None,
                "seconds": seconds,
            }
        )


def _outcome(error: BaseException) -> str:
    """The type of Baton's errors; all other errors are bugs and share one value."""
    if isinstance(error, BatonError):
        return type(error).__name__
    if isinstance(error, asyncio.CancelledError):
        return "canceled"
    return "question" if isinstance(error, InputRequired) else "bug"
