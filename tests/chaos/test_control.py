"""A short storm of signals and updates on nested runs, with a kill of the worker: nothing is lost or stands still."""

import pytest

from tests.chaos.control import ControlTest, Findings, answer, summary
from tests.chaos.environment import ProcessEnvironment

SHORT = ("agent", "nested round-robin", "nested selector", "parallel teams", "query of all", "query of one")


@pytest.mark.slow
@pytest.mark.parametrize("application", [0, 1], ids=["started-by-a-client", "below-an-application"])
async def test_a_storm_on_nested_runs_loses_no_word_and_leaves_no_run_standing(application: int) -> None:
    async with ProcessEnvironment.running(answer) as env, env.started_by(application):
        tests = ControlTest(env, actions=10)
        runs = [await tests.start(shape, 1) for shape in SHORT]
        await tests.run(runs, seed=7, kills=1)
        found = await Findings.of(env)
    rows = [summary("test", run.shape, [run], found) for run in runs]
    assert sum(each["accepted"] for each in rows) > 10
    assert [(each["shape"], each["stuck"], each["failed"], each["lost"]) for each in rows] == [
        (shape, 0, 0, 0) for shape in SHORT
    ]
