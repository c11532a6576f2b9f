"""What is one row of the journal? A message where it stands."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row as Found

from conversation.errors import JournalLost
from conversation.message import Head, Message


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


def size(row: Row) -> int:
    """About how much memory a row takes, in characters."""
    calls = sum(len(call.arguments) for call in row.message.tool_calls)
    return 500 + len(row.message.content) + calls


def stored(row: Row) -> dict[str, object]:
    """A row as the database keeps it."""
    message = row.message.model_dump_json(exclude_unset=True)
    return {"id": row.id, "parent": row.parent, "depth": row.depth, "message": message}


def loaded(found: Found[Any]) -> Row:
    """A row as the database has kept it."""
    return Row(found.id, found.parent, found.depth, Message.model_validate_json(found.message))


def lost(what: str) -> JournalLost:
    """The error for what should stand in the journal."""
    return JournalLost(
        f"the journal does not hold {what}: restore the journal's database from the backup that belongs to Temporal's"
    )
