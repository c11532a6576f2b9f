"""Finds in a run's history what waits for a person, and what was decided."""

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


UNSEEN = ("review", "delegate", "ask_person", "check_reply")
"""The activity types that belong to a tool call or to a person's turn, and have no events of their own."""


PERSON = "person/"
"""The beginning of the key of a question, before the member's name."""


@dataclass
class DecisionTracker:
    """Follows the calls of one run in their order."""

    _asked: dict[str, DecisionAsked] = field(default_factory=dict)
    _going_on: dict[str, ActivityCall] = field(default_factory=dict)
    _budgets: BudgetTracker = field(default_factory=BudgetTracker)

    def scheduled(self, event: CallScheduled) -> Iterator[RunEvent]:
        """The events of a call that begins: what was decided before, and the call itself if it has events."""
        decided = [*self._decided(event)]
        yield from decided
        yield from self._budgets.granted(event)
        request = event.call.request
        if isinstance(request, UseToolRequest) and request.answered:
            self._going_on[event.call.id] = decided[0].asked.call if decided else event.call
        elif event.call.activity_type not in UNSEEN:
            yield event

    def ended(self, event: CallEnded) -> Iterator[RunEvent]:
        """The events of a call that ends. A tool call whose arguments don't fit has failed before it was made."""
        event = replace(event, call=self._going_on.pop(event.call.id, event.call))
        call, request, result = event.call, event.call.request, event.result
        if isinstance(result, UseToolResult) and result.question:
            yield self._ask(event, _key(call), result.question.id, result.question.text, call.agent)
        elif call.activity_type not in UNSEEN:
            yield event
            if isinstance(result, AskModelResult) and result.question and isinstance(request, AskModelRequest):
                key = f"{PERSON}{request.speaker}"
                yield self._ask(event, key, result.question.id, result.question.text, call.agent)
        elif isinstance(request, AskPersonRequest) and isinstance(event.result, AskPersonResult):
            id_, question = request.decision_id(event.run.id), event.result.question
            yield self._ask(event, f"{PERSON}{request.member}", id_, question, request.member)
        elif isinstance(request, UseToolRequest) and call.activity_type == "review" and not request.decision:
            if isinstance(event.result, ReviewResult) and event.result.needed:
                id_, arguments = request.decision_id, event.result.arguments
                asked = self._asked[_key(call)] = DecisionAsked(event.run, event.at, call, id_, arguments)
                yield asked
            elif event.failure:
                made = replace(call, activity_type="use_tool")
                yield CallScheduled(event.run, call.scheduled_at, made)
                yield replace(event, call=made)
        yield from self._budgets.refused(event)

    def decided(self, run: RunInfo, at: datetime, decided: ApproveRequest | RememberedDecision) -> Iterator[RunEvent]:
        """The events of a decision about a budget; of another one, the call that has waited tells."""
        if isinstance(decided, RememberedDecision):
            return self._budgets.decided(run, at, decided.rule, decided.decision)
        is_of_call = decided.call in (asked.id for asked in self._asked.values())
        return iter(()) if is_of_call else self._budgets.decided(run, at, None, decided.decision(at))

    def timed_out(self, run: RunInfo, at: datetime, id_: str) -> Iterator[RunEvent]:
        """A question was not answered in time. Of a call that was not decided, its run says next what becomes of it."""
        for key, asked in [*self._asked.items()]:
            if asked.id == id_ and asked.kind == "question":
                del self._asked[key]
                yield DecisionMade(run, at, asked, PersonDecision(approved=False, at=at, how="timeout"))

    def _ask(self, event: CallEnded, key: str, id_: str, question: str, who: str) -> DecisionAsked:
        """The question of a member's turn, or of a server."""
        asked = DecisionAsked(event.run, event.at, event.call, id_, question, "question", who)
        self._asked[key] = asked
        return asked

    def _decided(self, event: CallScheduled) -> Iterator[DecisionMade]:
        match event.call.request:
            case UseToolRequest(answered=Answer(decision=decision)):
                if asked := self._asked.pop(_key(event.call), None):
                    yield DecisionMade(event.run, event.at, asked, decision)
            case UseToolRequest(decision=decision) if decision and event.call.activity_type != "review":
                if asked := self._asked.pop(_key(event.call), None):
                    yield DecisionMade(event.run, event.at, asked, decision)
            case AskModelRequest(pending=items) | AppendRequest(items=items):
                for item in items:
                    if isinstance(item, Message) and item.decision:
                        asked = self._asked.pop(item.tool_call_id or f"{PERSON}{_asked_of(event, item)}", None)
                        said = {"text": item.content} if item.decision.text is not None else {}
                        if asked:
                            yield DecisionMade(event.run, event.at, asked, item.decision.model_copy(update=said))


def _asked_of(event: CallScheduled, said: Message) -> str | None:
    """Whose question a message answers: that of the member who says it, or of the agent that reads it next."""
    request = event.call.request
    return request.speaker if said.role == "user" and isinstance(request, AskModelRequest) else said.name


def _key(call: ActivityCall) -> str:
    """The id that the model has given to a call; empty where a query is put to the tool itself."""
    return call.tool_call
