"""The context window: which messages of a conversation a model gets to read, and in which order."""

from collections.abc import Callable, Sequence

from ...contracts.message import Message
from ...contracts.text import BYTES_PER_TOKEN
from ...journal.rows import Row
from ...resources.manifest import ContextWindow

SUMMARY = "Summary of what was said before:"
"""The heading under which a model reads a summary."""


def model_messages(
    prompt: str | None, rows: Sequence[Row], question: Row, begun: int, window: ContextWindow | None = None
) -> list[Message]:
    """The messages of one model call: system prompt, history, question, then the turn's own messages.

    ``rows`` is the conversation, at least as far back as the ``window`` reaches. Its rows up to depth ``begun`` are the
    history, without the question; the window keeps a part of it. Later rows are the turn's own. What was said before
    the question belongs to other queries of the conversation. (ARK: agent execution, local execution)
    """
    system = [Message(role="system", content=prompt)] if prompt else []
    summary, history = history_within(rows, question.id, begun, window)
    own = (row for row in rows if row.depth > begun and row.id != question.id and row.message.summarizes is None)
    said = (row.message if row.depth >= question.depth else row.message.without_placeholders for row in history)
    return [*system, *summary, *said, *(row.message for row in (question, *own))]


def past_rows(rows: Sequence[Row], question: str, begun: int) -> list[Row]:
    """The history of a turn: the rows up to depth ``begun`` without the question, and without summaries."""
    return [row for row in rows if row.depth <= begun and row.id != question and row.message.summarizes is None]


def history_within(
    rows: Sequence[Row], question: str, begun: int, window: ContextWindow | None
) -> tuple[list[Message], list[Row]]:
    """The newest summary as a model reads it, if the window says so and there is one, and the history that it keeps."""
    if window is None or not window.summarize:
        return [], apply_window(past_rows(rows, question, begun), window)
    summary, history = summarized(rows, question, begun)
    read = [Message(role="user", content=f"{SUMMARY}\n{summary.message.content}")] if summary else []
    return read, unsummarized(history, window)


def unsummarized(history: Sequence[Row], window: ContextWindow) -> list[Row]:
    """What is read of a history after the newest summary.

    All of it, unless it is so long that a summary is to be made: then the latest messages, those that would follow it.
    """
    if _size(history, window) <= window.summary_limit * BYTES_PER_TOKEN:
        return [*history]
    return apply_window(history, window)


def summarized(rows: Sequence[Row], question: str, begun: int) -> tuple[Row | None, list[Row]]:
    """The newest summary, if there is one, and the history after what it sums up."""
    summary = next((row for row in reversed(rows) if row.message.summarizes is not None), None)
    depth = (summary.message.summarizes if summary else None) or 0
    return summary, [row for row in past_rows(rows, question, begun) if row.depth > depth]


def summary_end() -> Callable[[Row], bool]:
    """A function that tells, row by row from the last one back, where the rows begin that no summary sums up."""
    depth: int | None = None

    def enough(row: Row) -> bool:
        nonlocal depth
        depth = row.message.summarizes if depth is None else depth
        return depth is not None and row.depth <= depth + 1

    return enough


def window_end(question: str, begun: int, window: ContextWindow | None) -> Callable[[Row], bool]:
    """A function that tells, row by row from the last one back, whether the window keeps nothing before that row."""
    if window and window.summarize:
        return summary_end()
    if window is None or window.keep_first:
        return lambda _: False
    limit = _limit(window)
    used = 0

    def enough(row: Row) -> bool:
        nonlocal used
        if row.depth <= begun and row.id != question and row.message.summarizes is None:
            used += _size([row], window)
        return used > limit and row.message.role != "tool"

    return enough


def apply_window(rows: Sequence[Row], window: ContextWindow | None) -> list[Row]:
    """The part of a history that a window keeps. A tool's results stay together with the message that called it."""
    if window is None:
        return [*rows]
    units = _units(rows)
    first = _first(units, window.keep_first)
    kept: list[list[Row]] = []
    used = sum(_size(unit, window) for unit in units[:first])
    limit = _limit(window)
    for unit in reversed(units[first:]):
        used += _size(unit, window)
        if used > limit:
            break
        kept.append(unit)
    return [row for unit in (*units[:first], *reversed(kept)) for row in unit]


def _units(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in groups that are kept or left out as a whole."""
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
    return window.max_messages or (window.max_tokens or 0) * BYTES_PER_TOKEN


def _size(unit: Sequence[Row], window: ContextWindow) -> int:
    return len(unit) if window.max_messages else sum(row.message.byte_size for row in unit)
