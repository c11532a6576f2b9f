"""Derives pending decisions and their outcomes from a run's history."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from ...contracts.decisions import (
    BUDGET_RULE,
    Answer,
    ApproveRequest,
    AskPersonRequest,
    AskPersonResult,
    DecisionsState,
    GrantRequest,
    Question,
    RememberedDecision,
    decision_id,
)
from ...contracts.message import Message, PersonDecision
from ...contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    CheckedArguments,
    ReviewResult,
    UseToolRequest,
    UseToolResult,
)
from .run_events import ActivityCall, CallEnded, CallScheduled, DecisionMade, DecisionRequested, RunEvent, RunInfo

Grant = tuple[str, int]
"""The account of a budget, and the number of the next grant."""


@dataclass
class BudgetTracker:
    """The calls of one run that wait for a larger budget, by id, with the grant and the rule of the decision.

    The ids of decisions are numbered as the run itself does it: several calls may wait for the same grant.
    """

    _pending: dict[str, tuple[DecisionRequested, Grant, str]] = field(default_factory=dict)
    _decisions: dict[str, PersonDecision] = field(default_factory=dict)
    _decided: set[str] = field(default_factory=set)

    def continue_as_new(self) -> None:
        """The next execution makes the waiting calls again, which are refused and wait again, with the same ids."""
        self._pending.clear()

    def restore(self, carried: DecisionsState) -> None:
        """Takes over what was decided in earlier executions."""
        self._decisions = {rule: made for rule, made in carried.remembered.items() if rule.startswith(BUDGET_RULE)}
        self._decided = {*carried.decided}

    def refused(self, ended: CallEnded) -> Iterator[DecisionRequested]:
        """Records a call that was refused and waits for a person, unless the request was rejected before."""
        reached = ended.failure.budget if ended.failure else None
        if not (ended.failure and reached and reached.asks):
            return
        number = reached.grants or 0
        rule = f"{BUDGET_RULE}{reached.owner}/{number}"
        id_ = self._free_id(ended.run.id, rule)
        earlier = self._decisions.get(rule)
        if earlier and not earlier.approved:
            self._decided.add(id_)
            return
        call = ended.call
        text = ended.failure.message
        approvers = reached.more.approvers if reached.more else ()
        pending = DecisionRequested(
            ended.run, ended.at, call, id_, text, "budget", reached.owner, approvers=approvers, rule=rule
        )
        self._pending[call.id] = pending, (reached.account or "", number), rule
        yield pending

    def granted(self, event: CallScheduled) -> Iterator[DecisionMade]:
        """Records a grant after an approval: one of the calls that wait for it continues."""
        request = event.call.request
        if not isinstance(request, GrantRequest):
            return
        for call_id, (pending, grant, rule) in self._pending.items():
            if grant == (request.account, request.number):
                del self._pending[call_id]
                self._decided.add(pending.id)
                decision = self._decisions.get(rule) or PersonDecision(approved=True, at=event.at)
                more = request.more.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)
                yield DecisionMade(event.run, event.at, pending, decision.with_arguments(more))
                return

    def rule_of(self, id_: str) -> str | None:
        """The rule for which a decision with that id is pending."""
        return next((rule for pending, _, rule in self._pending.values() if pending.id == id_), None)

    def decided(self, run: RunInfo, at: datetime, rule: str, decision: PersonDecision) -> Iterator[DecisionMade]:
        """Records a decision for a rule.

        A rejection ends all waits for this rule. An approval becomes an event with the grant, which has the amount.
        """
        self._decisions[rule] = decision
        for call_id, (pending, _, pending_rule) in [*self._pending.items()]:
            if pending_rule == rule and not decision.approved:
                del self._pending[call_id]
                self._decided.add(pending.id)
                yield DecisionMade(run, at, pending, decision)

    def _free_id(self, run: str, rule: str) -> str:
        taken = self._decided.union(pending.id for pending, _, _ in self._pending.values())
        ids = (decision_id(run, rule, str(number)) for number in itertools.count())
        return next(id_ for id_ in ids if id_ not in taken)


UNSEEN = ("review", "delegate", "check_arguments", "ask_person", "check_reply", "check_identity", "audit")
"""The activity types that are part of a tool call or a person's turn, and have no events of their own."""

PERSON = "person/"
"""The prefix of a question's key, before the member's name."""


