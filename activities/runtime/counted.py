"""Counts and times a call of a model, a tool, an agent elsewhere, or a function."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Literal

from ...conversation import metrics
from ...conversation.failure import BatonError

CallKind = Literal["model", "tool", "agent", "function"]


class GoesOnLater(Exception):
    """A call ends without an answer, and without an error: with a question to a person."""


@contextlib.contextmanager
def counted(kind: CallKind, name: str) -> Iterator[None]:
    """Counts the call that is made in the block, with its outcome."""
    began, outcome = time.monotonic(), "ok"
    try:
        yield
    except BaseException as error:
        outcome = _outcome(error)
        raise
    finally:
        metrics.CALLS.record(kind=kind, name=name, outcome=outcome)
        metrics.CALL_DURATION.record(time.monotonic() - began, kind=kind, name=name)


def _outcome(error: BaseException) -> str:
    """The type of one of Baton's errors; all others, which are bugs, count as one."""
    if isinstance(error, BatonError):
        return type(error).__name__
    if isinstance(error, asyncio.CancelledError):
        return "canceled"
    return "question" if isinstance(error, GoesOnLater) else "bug"
