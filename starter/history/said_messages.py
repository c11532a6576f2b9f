"""What is said by a call? A model's words, those of people, and what a panel enters into its conversation."""

from collections.abc import Iterator, Mapping

from ...conversation.contracts.requests import AppendRequest, AskModelRequest, AskModelResult
from ...conversation.messages.message import Message, Quote, Span
from .run_events import ActivityCall, CallReply


def said_messages(call: ActivityCall, reply: CallReply, replies: Mapping[str, Message]) -> Iterator[Message]:
    """What has been said once a call is answered; a panel's speakers have said what is entered of their ``replies``."""
    match call.request, reply:
        case AskModelRequest(brief=None, pending=pending), AskModelResult(message=message, wrong=wrong):
            yield from (item for item in pending if isinstance(item, Message) and _is_a_persons(item))
            if message.content and not wrong:
                yield message
        case AppendRequest(items=items), _:
            for item in items:
                if isinstance(item, Quote) and item.row in replies:
                    yield item.of(replies[item.row])
                elif not isinstance(item, Quote | Span) and (item.part or _is_a_persons(item)):
                    yield item


def _is_a_persons(message: Message) -> bool:
    """Whether a person has said it: what Baton itself asks a model to mend has no name."""
    return message.role == "user" and message.name is not None
