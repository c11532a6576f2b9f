"""Waiting for people: the pending decisions of a run, the past ones, and those that are remembered for a tool."""

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from temporalio import workflow

from ...contracts.decisions import BUDGET_RULE, DECISION, DecisionsState, PendingDecision, decision_id
from ...contracts.message import PersonDecision
from ...contracts.text import format_time
from ...observability import metrics
from ...observability.metrics import Metric
from ...observability.run_log import Fields, current_clients
from ...resources.budget import Budget
from .constants import MAX_DECIDED
from .run_trace import RunTrace
from .stopping import ActivityInterrupted, ContinueAsNew, StopState
from .telling import tell, tell_update

WaitKind = Literal["approval", "budget", "question", "client_tool", "pause", "circuit_breaker", "outage", "quota"]


def record(metric: Metric, value: float = 1, **labels: str) -> None:
    """Records a metric of this run, labelled with the type of its workflow."""
    if not workflow.unsafe.is_replaying_history_events():
        metric.record(value, workflow_type=workflow.info().workflow_type, **labels)


def tell_decision(pending: PendingDecision, decision: PersonDecision) -> None:
    """Logs that the run has taken a person's decision from the update that is being handled."""
    declined = pending.kind == "question" and not decision.approved
    tell_update(
        {
            "wait": pending.kind,
            "decision": pending.id,
            "member": pending.speaker,
            "outcome": "declined" if declined else outcome_of(decision),
            "by": decision.by,
        }
    )


def run_begins(origin: Fields) -> None:
    """Records that a run begins that continues no other. ``origin`` is what it executes, and what it goes on from."""
    info = workflow.info()
    parent = info.parent.workflow_id if info.parent else None
    via = None if parent else current_clients().started
    tell("run began", {"workflow_type": info.workflow_type, "parent": parent, "via": via, **origin})
    record(metrics.RUNS_BEGUN)
    for phase, reason in (("Completed", "completed"), ("Failed", "failed")):
        record(metrics.RUNS_ENDED, 0, phase=phase, reason=reason)  # Prometheus sees no increase from nothing to 1


@dataclass
class Wait:
    """A wait of the run; ``outcome`` is how it ends, and ``by`` the person who has ended it."""

    outcome: str = "stopped"
    by: str | None = None


@contextlib.contextmanager
def recorded_wait(
    kind: WaitKind, since: datetime, *, known: bool = False, about: Fields | None = None
) -> Iterator[Wait]:
    """Records a wait that began at ``since``; ``known``: a previous run has recorded its beginning.

    ``about`` are fields of its log lines: who waits, and for what.
    """
    fields: Fields = {"wait": kind, **(about or {})}
    if not known:
        record(metrics.WAITS_BEGUN, kind=kind)
        tell("wait began", fields)
    wait = Wait()
    try:
        yield wait
    except (ContinueAsNew, GeneratorExit):  # the next run waits on, or the run is evicted from the worker's cache
        raise
    except BaseException:
        _wait_ends(kind, since, wait, fields)
        raise
    _wait_ends(kind, since, wait, fields)


def _wait_ends(kind: WaitKind, since: datetime, wait: Wait, fields: Fields) -> None:
    seconds = max(0.0, (workflow.now() - since).total_seconds())
    record(metrics.WAIT_DURATION, seconds, kind=kind, outcome=wait.outcome)
    tell("wait ended", {**fields, "outcome": wait.outcome, "by": wait.by, "seconds": seconds})


def outcome_of(decision: PersonDecision) -> str:
    """How a wait for a decision ended: ``timeout``, ``answered``, ``approved`` or ``rejected``."""
    if decision.how == "timeout":
        return "timeout"
    return "answered" if decision.text is not None else "approved" if decision.approved else "rejected"


Check = Callable[[PersonDecision], Awaitable[None]]
"""Checks a person's changed arguments or reply; raises ActivityFailed if they are invalid."""


class NotWaiting(Exception):
    """The decision is not pending, or no longer; the text says why. ``is_unknown``: no decision has had that id."""

    def __init__(self, text: str, *, is_unknown: bool = False) -> None:
        super().__init__(text)
        self.is_unknown = is_unknown


async def accept(_: PersonDecision) -> None:
    """A ``Check`` that accepts everything."""


