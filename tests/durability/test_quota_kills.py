"""Twenty tenants with Quotas under a flood, while their worker is killed: none starves, and no Quota is exceeded."""

import asyncio
import contextlib
import sqlite3
import uuid
from collections import Counter
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client, WorkflowFailureError

from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request, ScriptedModel
from tests.harness.environment import KEY, Json, agent, manifest
from tests.harness.killable import wait_until
from tests.harness.processes import WorkerProcess, process_env

TENANTS = [f"team-{number}" for number in range(20)]
RUNS = 4
CALLS = 3


def manifests() -> list[Json]:
    made = [
        one
        for tenant in TENANTS
        for one in (
            agent(tenant),
            manifest(
                "Quota",
                "limits",
                {"maxConcurrentRuns": 2, "perDay": {"modelCalls": CALLS}, "onExceeded": "fail"},
            ),
        )
    ]
    for one, tenant in zip(made, [tenant for tenant in TENANTS for _ in range(2)], strict=True):
        one["metadata"]["namespace"] = tenant
    return made


@pytest.mark.slow
async def test_no_quota_is_exceeded_and_no_tenant_starves_while_the_worker_is_killed(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request["messages"][0]["content"].removeprefix("You are ").removesuffix("."))
        return Reply(text="Yes.", delay=0.3)

    file = tmp_path / "tenants.yaml"
    file.write_text(yaml.safe_dump_all(manifests()))
    model = ScriptedModel(answer)
    with model.serve() as url:
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_HOME": str(tmp_path), "BATON_TASK_QUEUE": uuid.uuid4().hex}
        env = process_env(**where, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
        worker = WorkerProcess(env, tmp_path / "worker.log", file)
        worker.start()
        handles = [
            await client.start_workflow(
                "query",
                {"namespace": tenant, "spec": {"input": "Why?", "target": {"type": "agent", "name": tenant}}},
                id=f"{tenant}-{uuid.uuid4().hex[:8]}",
                task_queue=worker.task_queue,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
            )
            for _ in range(RUNS)
            for tenant in TENANTS
        ]

        async def end_of_all() -> None:
            for handle in handles:
                with contextlib.suppress(WorkflowFailureError):  # the quota of its tenant is used up
                    await handle.result()

        ended = asyncio.create_task(end_of_all())
        for moment in (5, 20, 35):
            await wait_until(lambda moment=moment: len(asked) >= moment or ended.done())  # type: ignore[misc]
            worker.kill()
            worker.start()
        await ended
        await worker.stop()
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as database:
        query = "select tenant, model_calls from baton_quota_accounts where period = 'day'"
        charged = dict(database.execute(query).fetchall())
    sent = Counter(asked)
    assert {tenant: charged[tenant] for tenant in TENANTS} == dict.fromkeys(TENANTS, CALLS), "none starves"
    assert all(0 < sent[tenant] <= CALLS for tenant in TENANTS), sent