@dataclass
class DecisionTracker:
    """Follows the calls of one run in order.

    ``_pending`` are the pending decisions: by the model's id of the tool call (empty if a tool is the target of a
    query), or by PERSON and a member's name. ``_continued`` are tool calls that continue after a reply, by activity id:
    they belong to the call that asked the question.
    """

    _pending: dict[str, DecisionRequested] = field(default_factory=dict)
    _continued: dict[str, ActivityCall] = field(default_factory=dict)
    _budgets: BudgetTracker = field(default_factory=BudgetTracker)

    def continue_as_new(self) -> None:
        """The run goes on in another execution."""
        self._budgets.continue_as_new()

    def restore(self, carried: DecisionsState) -> None:
        """Takes over what was decided in earlier executions, which are not read."""
        self._budgets.restore(carried)

    def scheduled(self, event: CallScheduled) -> Iterator[RunEvent]:
        """The events of a scheduled call: the preceding decisions, and the call itself if it has events."""
        decided = [*self._decided(event)]
        yield from decided
        yield from self._budgets.granted(event)
        request = event.call.request
        if isinstance(request, UseToolRequest) and request.answered:
            self._continued[event.call.id] = decided[0].pending.call if decided else event.call
        elif event.call.activity_type not in UNSEEN:
            yield event

    def ended(self, event: CallEnded) -> Iterator[RunEvent]:
        """The events of an ended call. A tool call with invalid arguments has failed before its execution."""
        event = replace(event, call=self._continued.pop(event.call.id, event.call))
        call = event.call
        request = call.request
        result = event.result
        if isinstance(result, UseToolResult) and result.question:
            yield self._ask_server(event, call.tool_call, result.question)
        elif call.activity_type not in UNSEEN:
            yield event
            if isinstance(result, AskModelResult) and result.question and isinstance(request, AskModelRequest):
                yield self._ask_server(event, f"{PERSON}{request.speaker}", result.question)
        elif isinstance(request, AskPersonRequest) and isinstance(result, AskPersonResult):
            pending = DecisionRequested(
                event.run,
                event.at,
                call,
                request.decision_id(event.run.id),
                result.question,
                "question",
                request.member,
                approvers=result.approvers,
            )
            self._pending[f"{PERSON}{request.member}"] = pending
            yield pending
        elif isinstance(request, UseToolRequest) and isinstance(result, CheckedArguments):
            if result.by_client:
                arguments = json.dumps(result.arguments[0], ensure_ascii=False)
                pending = DecisionRequested(
                    event.run, event.at, call, request.decision_id, arguments, "client_tool", call.agent
                )
                self._pending[call.tool_call] = pending
                yield pending
        elif (
            isinstance(request, UseToolRequest)
            and call.activity_type in ("review", "check_arguments")
            and not request.decision
        ):
            if isinstance(result, ReviewResult) and result.needed:
                pending = DecisionRequested(
                    event.run, event.at, call, request.decision_id, result.arguments, approvers=result.approvers
                )
                self._pending[call.tool_call] = pending
                yield pending
            elif event.failure:
                tool_call = replace(call, activity_type="use_tool")
                yield CallScheduled(event.run, call.scheduled_at, tool_call)
                yield replace(event, call=tool_call)
        yield from self._budgets.refused(event)

    def decided(self, run: RunInfo, at: datetime, decided: ApproveRequest | RememberedDecision) -> Iterator[RunEvent]:
        """The events of a decision about a budget. Other decisions become events when the waiting call continues."""
        if isinstance(decided, RememberedDecision):
            yield from self._budgets.decided(run, at, decided.rule, decided.decision)
        elif rule := self._budgets.rule_of(decided.call):
            yield from self._budgets.decided(run, at, rule, decided.decision(at))

    def timed_out(self, run: RunInfo, at: datetime, decision_id: str) -> Iterator[RunEvent]:
        """A question was not answered in time. The effect of a timeout on a tool call shows in the run's next call."""
        for key, pending in [*self._pending.items()]:
            if pending.id == decision_id and pending.kind == "question":
                del self._pending[key]
                yield DecisionMade(run, at, pending, PersonDecision(approved=False, at=at, how="timeout"))

    def _ask_server(self, event: CallEnded, key: str, question: Question) -> DecisionRequested:
        """The question of a server, in a call of an agent or of a tool."""
        pending = DecisionRequested(
            event.run,
            event.at,
            event.call,
            question.id,
            question.text,
            "question",
            event.call.agent,
            authorizes=question.authorizes,
        )
        self._pending[key] = pending
        return pending

    def _decided(self, event: CallScheduled) -> Iterator[DecisionMade]:
        match event.call.request:
            case UseToolRequest(answered=Answer(decision=decision)):
                if pending := self._pending.pop(event.call.tool_call, None):
                    yield DecisionMade(event.run, event.at, pending, decision)
            case UseToolRequest(decision=decision) if decision and event.call.activity_type != "review":
                if pending := self._pending.pop(event.call.tool_call, None):
                    yield DecisionMade(event.run, event.at, pending, decision)
            case AskModelRequest(pending=items) | AppendRequest(items=items):
                for item in items:
                    if isinstance(item, Message) and item.decision:
                        key = item.tool_call_id or f"{PERSON}{_answered_member(event, item)}"
                        decision = item.decision
                        if decision.text is not None:  # the text of a reply is only stored in its message
                            decision = decision.with_text(item.content)
                        if pending := self._pending.pop(key, None):
                            yield DecisionMade(event.run, event.at, pending, decision)


def _answered_member(event: CallScheduled, reply: Message) -> str | None:
    """Whose question a message answers: the member that sends it, or the agent that reads it next."""
    request = event.call.request
    return request.speaker if reply.role == "user" and isinstance(request, AskModelRequest) else reply.name
