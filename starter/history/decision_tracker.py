"""Reads from a run's calls what waits for a person: tool calls and questions, and what was decided about them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from ...conversation.contracts.decisions import ApproveRequest, RememberedDecision
from ...conversation.contracts.questions import Answer
from ...conversation.contracts.replies import AskPersonRequest, AskPersonResult
from ...conversation.contracts.requests import AppendRequest, AskModelRequest, AskModelResult
from ...conversation.contracts.tool_requests import ReviewResult, UseToolRequest, UseToolResult
from ...conversation.messages.message import Message
from ...conversation.messages.person_decision import PersonDecision
from .budget_tracker import BudgetTracker
from .run_events import ActivityCall, CallEnded, CallScheduled, DecisionAsked, DecisionMade, RunEvent, RunInfo

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
