"""A row of the journal: a message, the id of the row before it, and its depth."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...conversation.messages.message import Head, Message


@dataclass(frozen=True)
class Row:
    """A message at its place: ``parent`` is the id of the row before it, empty for the first; ``depth`` is from 1."""

    id: str
    parent: str
    depth: int
    message: Message

    @property
    def head(self) -> Head:
        """The head of the conversation that ends with this row."""
        return Head(id=self.id, depth=self.depth)

    @property
    def before(self) -> Head:
        """The head of the conversation that this row goes on with."""
        return Head(id=self.parent, depth=self.depth - 1)

    @property
    def size(self) -> int:
        """The approximate length in characters."""
        return 500 + self.message.length


def chain(head: Head, messages: Iterable[tuple[str, Message]]) -> list[Row]:
    """The rows of messages, each with its id, one after the other after a head."""
    rows: list[Row] = []
    for row_id, message in messages:
        rows.append(Row(row_id, head.id, head.depth + 1, message))
        head = rows[-1].head
    return rows