class Decisions:
    """The pending decisions of a run, by id. The first decision counts, whether by a person or a timeout.

    ``on_change`` is called whenever a decision becomes pending, is made, or is abandoned.
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
        self._is_left = False

    @property
    def waiting_below(self) -> tuple[str, ...]:
        """The ids of the child runs that wait for a person, directly or in a run below."""
        return tuple(self._below)

    def child_waits(self, run: str, *, waits: bool) -> None:
        """Notes that a child run begins or ceases to wait for a person."""
        if waits != (run in self._below):
            self._below = {**self._below, run: None} if waits else {k: None for k in self._below if k != run}
            self.on_change()

    @property
    def pending(self) -> tuple[PendingDecision, ...]:
        """The decisions that are still pending."""
        return tuple(decision for decision in self._pending.values() if not decision.decision)

    @property
    def are_awaited(self) -> bool:
        """Whether this run, or a run below, waits for a person."""
        return bool(self.pending or self._below)

    @property
    def are_left_open(self) -> bool:
        """Whether a turn is waiting; it may have begun to wait in the previous run."""
        return bool(self._pending)

    def known(self, id_: str) -> PendingDecision | None:
        """The pending decision with that id, such as one restored at continue-as-new."""
        return self._pending.get(id_)

    def free_id(self, *place: str) -> str:
        """An unused id for one more decision at a place where several may be pending.

        If the previous run waited for such a decision, it is that one's id.
        """
        ids = (decision_id(*place, str(number)) for number in itertools.count())
        return next(id_ for id_ in ids if id_ not in self._checks and id_ not in self._decided)

    async def wait(
        self, pending: PendingDecision, check: Check = accept, *, continues: bool, proceeds: bool = False
    ) -> PersonDecision:
        """Waits for the decision. A time limit costs one durable timer; otherwise waiting adds no events.

        ``proceeds`` is the decision at the limit; ``continues`` is that of ``StopState.wait``. Raises
        ActivityInterrupted if the run is to stop, and ContinueAsNew.
        """
        known = pending.id in self._pending
        pending = self._pending.setdefault(pending.id, pending)
        self._checks[pending.id] = check
        self._apply_remembered(pending)
        self.on_change()
        place = self._trace.new_wait(pending.kind, "wait", pending.id, since=pending.since)
        try:
            with (
                recorded_wait(pending.kind, pending.since, known=known, about=_about(pending)) as wait,
                self._trace.inside(place) as span,
            ):
                self._trace.report()
                decision = await self._decision(pending, proceeds=proceeds, continues=continues)
                span.attributes["baton.wait.outcome"] = verdict_of(decision)
                wait.outcome = outcome_of(decision)
                wait.by = decision.by
        except (ContinueAsNew, GeneratorExit):  # the next run waits on, or the run is evicted from the worker's cache
            raise
        except BaseException:
            self._forget(pending.id)
            raise
        self._forget(pending.id)
        return decision

    async def _decision(self, pending: PendingDecision, *, proceeds: bool, continues: bool) -> PersonDecision:
        seconds_left = max(0.001, (pending.until - workflow.now()).total_seconds()) if pending.until else None
        try:
            await self._stop.wait(
                lambda: bool(self._decision_of(pending.id)),
                continues=continues,
                limit=seconds_left,
                summary=f"{DECISION}{pending.id}",
            )
        except TimeoutError:
            if not (self._stop.is_requested or self._decision_of(pending.id)):
                self.decide(pending.id, PersonDecision(approved=proceeds, at=workflow.now(), how="timeout"))
        self._stop.checkpoint()
        decision = self._decision_of(pending.id)
        if decision is None:
            raise ActivityInterrupted
        return decision

    def find(self, id_: str) -> PendingDecision:
        """The pending decision with that id. Raises NotWaiting."""
        if decided := self._decision_of(id_) or self._decided.get(id_):
            raise NotWaiting(f"{id_} is already decided: {describe(decided)}")
        if self._stop.is_requested:
            raise too_late(id_)
        if id_ in self._pending:
            return self._pending[id_]
        waiting = ", ".join(decision.id for decision in self.pending[:10]) or "nothing"
        text = f"'{id_}' is not waiting for a decision in this run; waiting here: {waiting}"
        raise NotWaiting(text, is_unknown=True)

    def is_repeated(self, id_: str, digest: str) -> bool:
        """Whether a call of a client's tool has already got the result with that digest."""
        known = self._decision_of(id_) or self._decided.get(id_)
        return known is not None and known.digest == digest

    async def check(self, id_: str, decision: PersonDecision) -> None:
        """Checks a decision, once the waiting call has registered its check. Raises ActivityFailed and NotWaiting."""

        def ends() -> bool:
            return id_ in self._checks or id_ not in self._pending or self._is_left

        await self._stop.wait(ends, continues=False)  # a handler
        self.find(id_)
        if id_ not in self._checks:
            raise NotWaiting(f"{id_} can't be checked while the run continues as new: decide again")
        try:
            await self._checks[id_](decision)
        except ActivityInterrupted:
            # The run was stopped while the check waited for its activity. From the handler of an update, this error
            # would fail the workflow task, again and again.
            raise too_late(id_) from None

    def decide(self, id_: str, decision: PersonDecision) -> None:
        """Takes a decision. Raises NotWaiting."""
        self._pending[id_] = self.find(id_).decided(decision)
        self.on_change()

    def approve(self, id_: str, decision: PersonDecision) -> tuple[PendingDecision, PersonDecision]:
        """Takes a person's decision, or counts it while more people have to approve.

        Returns what was pending, and the decision with how many are missing. Raises NotWaiting.
        """
        pending = self.find(id_)
        if any(given.by == decision.by for given in pending.approvals if pending.approvers):
            raise NotWaiting(f"{decision.by} has approved {id_} already")
        counted = pending.approved_by(decision)
        if decision.approved and pending.approvers:
            decision = decision.after((given.by or "" for given in pending.approvals), counted.missing)
        if decision.missing:
            self._pending[id_] = counted
            self.on_change()
        else:
            self.decide(id_, decision)
        return pending, decision

    def remember(self, rule: str, decision: PersonDecision) -> None:
        """Applies a decision to all current and future requests of a rule."""
        remembered = decision.for_others()
        if decision.arguments is not None and rule.startswith(BUDGET_RULE):
            remembered = remembered.with_arguments(decision.arguments)
        self.remembered[rule] = remembered
        for pending in self.pending:
            self._apply_remembered(pending)

    def raised(self, owner: str, budget: Budget | None) -> Budget | None:
        """The budget of a manifest with all amounts that people have granted: by default its own, once more."""
        raised = budget
        for rule, decision in self.remembered.items() if budget else ():
            if rule.startswith(f"{BUDGET_RULE}{owner}/") and decision.approved:
                more = Budget.model_validate_json(decision.arguments) if decision.arguments else budget
                raised = raised and more and raised.raised_by(more)
        return raised

    def leave(self) -> None:
        """Refuses what only the next run can check, as this one continues as new: no call comes to wait any more."""
        self._is_left = True

    def close(self) -> None:
        """Abandons all pending decisions, as the run ends."""
        self._pending.clear()

    def _apply_remembered(self, pending: PendingDecision) -> None:
        known = self.remembered.get(pending.rule or "")
        if pending.approvers:  # anyone may send the signal by which a decision is remembered
            return
        if known and not (self._decision_of(pending.id) or self._stop.is_requested):
            self.decide(pending.id, known.taken_at(workflow.now()))

    def _decision_of(self, id_: str) -> PersonDecision | None:
        return self._pending[id_].decision if id_ in self._pending else None

    def _forget(self, id_: str) -> None:
        """Ends the wait; the decision is stored, to report to later callers who has decided."""
        self._checks.pop(id_, None)
        pending = self._pending.pop(id_, None)
        if pending and pending.decision:
            self._decided[id_] = pending.decision.to_remember()
            while len(self._decided) > MAX_DECIDED:
                del self._decided[next(iter(self._decided))]
        self.on_change()

    @property
    def state(self) -> DecisionsState | None:
        """The state for the next run at continue-as-new."""
        if not (self._pending or self.remembered or self._decided):
            return None
        pending = tuple(self._pending.values())
        return DecisionsState(pending=pending, remembered=dict(self.remembered), decided=dict(self._decided))

    def restore(self, state: DecisionsState | None) -> None:
        """Restores the state of the previous run."""
        if state:
            self._pending = {decision.id: decision for decision in state.pending} | self._pending
            self.remembered = {**state.remembered, **self.remembered}
            self._decided = {**state.decided, **self._decided}


def _about(pending: PendingDecision) -> Fields:
    return {"decision": pending.id, "member": pending.speaker, "subject": pending.tool or pending.asked_by}


def too_late(id_: str) -> NotWaiting:
    """The error for a decision that a run which is ending no longer takes."""
    return NotWaiting(f"{id_} comes too late: the run is ending")


def verdict_of(decision: PersonDecision) -> str:
    """The decision in one word: ``approved``, ``answered`` or ``rejected``."""
    return ("approved" if decision.text is None else "answered") if decision.approved else "rejected"


def describe(decision: PersonDecision) -> str:
    """A decision as text, with the person and the time."""
    by = "the timeout" if decision.how == "timeout" else decision.by or "an unknown person"
    return f"{verdict_of(decision)} by {by} at {format_time(decision.at)}"
