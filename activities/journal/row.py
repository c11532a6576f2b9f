"""What stands at a place of the journal? A message, after the row before it."""

from dataclasses import dataclass

from ...conversation.messages.message import Head, Message


@dataclass(frozen=True)
class Row:
    """A message where it stands."""

    id: str
    parent: str
    depth: int
    message: Message

    @property
    def head(self) -> Head:
        """The place right after this row."""
        return Head(id=self.id, depth=self.depth)

    @property
    def size(self) -> int:
        """About how many characters it holds."""
        calls = sum(len(call.arguments) for call in self.message.tool_calls)
        return 500 + len(self.message.content) + calls
