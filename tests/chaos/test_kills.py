"""Teams of all strategies whose processes are killed end as undisturbed ones do, and no secret leaks."""

from itertools import chain

import pytest

from tests.chaos.kills import run_kills

KILLS = [("in the call", "worker"), ("reply written, not acknowledged", "both")]


@pytest.mark.timeout(900)  # the storm itself reports what is stuck earlier
async def test_teams_of_all_strategies_survive_the_death_of_what_carries_them() -> None:
    kills, leaks = await run_kills(2, KILLS)
    assert [*chain(*(kill.wrong for kill in kills))] == []
    assert kills[1].hit >= 3, "the replies of some were written, and not acknowledged"
    assert kills[1].repeated == 0, "no answered call was repeated"
    assert (leaks["secrets used"], leaks["leaks"]) == (2, [])
    assert leaks["searched"]["histories"] == 36
