"""Conditions, schemas and answers that a grammar makes hold nobody up, and end in words."""

from tests.chaos import hostile
from tests.chaos.report import Report

HELD = 200
"""Milliseconds for which the event loop may be held: threads of the process count, such as that of a server."""


class _Rows(Report):
    def __init__(self) -> None:
        super().__init__("none", {})

    @property
    def rows(self) -> list[dict[str, object]]:
        return self._rows


async def test_what_a_grammar_makes_to_stop_a_worker_does_not() -> None:
    rows = _Rows()
    await hostile.by_grammar(rows, 3)
    assert [row["end"] for row in rows.rows] == ["none failed"] * 3
    assert all(isinstance(held := row["held, ms"], int) and held < HELD for row in rows.rows)
