"""Waiting for people: what a run waits for, what was decided, and what holds for a tool from then on."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Literal

from temporalio import workflow

from ...contracts.decisions import BUDGET_RULE, DECISION, DecisionsState, PendingDecision
from ...contracts.message import PersonDecision
from ...contracts.status import format_time
from ...observability import metrics
from ...observability.metrics import Metric
from ...resources.budget import Budget
from .constants import MAX_DECIDED
from .run_trace import RunTrace
from .stopping import ActivityInterrupted, ContinueAsNew, StopState, should_continue_as_new

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


Check = Callable[[PersonDecision], Awaitable[None]]
"""Checks what a person has changed; raises ActivityFailed if it can't be used."""


class NotWaiting(Exception):
    """Nothing waits for this decision, or no longer; the text says why."""


async def accept(_: PersonDecision) -> None:
    """The ``Check`` where nothing can be wrong."""


class Decisions:
    """What a run waits for, by id. It is decided once: the first decision counts, a person's or the timeout's.

    ``on_change`` is called whenever something begins to wait, is decided, or is given up.
    """

    def __init__(self, stop: StopState, trace: RunTrace) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.remembered: dict[str, PersonDecision] = {}
        self._stop = stop
        self._trace = trace
        self._pending: dict[str, PendingDecision] = {}
        self._decided: dict[str, PersonDecision] = {}
        self._checks: dict[str, Check] = {}
        self._below: dict[str, None] = {}

    @property
    def waiting_below(self) -> tuple[str, ...]:
        """The ids of the child runs that wait for a person, or have runs below them that do."""
        return tuple(self._below)

    def child_waits(self, run: str, *, waits: bool) -> None:
        """A child run waits for a person, or no longer."""
        if waits != (run in self._below):
            self._below = {**self._below, run: None} if waits else {k: None for k in self._below if k != run}
            self.on_change()

    @property
    def pending(self) -> tuple[PendingDecision, ...]:
        """What waits for a decision now."""
        return tuple(each for each in self._pending.values() if not each.decision)

    @property
    def are_awaited(self) -> bool:
        """Whether a person is waited for, here or in a run below."""
        return bool(self.pending or self._below)

    def known(self, id_: str) -> PendingDecision | None:
        """What waits already, since before the run has continued as new."""
        return self._pending.get(id_)

    async def wait(
        self, pending: PendingDecision, check: Check = accept, *, proceeds: bool = False, continues: bool = False
    ) -> PersonDecision:
        """Waits for the decision, at the cost of a durable timer if there is a limit of time, and else of nothing.

        ``proceeds`` is the decision at that limit. Raises ActivityInterrupted if the run is to stop and, where it
        ``continues``, ContinueAsNew if it has become long: the next run waits on.
        """
        if pending.id not in self._pending:
            wait_begins(pending.kind)
        pending = self._pending.setdefault(pending.id, pending)
        self._checks[pending.id] = check
        self._apply_remembered(pending)
        self.on_change()
        try:
            with self._trace.inside(
                self._trace.new_wait(pending.kind, "wait", pending.id, since=pending.since)
            ) as span:
                self._trace.report()
                decision = await self._decision(pending, proceeds=proceeds, continues=continues)
                span.attributes["baton.wait.outcome"] = verdict_of(decision)
        except BaseException as error:
            if not isinstance(error, ContinueAsNew | GeneratorExit):  # the run leaves the worker's memory, and waits on
                self._forget(pending.id)
                wait_ends(pending.kind, pending.since, "stopped")
            raise
        self._forget(pending.id)
        wait_ends(pending.kind, pending.since, outcome_of(decision))
        return decision

    async def _decision(self, pending: PendingDecision, *, proceeds: bool, continues: bool) -> PersonDecision:
        left = max(0.001, (pending.until - workflow.now()).total_seconds()) if pending.until else None

        def is_over() -> bool:
            return bool(self._decision_of(pending.id)) or (continues and should_continue_as_new())

        try:
            await self._stop.wait(is_over, left, f"{DECISION}{pending.id}")
        except TimeoutError:
            if not (self._stop.is_requested or self._decision_of(pending.id)):
                self.decide(pending.id, PersonDecision(approved=proceeds, at=workflow.now(), how="timeout"))
        self._stop.checkpoint()
        decision = self._decision_of(pending.id)
        if decision:
            return decision
        if self._stop.is_requested:
            raise ActivityInterrupted
        raise ContinueAsNew

    def find(self, id_: str) -> PendingDecision:
        """What waits for a decision under that id. Raises NotWaiting."""
        if decided := self._decision_of(id_) or self._decided.get(id_):
            raise NotWaiting(f"{id_} is decided already: {describe(decided)}")
        if self._stop.is_requested:
            raise _too_late(id_)
        if id_ in self._pending:
            return self._pending[id_]
        waiting = ", ".join(each.id for each in self.pending[:10]) or "nothing"
        raise NotWaiting(f"'{id_}' does not wait for a decision in this run; waiting here: {waiting}")

    async def check(self, id_: str, decision: PersonDecision) -> None:
        """Checks what a person has changed, as soon as whoever waits can say. Raises ActivityFailed, and NotWaiting."""
        await self._stop.wait(lambda: id_ in self._checks or id_ not in self._pending)
        self.find(id_)
        try:
            await self._checks[id_](decision)
        except ActivityInterrupted:
            # The run was stopped while the check waited for its activity. From the handler of an update, this error
            # would fail the workflow task, again and again.
            raise _too_late(id_) from None

    def decide(self, id_: str, decision: PersonDecision) -> None:
        """Takes a decision. Raises NotWaiting."""
        self._pending[id_] = self.find(id_).decided(decision)
        self.on_change()

    def remember(self, rule: str, decision: PersonDecision) -> None:
        """From now on this holds for all that waits by the rule, or will wait."""
        remembered = decision.for_others()
        if decision.arguments is not None and rule.startswith(BUDGET_RULE):
            remembered = remembered.with_arguments(decision.arguments)
        self.remembered[rule] = remembered
        for each in self.pending:
            self._apply_remembered(each)

    def raised(self, owner: str, budget: Budget | None) -> Budget | None:
        """The budget of a manifest with all that people have granted to it."""
        for rule, decision in self.remembered.items() if budget else ():
            if rule.startswith(f"{BUDGET_RULE}{owner}/") and decision.approved:
                more = Budget.model_validate_json(decision.arguments) if decision.arguments else budget
                budget = budget and more and budget.raised_by(more)
        return budget

    def close(self) -> None:
        """The run ends: nothing waits any longer."""
        self._pending.clear()

    def _apply_remembered(self, pending: PendingDecision) -> None:
        known = self.remembered.get(pending.rule or "")
        if known and not (self._decision_of(pending.id) or self._stop.is_requested):
            self.decide(pending.id, known.taken_at(workflow.now()))

    def _decision_of(self, id_: str) -> PersonDecision | None:
        return self._pending[id_].decision if id_ in self._pending else None

    def _forget(self, id_: str) -> None:
        """Ends the wait; the decision is kept, to tell later callers who has decided."""
        self._checks.pop(id_, None)
        pending = self._pending.pop(id_, None)
        if pending and pending.decision:
            self._decided[id_] = pending.decision.to_remember()
            while len(self._decided) > MAX_DECIDED:
                del self._decided[next(iter(self._decided))]
        self.on_change()

    @property
    def state(self) -> DecisionsState | None:
        """The part of it that a continued run needs."""
        if not (self._pending or self.remembered or self._decided):
            return None
        pending = tuple(self._pending.values())
        return DecisionsState(pending=pending, remembered=dict(self.remembered), decided=dict(self._decided))

    def restore(self, state: DecisionsState | None) -> None:
        """Restores the state of the previous run."""
        if state:
            self._pending = {each.id: each for each in state.pending} | self._pending
            self.remembered = {**state.remembered, **self.remembered}
            self._decided = {**state.decided, **self._decided}


def _too_late(id_: str) -> NotWaiting:
    return NotWaiting(f"{id_} comes too late: the run is ending")


def verdict_of(decision: PersonDecision) -> str:
    """What was decided, in one word."""
    return ("approved" if decision.text is None else "answered") if decision.approved else "rejected"


def describe(decision: PersonDecision) -> str:
    """Who has decided what, and when."""
    by = "the timeout" if decision.how == "timeout" else decision.by or "somebody"
    return f"{verdict_of(decision)} by {by} at {format_time(decision.at)}"
