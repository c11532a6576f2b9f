"""Measures how long the statements of the journal take."""

import time
from collections.abc import Awaitable
from typing import TypeVar

from ...conversation.errors import JournalUnavailable
from ...conversation.metrics import JOURNAL_DURATION

T = TypeVar("T")


async def timed(operation: str, work: Awaitable[T]) -> T:
    """The result of a statement, whose duration and outcome are recorded."""
    began, outcome = time.monotonic(), "ok"
    try:
        return await work
    except BaseException as error:
        outcome = "unavailable" if isinstance(error, JournalUnavailable) else "error"
        raise
    finally:
        JOURNAL_DURATION.record(time.monotonic() - began, operation=operation, outcome=outcome)
