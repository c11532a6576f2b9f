"""An application with the plugin whose process is killed: the next process continues its workflows and their teams."""

import asyncio
import uuid
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.testing import Reply, Request, ScriptedModel
from tests.harness.application import serve_in_process
from tests.harness.claims import Claim
from tests.harness.environment import KEY, agent, team
from tests.harness.manifests import Writer
from tests.harness.processes import FORKS


@pytest.mark.slow
async def test_a_claim_whose_application_is_killed_while_its_team_speaks_is_paid_by_the_next_process(
    client: Client, tmp_path: Path
) -> None:
    address = client.service_client.config.target_host
    own = await Client.connect(address)
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    manifests = Writer(tmp_path).file(
        agent("adjuster"), agent("manager"), team("claims", "adjuster", "manager", strategy="sequential")
    )
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(request: Request) -> Reply:
        if "You are adjuster." in str(request["messages"]):
            return Reply(text="Some 300 euros.")
        first = not asked.is_set()
        loop.call_soon_threadsafe(asked.set)
        return Reply(text='{"approved": true, "amount": 300}', delay=30 if first else 0)

    model = ScriptedModel(answer)
    with model.serve() as url:
        settings = {"BATON_HOME": str(tmp_path), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY, "BATON_CALL_LEASE": "2"}
        arguments = (address, queue, manifests, settings)
        first = FORKS.Process(target=serve_in_process, args=arguments, daemon=True)
        first.start()
        handle = await own.start_workflow(Claim.run, "My bicycle was stolen.", id=queue, task_queue=queue)
        await asked.wait()
        first.kill()
        await asyncio.to_thread(first.join)
        second = FORKS.Process(target=serve_in_process, args=arguments, daemon=True)
        second.start()
        assert await handle.result() == "paid 300"
        second.terminate()
        await asyncio.to_thread(second.join)
    by_adjuster = [one for one in model.requests if "You are adjuster." in str(one.body["messages"])]
    assert len(by_adjuster) == 1, "its answer was stored before the kill"
