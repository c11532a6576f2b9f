"""Dividing what joins a conversation into requests."""

from ...conversation.contracts.requests import ConversationItem
from ...conversation.messages.message import MESSAGE_OVERHEAD, Message
from ..state.constants import APPEND_BYTES


def portions(items: tuple[ConversationItem, ...]) -> list[tuple[ConversationItem, ...]]:
    """The items in their order, in groups of at most APPEND_BYTES, or of one item that is larger."""
    groups: list[tuple[ConversationItem, ...]] = []
    space = 0
    for item in items:
        size = MESSAGE_OVERHEAD + (item.byte_size if isinstance(item, Message) else 0)
        if size > space:
            groups.append(())
            space = APPEND_BYTES
        groups[-1] += (item,)
        space -= size
    return groups
