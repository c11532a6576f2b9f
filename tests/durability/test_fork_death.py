"""Workers that are killed while a run is forked: the fork goes on, and no call is paid for twice."""

import json
import uuid
from collections import Counter
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.contracts.status import Status
from baton.starter.history.fork import ForkChanges, fork_run
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request, ScriptedModel
from tests.harness.environment import KEY, agent, team
from tests.harness.killable import wait_until
from tests.harness.processes import WorkerProcess, process_env

MANIFESTS = [
    *(agent(name) for name in ("a", "b", "c", "d")),
    team("inner", "b", "c", strategy="sequential"),
    team("team", "a", "inner", "d", strategy="sequential"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("at", "remaining", "moment"), [("1", 3, 1), ("2/1", 2, 1), ("0", 4, 2)])
async def test_a_fork_whose_worker_is_killed_pays_for_no_call_twice(
    client: Client, server: EmbeddedServer, tmp_path: Path, at: str, remaining: int, moment: int
) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(json.dumps(request["messages"]))
        return Reply(text=f"{request['messages'][0]['content']} {len(request['messages'])}", delay=0.3)

    model = ScriptedModel(answer)
    with model.serve() as url:
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_HOME": str(tmp_path), "BATON_TASK_QUEUE": uuid.uuid4().hex}
        worker = WorkerProcess(process_env(**where, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY), tmp_path / "worker.log")
        worker.start()
        first = await client.start_workflow(
            "query",
            {"spec": {"input": "Why?", "team": {"name": "team"}}, "resources": MANIFESTS},
            id=f"first-{uuid.uuid4().hex[:8]}",
            task_queue=worker.task_queue,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
        )
        original = Status.model_validate_json(json.dumps(await first.result()))
        before = Counter(asked)
        asked.clear()
        forked = await fork_run(client, first, at, ForkChanges())
        worker.kill()  # it may be reading the forked run, or on a busy machine have made its first call
        sent = len(asked)
        worker.start()
        await wait_until(lambda: len(asked) >= moment)
        worker.kill()  # a call is in flight
        worker.start()
        status = Status.model_validate_json(json.dumps(await forked.result()))
        await worker.stop()
    assert status.message == original.message
    assert status.token_usage == original.token_usage
    again = Counter(asked)
    assert {*again} <= {*before}, "only calls of the forked run"
    assert len(again) == remaining
    assert again.total() <= remaining + 1 + sent, "only a call that a killed worker had sent may be sent again"
