"""Calls of what is elsewhere survive kills: nothing is lost, and what must not be repeated is not repeated."""

import pytest

from tests.chaos.counterparts import KINDS
from tests.chaos.remote_kills import run_remote_kills


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_calls_of_every_kind_survive_the_death_of_all_that_carries_them_and_of_all_that_is_called() -> None:
    [kill], leaks = await run_remote_kills(1, [("in the calls", "all")], seed=7)
    assert kill.wrong == []
    assert {*kill.outcomes} == {kind.name for kind in KINDS}
    assert len(kill.hit) == len(KINDS)
    assert leaks["leaks"] == []
