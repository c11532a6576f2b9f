"""A worker that is killed while a budget is spent: the budget is neither exceeded nor spent twice."""

import asyncio
import json
import sqlite3
import uuid
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.contracts.status import Status
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, ScriptedModel
from tests.harness.environment import KEY, agent, team
from tests.harness.killable import wait_until
from tests.harness.processes import WorkerProcess, process_env

NAMES = [f"m{number}" for number in range(8)]
MANIFESTS = [
    *map(agent, NAMES),
    team("one", *NAMES[:4], strategy="parallel"),
    team("two", *NAMES[4:], strategy="parallel"),
    team("team", "one", "two", strategy="parallel"),
]
LIMIT = 6


@pytest.mark.slow
@pytest.mark.parametrize("moments", [(1, 4), (2,), (3, 6)])
async def test_a_budget_holds_for_members_that_speak_at_once_while_their_worker_is_killed(
    client: Client, server: EmbeddedServer, tmp_path: Path, moments: tuple[int, ...]
) -> None:
    model = ScriptedModel(lambda _: Reply(text="…", delay=0.3))
    with model.serve() as url:
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_HOME": str(tmp_path), "BATON_TASK_QUEUE": uuid.uuid4().hex}
        worker = WorkerProcess(process_env(**where, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY), tmp_path / "worker.log")
        worker.start()
        spec = {"input": "Why?", "team": {"name": "team"}, "budget": {"modelCalls": LIMIT}}
        handle = await client.start_workflow(
            "query",
            {"spec": spec, "resources": MANIFESTS},
            id=f"budget-{uuid.uuid4().hex[:8]}",
            task_queue=worker.task_queue,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
        )
        result = asyncio.create_task(handle.result())
        for moment in moments:
            # The run may end earlier: a call that was charged before its worker was killed need not have arrived.
            await wait_until(lambda moment=moment: len(model.requests) >= moment or result.done())  # type: ignore[misc]
            worker.kill()
            worker.start()
        status = Status.model_validate_json(json.dumps(await result))
        await worker.stop()
    assert (status.phase, status.stop_reason) == ("Completed", "budget")
    with sqlite3.connect(tmp_path / "journal.db") as database:
        (charged,) = database.execute("select model_calls from baton_accounts").fetchone()
        answers = database.execute("select count(*) from baton_messages where id like '%/reply'").fetchone()[0]
    assert status.token_usage.model_calls == answers
    assert answers <= len(model.requests) <= charged == LIMIT, "what a killed worker has sent is charged, too"
