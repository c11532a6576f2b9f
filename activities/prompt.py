"""What does a model get to read? System prompt, history, the question last, then the turn's own messages."""

from activities.journal.journal import Row
from conversation.errors import JournalLost
from conversation.message import Message


def conversation(prompt: str | None, rows: list[Row], question: str, begun: int) -> list[Message]:
    """The messages for one call (seed 004, Local Execution Path).

    ``rows`` is the whole conversation. What stood in it before depth ``begun``, the question apart, is history; what
    came after is the turn's own.
    """
    asked = [row.message for row in rows if row.id == question]
    if not asked:
        raise JournalLost(f"the conversation does not hold its question {question}")
    system = [Message(role="system", content=prompt)] if prompt else []
    history = [row.message for row in rows[:begun] if row.id != question]
    own = [row.message for row in rows[begun:]]
    return [*system, *history, *asked, *own]
