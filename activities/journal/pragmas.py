"""Sets SQLite's pragmas on each new connection."""

from typing import Protocol

_PRAGMAS = ("busy_timeout=15000", "journal_mode=WAL", "synchronous=FULL")
"""FULL, because a row that Temporal's history refers to must not be lost in a power failure."""


class _Cursor(Protocol):
    def execute(self, statement: str) -> object: ...
    def close(self) -> None: ...


class _Connection(Protocol):
    def cursor(self) -> _Cursor: ...


def set_pragmas(connection: _Connection, _record: object) -> None:
    """Sets the pragmas: a listener of SQLAlchemy's event ``connect``."""
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
