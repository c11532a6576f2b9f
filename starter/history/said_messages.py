"""The messages that a completed activity call has added to a conversation."""

from collections.abc import Iterator, Mapping

from ...conversation.contracts.requests import AppendRequest, AskModelRequest, AskModelResult
from ...conversation.messages.message import Message, Quote, Span
from .activity_types import CallResult
from .run_events import ActivityCall


def said_messages(call: ActivityCall, result: CallResult, replies: Mapping[str, Message]) -> Iterator[Message]:
    """The messages of agents, of people and of a panel's conversation that a call has added.

    ``replies`` are the earlier answers of models and functions by their journal rows: a panel quotes them.
    """
    match call.request, result:
        case AskModelRequest(brief=None, pending=pending), AskModelResult(message=message, wrong=wrong) as answer:
            yield from (item for item in pending if isinstance(item, Message) and _is_from_person(item))
            yield from answer.earlier
            if message.content and not wrong:
                yield message
        case AppendRequest(items=items), _:
            for item in items:
                if isinstance(item, Quote) and item.row in replies:
                    yield item.quoted(replies[item.row])
                elif not isinstance(item, Quote | Span) and (item.part or _is_from_person(item) or _is_reply(item)):
                    yield item


def _is_reply(message: Message) -> bool:
    """Whether it is the turn of a member that is a person."""
    return message.role == "assistant" and message.decision is not None


def _is_from_person(message: Message) -> bool:
    """Whether a person wrote it; Baton's own requests to correct an answer have no name."""
    return message.role == "user" and message.name is not None
