"""The context window: which messages of a conversation are sent to a model, and in which order."""

from collections.abc import Callable, Sequence

from ...contracts.message import Message
from ...contracts.text import BYTES_PER_TOKEN
from ...journal.rows import Row
from ...resources.manifest import ContextWindow

SUMMARY = "Summary of the earlier conversation:"
"""The first line of a message with a summary."""


def model_messages(
    prompt: str | None, rows: Sequence[Row], question: Row, begun: int, window: ContextWindow | None = None
) -> list[Message]:
    """The messages of one model call: system prompt, history, question, then the turn's own messages.

    ``rows`` is the conversation, at least as far back as the ``window`` reaches. Its rows up to depth ``begun`` are the
    history, without the question; the window selects a part of it. Later rows are the turn's own. Rows before the
    question belong to earlier queries of the conversation. (ARK: agent execution, local execution)
    """
    system = [Message(role="system", content=prompt)] if prompt else []
    summary, history = history_within(rows, question.id, begun, window)
    turn_rows = (row for row in rows if row.depth > begun and row.id != question.id and row.message.summarizes is None)
    history_messages = (
        row.message if row.depth >= question.depth else row.message.without_placeholders for row in history
    )
    return [*system, *summary, *history_messages, *(row.message for row in (question, *turn_rows))]


def past_rows(rows: Sequence[Row], question: str, begun: int) -> list[Row]:
    """The history of a turn: the rows up to depth ``begun`` without the question, and without summaries."""
    return [row for row in rows if row.depth <= begun and row.id != question and row.message.summarizes is None]


def history_within(
    rows: Sequence[Row], question: str, begun: int, window: ContextWindow | None
) -> tuple[list[Message], list[Row]]:
    """The newest summary as a message, if the window summarizes and there is one, and the selected history."""
    if window is None or not window.summarize:
        return [], apply_window(past_rows(rows, question, begun), window)
    summary, history = summarized(rows, question, begun)
    messages = [Message(role="user", content=f"{SUMMARY}\n{summary.message.content}")] if summary else []
    return messages, unsummarized(history, window)


def unsummarized(history: Sequence[Row], window: ContextWindow) -> list[Row]:
    """The part of a history after the newest summary that is sent to the model.

    All of it, unless it exceeds the limit for a new summary: then only the latest messages, as after that summary.
    """
    if _size(history, window) <= window.summary_limit * BYTES_PER_TOKEN:
        return [*history]
    return apply_window(history, window)


def summarized(rows: Sequence[Row], question: str, begun: int) -> tuple[Row | None, list[Row]]:
    """The newest summary, if there is one, and the history after the rows that it summarizes."""
    summary = next((row for row in reversed(rows) if row.message.summarizes is not None), None)
    depth = (summary.message.summarizes if summary else None) or 0
    return summary, [row for row in past_rows(rows, question, begun) if row.depth > depth]


def summary_end() -> Callable[[Row], bool]:
    """A predicate for reading backwards: whether all rows before this one are summarized."""
    depth: int | None = None

    def enough(row: Row) -> bool:
        nonlocal depth
        depth = row.message.summarizes if depth is None else depth
        return depth is not None and row.depth <= depth + 1

    return enough


def window_end(question: str, begun: int, window: ContextWindow | None) -> Callable[[Row], bool]:
    """A predicate for reading backwards: whether the window selects no row before this one."""
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
    """The part of a history that a window selects. A tool's results are never separated from the call's message."""
    if window is None:
        return [*rows]
    units = _units(rows)
    first = _first(units, window.keep_first)
    latest: list[list[Row]] = []
    used = sum(_size(unit, window) for unit in units[:first])
    limit = _limit(window)
    for unit in reversed(units[first:]):
        used += _size(unit, window)
        if used > limit:
            break
        latest.append(unit)
    return [row for unit in (*units[:first], *reversed(latest)) for row in unit]


def _units(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in groups that are selected or omitted as a whole."""
    units: list[list[Row]] = []
    for row in rows:
        if row.message.role == "tool" and units:
            units[-1].append(row)
        else:
            units.append([row])
    return units


def _first(units: list[list[Row]], messages: int) -> int:
    """The number of units that contain the first ``messages`` messages."""
    count = 0
    covered = 0
    while covered < messages and count < len(units):
        covered += len(units[count])
        count += 1
    return count


def _limit(window: ContextWindow) -> int:
    return window.max_messages or (window.max_tokens or 0) * BYTES_PER_TOKEN


def _size(unit: Sequence[Row], window: ContextWindow) -> int:
    return len(unit) if window.max_messages else sum(row.message.byte_size for row in unit)
