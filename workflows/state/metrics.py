"""Records the metrics of a run: only when something happens, never when it is replayed."""

from datetime import datetime
from typing import Literal

from temporalio import workflow

from ...conversation import metrics
from ...conversation.messages.person_decision import PersonDecision
from ...conversation.metrics import Metric

WaitKind = Literal["approval", "budget", "question", "pause", "circuit_breaker"]


def record(metric: Metric, value: float = 1, **labels: str) -> None:
    """Records a metric of this run, labelled with the type of its workflow."""
    if not workflow.unsafe.is_replaying_history_events():
        metric.record(value, workflow_type=workflow.info().workflow_type, **labels)


def run_begins() -> None:
    """The run begins, rather than to continue another one."""
    record(metrics.RUNS_BEGUN)
    for phase, reason in (("Completed", "completed"), ("Failed", "failed")):
        record(metrics.RUNS_ENDED, 0, phase=phase, reason=reason)  # Prometheus sees no increase from nothing to 1


def wait_begins(kind: WaitKind) -> None:
    """The run begins to wait."""
    record(metrics.WAITS_BEGUN, kind=kind)


def wait_ends(kind: WaitKind, since: datetime, outcome: str) -> None:
    """The run waits no longer; what it did at ``since`` was to begin."""
    record(metrics.WAIT_DURATION, max(0.0, (workflow.now() - since).total_seconds()), kind=kind, outcome=outcome)


def outcome_of(decision: PersonDecision) -> str:
    """How a wait for a decision has ended: by a person, an earlier decision, or its limit of time."""
    if decision.how == "timeout":
        return "timeout"
    return "answered" if decision.text is not None else "approved" if decision.approved else "rejected"
