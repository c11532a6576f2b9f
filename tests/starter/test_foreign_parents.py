"""Runs that workflows of another application have started: they are found like those that clients have started."""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from baton import worker
from baton.contracts.settings import SettingsError
from baton.observability import metrics
from baton.resources.strategies import OWN_WORKFLOWS
from baton.starter.runs.decisions import all_pending_decisions
from baton.starter.runs.listing import open_runs, recent_runs
from baton.workflows.registry import WORKFLOWS
from tests.harness.environment import Environment, Handle, agent, call, line, manifest, team
from tests.harness.event_streams import check_stream, check_text, read_events
from tests.harness.metrics import Recorded, watching_runs
from tests.starter.test_live_text import WORDS, count_pieces, most_by_heartbeats, read_live

ORDER = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {}})

QUERY = {
    "name": "claim",
    "spec": {"input": "Why?", "targets": [{"type": "team", "name": "desk"}]},
    "resources": [agent("buyer", "order"), agent("shop"), ORDER, team("desk", "buyer", strategy="sequential")],
}


@workflow.defn(name="claim")
class Claim:
    """A workflow of another application. It starts a query of Baton, through ``depth`` children of its own."""

    @workflow.run
    async def run(self, queue: str, depth: int) -> Any:
        own = workflow.info().workflow_id
        if depth:
            return await workflow.execute_child_workflow("claim", args=[queue, depth - 1], id=f"{own}/{depth}")
        return await workflow.execute_child_workflow("query", QUERY, id=f"{own}/query", task_queue=queue)


@contextlib.asynccontextmanager
async def claims(env: Environment, depth: int) -> AsyncIterator[tuple[Handle, Handle]]:
    """A claim and its query, so many levels below."""
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    async with Worker(env.client, task_queue=queue, workflows=[Claim], workflow_runner=UnsandboxedWorkflowRunner()):
        claim = await env.client.start_workflow("claim", args=[env.task_queue, depth], id=queue, task_queue=queue)
        below = "".join(f"/{level}" for level in range(depth, 0, -1))
        yield claim, env.client.get_workflow_handle(f"{queue}{below}/query")


@contextlib.asynccontextmanager
async def open_claim(env: Environment) -> AsyncIterator[Handle]:
    """A claim whose query, three levels below, waits for an approval; it is canceled at the end of the block."""
    async with claims(env, 2) as (claim, query):
        await env.find_runs("BatonPhase = 'InputRequired'", 2)
        yield query
        await query.signal("cancel")
        with contextlib.suppress(Exception):
            await claim.result()


@pytest.mark.full
async def test_live_text_of_a_run_below_another_application_arrives_piece_by_piece(env: Environment) -> None:
    env.script(line("buyer", {"text": WORDS, "pause": 0.15}))
    async with claims(env, 1) as (claim, query):
        while not await exists(query):
            await asyncio.sleep(0.02)
        events = await read_live(env, query)
        assert count_pieces(events) > most_by_heartbeats(events)
        check_text(events)
        check_stream(events, await read_events(query, env.client))
        await claim.result()


async def exists(run: Handle) -> bool:
    """Whether Temporal has the run."""
    try:
        await run.describe()
    except RPCError as error:
        assert error.status == RPCStatusCode.NOT_FOUND
        return False
    return True


@pytest.mark.full
async def test_a_run_below_three_workflows_of_another_application_is_listed_counted_and_waits_for_approval(
    env: Environment,
) -> None:
    env.script(line("buyer", call("order", input="12 desks"), "Ordered."), line("shop", "Confirmed."))
    async with open_claim(env) as query:
        (listed,) = await recent_runs(env.client, None, 10, env.task_queue)
        everywhere = [run.id for run in await recent_runs(env.client, None, 100)]
        assert query.id in everywhere and query.id.removesuffix("/query") not in everywhere
        assert query.id in [root for root, _ in (await all_pending_decisions(env.client)).decisions]
        assert (listed.id, listed.state, listed.parent) == (query.id, "InputRequired", query.id.removesuffix("/query"))
        found = await all_pending_decisions(env.client, queue=env.task_queue)
        assert [(root, decision.tool) for root, decision in found.decisions] == [(query.id, "order")]
        assert query.id in await open_runs(env.client, limit=100)
        recorded = Recorded()
        async with watching_runs(env.client, env.task_queue):
            while not (counted := recorded.of(metrics.RUNS_WAITING)):
                await asyncio.sleep(0.02)
        assert counted == {("InputRequired",): 1}


async def test_a_worker_with_another_journal_than_such_a_run_refuses_to_start(env: Environment, tmp_path: Path) -> None:
    env.script(line("buyer", call("order", input="12 desks"), "Ordered."), line("shop", "Confirmed."))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    other = dataclasses.replace(env, folder=elsewhere)
    async with open_claim(env) as query:
        with pytest.raises(SettingsError, match=f"the open run {query.id} was started with the journal"):
            async with worker.run_worker(env.client, env.catalog, other.worker_env):
                pass


def test_all_workflow_types_but_that_of_deletions_are_found_as_runs() -> None:
    types = {workflow._Definition.must_from_class(each).name for each in WORKFLOWS}
    assert types == OWN_WORKFLOWS
