"""Finds the pending decisions in a run's history, and how they were decided."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from ...contracts.decisions import (
    BUDGET_RULE,
    Answer,
    ApproveRequest,
    AskPersonRequest,
    AskPersonResult,
    GrantRequest,
    RememberedDecision,
)
from ...contracts.message import Message, PersonDecision
from ...contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    ReviewResult,
    UseToolRequest,
    UseToolResult,
)
from .run_events import ActivityCall, CallEnded, CallScheduled, DecisionAsked, DecisionMade, RunEvent, RunInfo

Grant = tuple[str, int]
"""The account of a budget, and the number of the grant that it waits for."""


@dataclass
class BudgetTracker:
    """The calls of one run that wait for a larger budget, by their ids, with the grant and the rule of the decision."""

    _pending: dict[str, tuple[DecisionAsked, Grant, str]] = field(default_factory=dict)
    _decisions: dict[str, PersonDecision] = field(default_factory=dict)

    def refused(self, ended: CallEnded) -> Iterator[DecisionAsked]:
        """A call did not begin, and waits for a person, unless one has rejected more already."""
        reached = ended.failure.budget if ended.failure else None
        if not (ended.failure and reached and reached.asks):
            return
        number = reached.grants or 0
        rule = f"{BUDGET_RULE}{reached.owner}/{number}"
        earlier = self._decisions.get(rule)
        if earlier and not earlier.approved:
            return
        call = ended.call
        decision_id = f"{ended.run.id}/{call.id}"
        text = ended.failure.message
        asked = DecisionAsked(ended.run, ended.at, call, decision_id, text, "budget", reached.owner)
        self._pending[call.id] = asked, (reached.account or "", number), rule
        yield asked

    def granted(self, event: CallScheduled) -> Iterator[DecisionMade]:
        """More is granted after an approval: one of the calls that wait for it continues."""
        request = event.call.request
        if not isinstance(request, GrantRequest):
            return
        for call_id, (asked, grant, rule) in self._pending.items():
            if grant == (request.account, request.number):
                del self._pending[call_id]
                decision = self._decisions.get(rule) or PersonDecision(approved=True, at=event.at)
                more = request.more.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)
                yield DecisionMade(event.run, event.at, asked, decision.with_arguments(more))
                return

    def decided(self, run: RunInfo, at: datetime, rule: str | None, decision: PersonDecision) -> Iterator[DecisionMade]:
        """A person has decided by a rule, or, without one, about the only budget that the run waits for.

        A rejection ends all waits for this rule. An approval has its event with the grant, which names the amount.
        """
        rules = {rule for _, _, rule in self._pending.values()}
        if rule is None and len(rules) == 1:
            [rule] = rules
        if rule is None:
            return
        self._decisions[rule] = decision
        for call_id, (asked, _, pending_rule) in [*self._pending.items()]:
            if pending_rule == rule and not decision.approved:
                del self._pending[call_id]
                yield DecisionMade(run, at, asked, decision)


UNSEEN = ("review", "delegate", "ask_person", "check_reply")
"""The activity types that belong to a tool call or to a person's turn, and have no events of their own."""

PERSON = "person/"
"""The prefix of a question's key, before the member's name."""


