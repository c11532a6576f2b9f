"""Teams of all strategies whose processes are killed end as if nothing had been, and nothing secret stands anywhere."""

from itertools import chain

import pytest

from tests.chaos.death import play

BLOWS = [("in the call", "worker"), ("answer kept, not acknowledged", "both")]


@pytest.mark.timeout(120)
async def test_teams_of_all_strategies_survive_the_death_of_what_carries_them() -> None:
    blows, leaks = await play(2, BLOWS)
    assert [*chain(*(blow.wrong for blow in blows))] == []
    assert blows[1].hit == 7, "the answers of all seven were kept, and none was acknowledged"
    assert blows[1].repeated == 0, "no answered call was repeated"
    assert (leaks["secrets used"], leaks["leaks"]) == (2, [])
    assert leaks["searched"]["histories"] == 21
