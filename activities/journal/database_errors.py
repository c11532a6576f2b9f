"""The errors of a journal's database: which of them may pass by themselves, and which refuse the statement itself."""

import sqlite3
from collections.abc import Awaitable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError, StatementError

from ...conversation.errors import JournalUnavailable

T = TypeVar("T")

REFUSED_STATES = frozenset({"0A", "21", "22", "23", "42", "54"})
"""Classes of PostgreSQL's SQLSTATE for wrong statements, wrong values, missing tables and missing privileges."""

REFUSED_CODES = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
    }
)
"""The same of SQLite."""


async def translated(result: Awaitable[T]) -> T:
    """The same result; raises JournalUnavailable for a database's error, not retryable if it refuses the statement."""
    try:
        return await result
    except (SQLAlchemyError, OSError) as error:
        if _is_refused(error):
            raise JournalUnavailable(f"the journal refuses a statement: {_reason(error)}", retryable=False) from None
        raise JournalUnavailable(f"the journal can't be reached: {_reason(error)}") from None


def _is_refused(error: Exception) -> bool:
    """Whether the statement or a value in it is wrong. All else may pass: a lost connection, a lock, a full disk."""
    if not isinstance(error, StatementError) or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return False
    reason = error.orig
    state, code = getattr(reason, "sqlstate", None), getattr(reason, "sqlite_errorcode", None)
    if state is not None:
        return str(state)[:2] in REFUSED_STATES
    if code is not None:
        return code % 256 in REFUSED_CODES  # the lowest byte is the primary code
    is_value = isinstance(reason, ValueError) or isinstance(reason and reason.__cause__, ValueError)
    return is_value or not isinstance(error, OperationalError | InterfaceError)


def _reason(error: Exception) -> str:
    """The first line of an error: PostgreSQL puts the values of the row into the second."""
    reason = error.orig if isinstance(error, DBAPIError) else error
    return str(reason).partition("\n")[0] or type(reason).__name__
