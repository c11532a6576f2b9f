"""Queries with budgets survive kills: no budget is exceeded, no call is charged twice, no conversation loses a word."""

import pytest

from tests.chaos.budget_kills import run_storms


@pytest.mark.slow
@pytest.mark.timeout(900)  # the storm itself reports what is stuck earlier
async def test_budgets_and_conversations_hold_when_all_that_carries_them_is_killed() -> None:
    [storm] = await run_storms(1, ["both"], seed=7, kills=1)
    assert storm.wrong == []
    assert (storm.queries, storm.stopped >= 4) == (8, True)
    assert storm.in_flight > 0, "calls were under way at the kills"
