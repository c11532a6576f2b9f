"""Reads from a run's calls what waits for a person: tool calls and questions, and what was decided about them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ...conversation.contracts.replies import AskPersonRequest, AskPersonResult
from ...conversation.contracts.requests import AppendRequest, AskModelRequest, ReviewResult, UseToolRequest
from ...conversation.messages.message import Message
from .run_events import ActivityCall, CallEnded, CallScheduled, DecisionAsked, DecisionMade, RunEvent

UNSEEN = ("review", "delegate", "ask_person", "check_reply")
"""The activity types that belong to a tool call or to a person's turn, and have no events of their own."""


PERSON = "person/"
"""The beginning of the key of a question, before the member's name."""


@dataclass
class DecisionTracker:
    """Follows the calls of one run in their order."""

    _asked: dict[str, DecisionAsked] = field(default_factory=dict)

    def scheduled(self, event: CallScheduled) -> Iterator[RunEvent]:
        """The events of a call that begins: what was decided before, and the call itself if it has events."""
        yield from self._decided(event)
        if event.call.activity_type not in UNSEEN:
            yield event

    def ended(self, event: CallEnded) -> Iterator[RunEvent]:
        """The events of a call that ends. A tool call whose arguments don't fit has failed before it was made."""
        call, request = event.call, event.call.request
        if call.activity_type not in UNSEEN:
            yield event
        elif isinstance(request, AskPersonRequest) and isinstance(event.result, AskPersonResult):
            id_, question = request.decision_id(event.run.id), event.result.question
            asked = self._asked[f"{PERSON}{request.member}"] = DecisionAsked(event.run, event.at, call, id_, question)
            yield asked
        elif isinstance(request, UseToolRequest) and call.activity_type == "review" and not request.decision:
            if isinstance(event.result, ReviewResult) and event.result.needed:
                id_, arguments = request.decision_id, event.result.arguments
                asked = self._asked[_key(call)] = DecisionAsked(event.run, event.at, call, id_, arguments)
                yield asked
            elif event.failure:
                made = replace(call, activity_type="use_tool")
                yield CallScheduled(event.run, call.scheduled_at, made)
                yield replace(event, call=made)

    def _decided(self, event: CallScheduled) -> Iterator[RunEvent]:
        match event.call.request:
            case UseToolRequest(decision=decision) if decision and event.call.activity_type != "review":
                if asked := self._asked.pop(_key(event.call), None):
                    yield DecisionMade(event.run, event.at, asked, decision)
            case AskModelRequest(pending=items) | AppendRequest(items=items):
                for item in items:
                    if isinstance(item, Message) and item.decision:
                        asked = self._asked.pop(item.tool_call_id or f"{PERSON}{item.name}", None)
                        said = {"text": item.content} if item.decision.text is not None else {}
                        if asked:
                            yield DecisionMade(event.run, event.at, asked, item.decision.model_copy(update=said))


def _key(call: ActivityCall) -> str:
    """The id that the model has given to a call; empty where a query is put to the tool itself."""
    return call.tool_call