@dataclass
class DecisionTracker:
    """Follows the calls of one run in their order.

    ``_pending`` are the decisions that the run waits for: by the id that the model has given to the tool call (empty
    where a tool is the target of a query), or by PERSON and a member's name. ``_continued`` are tool calls that
    continue after a reply, by their activity's id: they belong to the call that has asked.
    """

    _pending: dict[str, DecisionAsked] = field(default_factory=dict)
    _continued: dict[str, ActivityCall] = field(default_factory=dict)
    _budgets: BudgetTracker = field(default_factory=BudgetTracker)

    def scheduled(self, event: CallScheduled) -> Iterator[RunEvent]:
        """The events of a call that begins: what was decided before, and the call itself if it has events."""
        decided = [*self._decided(event)]
        yield from decided
        yield from self._budgets.granted(event)
        request = event.call.request
        if isinstance(request, UseToolRequest) and request.answered:
            self._continued[event.call.id] = decided[0].asked.call if decided else event.call
        elif event.call.activity_type not in UNSEEN:
            yield event

    def ended(self, event: CallEnded) -> Iterator[RunEvent]:
        """The events of a call that ends. A tool call with invalid arguments has failed before it was made."""
        event = replace(event, call=self._continued.pop(event.call.id, event.call))
        call = event.call
        request = call.request
        result = event.result
        if isinstance(result, UseToolResult) and result.question:
            yield self._ask(event, call.tool_call, result.question.id, result.question.text, call.agent)
        elif call.activity_type not in UNSEEN:
            yield event
            if isinstance(result, AskModelResult) and result.question and isinstance(request, AskModelRequest):
                key = f"{PERSON}{request.speaker}"
                yield self._ask(event, key, result.question.id, result.question.text, call.agent)
        elif isinstance(request, AskPersonRequest) and isinstance(result, AskPersonResult):
            decision_id = request.decision_id(event.run.id)
            yield self._ask(event, f"{PERSON}{request.member}", decision_id, result.question, request.member)
        elif isinstance(request, UseToolRequest) and call.activity_type == "review" and not request.decision:
            if isinstance(result, ReviewResult) and result.needed:
                asked = DecisionAsked(event.run, event.at, call, request.decision_id, result.arguments)
                self._pending[call.tool_call] = asked
                yield asked
            elif event.failure:
                tool_call = replace(call, activity_type="use_tool")
                yield CallScheduled(event.run, call.scheduled_at, tool_call)
                yield replace(event, call=tool_call)
        yield from self._budgets.refused(event)

    def decided(self, run: RunInfo, at: datetime, decided: ApproveRequest | RememberedDecision) -> Iterator[RunEvent]:
        """The events of a decision about a budget. Other decisions have theirs when the call that waited continues."""
        if isinstance(decided, RememberedDecision):
            yield from self._budgets.decided(run, at, decided.rule, decided.decision)
        elif not any(asked.id == decided.call for asked in self._pending.values()):
            yield from self._budgets.decided(run, at, None, decided.decision(at))

    def timed_out(self, run: RunInfo, at: datetime, decision_id: str) -> Iterator[RunEvent]:
        """A question was not answered in time. What a timeout means for a tool call, the run's next call shows."""
        for key, asked in [*self._pending.items()]:
            if asked.id == decision_id and asked.kind == "question":
                del self._pending[key]
                yield DecisionMade(run, at, asked, PersonDecision(approved=False, at=at, how="timeout"))

    def _ask(self, event: CallEnded, key: str, decision_id: str, question: str, who: str) -> DecisionAsked:
        """The question of a member's turn, or of a server."""
        asked = DecisionAsked(event.run, event.at, event.call, decision_id, question, "question", who)
        self._pending[key] = asked
        return asked

    def _decided(self, event: CallScheduled) -> Iterator[DecisionMade]:
        match event.call.request:
            case UseToolRequest(answered=Answer(decision=decision)):
                if asked := self._pending.pop(event.call.tool_call, None):
                    yield DecisionMade(event.run, event.at, asked, decision)
            case UseToolRequest(decision=decision) if decision and event.call.activity_type != "review":
                if asked := self._pending.pop(event.call.tool_call, None):
                    yield DecisionMade(event.run, event.at, asked, decision)
            case AskModelRequest(pending=items) | AppendRequest(items=items):
                for item in items:
                    if isinstance(item, Message) and item.decision:
                        key = item.tool_call_id or f"{PERSON}{_answered_member(event, item)}"
                        decision = item.decision
                        if decision.text is not None:  # the text of a reply is stored in its message alone
                            decision = decision.with_text(item.content)
                        if asked := self._pending.pop(key, None):
                            yield DecisionMade(event.run, event.at, asked, decision)


def _answered_member(event: CallScheduled, reply: Message) -> str | None:
    """Whose question a message answers: that of the member who says it, or of the agent that reads it next."""
    request = event.call.request
    return request.speaker if reply.role == "user" and isinstance(request, AskModelRequest) else reply.name
