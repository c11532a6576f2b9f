"""Reads from a run's calls which budgets wait for a person, and what was decided about them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from ...conversation.contracts.grants import BUDGET_RULE, GrantRequest
from ...conversation.messages.person_decision import PersonDecision
from .run_events import CallEnded, CallScheduled, DecisionAsked, DecisionMade, RunInfo

Grant = tuple[str, int]
"""The account of a budget, and the number of the grant that it waits for."""


@dataclass
class BudgetTracker:
    """The calls of one run that wait for more, each by its id, with the grant and the rule of the decision."""

    _asked: dict[str, tuple[DecisionAsked, Grant, str]] = field(default_factory=dict)
    _decisions: dict[str, PersonDecision] = field(default_factory=dict)

    def refused(self, ended: CallEnded) -> Iterator[DecisionAsked]:
        """A call did not begin, and waits for a person, unless one has said no already."""
        reached = ended.failure.budget if ended.failure else None
        if not (ended.failure and reached and reached.asks):
            return
        run, call, number = ended.run, ended.call, reached.grants or 0
        rule = f"{BUDGET_RULE}{reached.owner}/{number}"
        known = self._decisions.get(rule)
        if known and not known.approved:
            return
        id_, text = f"{run.id}/{call.id}", ended.failure.message
        asked = DecisionAsked(run, ended.at, call, id_, text, "budget", reached.owner)
        self._asked[call.id] = asked, (reached.account or "", number), rule
        yield asked

    def granted(self, event: CallScheduled) -> Iterator[DecisionMade]:
        """More is granted after a yes: one of the calls that wait for it goes on."""
        match event.call.request:
            case GrantRequest(account=account, number=number, more=more):
                given = more.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)
                for id_, (asked, grant, rule) in [*self._asked.items()]:
                    if grant == (account, number):
                        del self._asked[id_]
                        made = self._decisions.get(rule) or PersonDecision(approved=True, at=event.at)
                        yield DecisionMade(event.run, event.at, asked, made.model_copy(update={"arguments": given}))
                        return

    def decided(self, run: RunInfo, at: datetime, rule: str | None, decision: PersonDecision) -> Iterator[DecisionMade]:
        """A person has decided by a rule, or, without one, about the only budget that the run waits for.

        After a no, nothing waits for it any longer. A yes is told with its grant.
        """
        rules = {each for _, _, each in self._asked.values()}
        if rule is None and len(rules) == 1:
            [rule] = rules
        if rule is None:
            return
        self._decisions[rule] = decision
        for id_, (asked, _, its_rule) in [*self._asked.items()]:
            if its_rule == rule and not decision.approved:
                del self._asked[id_]
                yield DecisionMade(run, at, asked, decision)
