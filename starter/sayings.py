"""What is said by a call? A model's words, and what a panel enters into its conversation."""

from collections.abc import Mapping, Sequence

from conversation.message import Message, Part, Quote, Span
from conversation.requests import AppendRequest, Asked, AskRequest
from starter.happenings import Call, Reply


def words(call: Call, reply: Reply) -> tuple[Message, ...]:
    """What people have said to a model, and its own words; those of a panel are said when they are entered into it."""
    match call.request, reply:
        case AskRequest(brief=None, pending=pending), Asked(message=message, wrong=wrong):
            people = tuple(item for item in pending if isinstance(item, Message) and _is_a_persons(item))
            return (*people, message) if message.content and not wrong else people
    return ()


def entered(request: AppendRequest, replies: Mapping[str, Message], hidden: Sequence[Part]) -> tuple[Message, ...]:
    """What a panel has entered, perhaps by quoting one of the ``replies``, and what people have said.

    Its ``hidden`` parts are not shown to who watches.
    """
    said: list[Message] = []
    for item in request.items:
        if not isinstance(item, Span) and item.part in hidden:
            continue
        if isinstance(item, Quote) and item.row in replies:
            said.append(item.of(replies[item.row]))
        elif isinstance(item, Message) and (item.part or _is_a_persons(item)):
            said.append(item)
    return tuple(said)


def _is_a_persons(message: Message) -> bool:
    """Whether a person has said it: what Baton itself asks a model to mend has no name."""
    return message.role == "user" and message.name is not None
