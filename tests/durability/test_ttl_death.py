"""Workers that are killed while what queries have left is deleted: in the end all of it is gone, and nothing else."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from baton.contracts.status import Status
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.executions import run_tree
from baton.testing import Reply
from tests.harness.environment import Handle, agent, team
from tests.harness.killable import KillableWorker

NAMES = [f"m{number}" for number in range(6)]
MANIFESTS = [*map(agent, NAMES), team("inner", *NAMES[:3], strategy="parallel")]
MANIFESTS += [team("team", "inner", *NAMES[3:], strategy="sequential")]
QUERIES = 4


async def left(killable: KillableWorker, handle: Handle) -> int:
    """How many executions of a query Temporal still has."""
    return len(await run_tree(killable.client, handle.id, str(handle.first_execution_run_id)))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.0, 0.9, 1.1])
async def test_a_killed_worker_leaves_nothing_of_queries_whose_ttl_is_over(
    client: Client, server: EmbeddedServer, tmp_path: Path, moment: float
) -> None:
    """By the worker's setting, as the queries have no ``ttl`` but one, which is kept."""
    ready = KillableWorker.ready(client, server.address, tmp_path, lambda _: Reply(text="…"), BATON_QUERY_TTL="1s")
    async with ready as killable:
        spec = {"input": "Why?", "team": {"name": "team"}}
        kept = await killable.start("query", spec={**spec, "ttl": "1h"}, resources=MANIFESTS)
        given = {"spec": spec, "resources": MANIFESTS}
        ids = [f"{kept.id}-{number}" for number in range(QUERIES)]
        handles = [await client.start_workflow("query", given, id=each, task_queue=killable.task_queue) for each in ids]
        for each in [*handles, kept]:
            assert Status.model_validate_json(json.dumps(await each.result())).phase == "Completed"
        await asyncio.sleep(moment)
        killable.restart()
        while any([await left(killable, each) for each in handles]):
            await asyncio.sleep(0.1)
        tree = await run_tree(client, kept.id, str(kept.first_execution_run_id))
        for each in handles:
            with pytest.raises(RPCError, match="not found"):
                await each.query("status")
        with sqlite3.connect(killable.journal) as database:
            writers = {str(row[0]) for row in database.execute("select distinct substr(id, 1, 36) from baton_messages")}
        assert writers == {each.run_id for each in tree if each.type != "expire"}
