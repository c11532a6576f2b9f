"""A workflow in a module that also has the fake runs of its tests: the SDK's sandbox loads both."""

from temporalio import workflow

import baton.workflow
from baton.testing import fake_runs

FAKE = fake_runs({"claims": "paid"})


@workflow.defn
class TestedClaim:
    """Asks a team."""

    __test__ = False  # pytest takes it for tests

    @workflow.run
    async def run(self, text: str) -> str:
        return await baton.workflow.run_team("claims", text)
