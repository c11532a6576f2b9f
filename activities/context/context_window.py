"""What does a model get to read? System prompt, history, the question last, then the turn's own messages."""

from collections.abc import Callable, Sequence

from ...conversation.messages.message import Message
from ...resources.window import ContextWindow
from ..journal.row import Row

CHARACTERS = 4
"""Characters that count as a token: how a model counts, only its server knows."""


def conversation(
    prompt: str | None, rows: Sequence[Row], question: Row, begun: int, window: ContextWindow | None = None
) -> list[Message]:
    """The messages for one call (seed 004, Local Execution Path).

    ``rows`` is the conversation, as far back as the ``window`` reaches. What stood in it before depth ``begun``, the
    question apart, is history, of which the window leaves a part; what came after is the turn's own.
    """
    system = [Message(role="system", content=prompt)] if prompt else []
    history = within([row for row in rows if row.depth <= begun and row.id != question.id], window)
    own = (row for row in rows if row.depth > begun and row.id != question.id)
    return [*system, *(row.message for row in (*history, question, *own))]


def reach(question: str, begun: int, window: ContextWindow | None) -> Callable[[Row], bool]:
    """Tells of each row, from the last one back, whether a window leaves nothing of what stands before it."""
    if window is None or window.keep_first:
        return lambda _: False
    limit, used = _limit(window), 0

    def enough(row: Row) -> bool:
        nonlocal used
        if row.depth <= begun and row.id != question:
            used += _weight([row], window)
        return used > limit and row.message.role != "tool"

    return enough


def within(rows: Sequence[Row], window: ContextWindow | None) -> list[Row]:
    """The part of a history that a window leaves; a tool's answers stay with the message that called for them."""
    if window is None:
        return [*rows]
    units = _units(rows)
    first = _first(units, window.keep_first)
    kept: list[list[Row]] = []
    used = sum(_weight(unit, window) for unit in units[:first])
    limit = _limit(window)
    for unit in reversed(units[first:]):
        used += _weight(unit, window)
        if used > limit:
            break
        kept.append(unit)
    return [row for unit in (*units[:first], *reversed(kept)) for row in unit]


def _units(rows: Sequence[Row]) -> list[list[Row]]:
    units: list[list[Row]] = []
    for row in rows:
        if row.message.role == "tool" and units:
            units[-1].append(row)
        else:
            units.append([row])
    return units


def _first(units: list[list[Row]], messages: int) -> int:
    """How many units hold the first messages."""
    count = held = 0
    while held < messages and count < len(units):
        held += len(units[count])
        count += 1
    return count


def _limit(window: ContextWindow) -> int:
    return window.max_messages or (window.max_tokens or 0) * CHARACTERS


def _weight(unit: list[Row], window: ContextWindow) -> int:
    return len(unit) if window.max_messages else sum(row.message.weight for row in unit)
