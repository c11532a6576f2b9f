"""Priority and fairness: a query's labels set them, and child runs and all their calls inherit them."""

import asyncio
import dataclasses
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Priority
from temporalio.client import Client
from temporalio.common import Priority as Given

from baton import worker
from baton.resources.loader import Loaded
from baton.testing import Reply, Request
from tests.harness.environment import Environment, Handle, Json, agent, manifest, team
from tests.replay.scenarios import TRIO, trio

TEAMS = [
    team("inner", "brainstormer", "critic", strategy="sequential"),
    team("team", "inner", "brainstormer", strategy="sequential"),
]


async def ask(env: Environment, labels: dict[str, str], **options: Any) -> Handle:
    """Runs a query to a team in which another takes a turn; the query has labels."""
    query = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "team", "name": "team"}]})
    query["metadata"]["labels"] = labels
    handle = await env.start("query", {"name": "q", "resources": [query, *TRIO, *TEAMS]}, **options)
    await env.status(handle)
    return handle


async def begun_with(env: Environment, root: Handle, *below: str) -> list[Priority]:
    """With which priority and fairness key the runs below a root have begun; their calls inherit them."""
    ids = [f"{root.id}/{each}" for each in below]
    histories = [await env.client.get_workflow_handle(each).fetch_history() for each in ids]
    return [each.events[0].workflow_execution_started_event_attributes.priority for each in histories]


BELOW = "target-1/team", "target-1/team/turn-1/inner"


async def test_child_runs_carry_the_priority_and_the_tenant_that_labels_of_the_workers_query_say(
    env: Environment,
) -> None:
    query = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "team", "name": "team"}]})
    query["metadata"]["labels"] = {"baton/priority": "2", "baton/tenant": "acme"}
    async with env.with_manifests([query, *TRIO, *TEAMS]) as other:
        root = await other.start("query", {"name": "q"})
        await other.status(root)
    assert await begun_with(env, root, *BELOW) == 2 * [Priority(priority_key=2, fairness_key="acme", fairness_weight=1)]


def own_priority(root: Handle) -> Priority:
    """That of a run whose tenant is itself."""
    return Priority(priority_key=3, fairness_key=(root.first_execution_run_id or "")[-8:], fairness_weight=1)


async def test_without_labels_each_run_is_a_tenant_of_its_own_with_all_that_it_starts(env: Environment) -> None:
    trio(env)
    root = await ask(env, {})
    assert await begun_with(env, root, *BELOW) == 2 * [own_priority(root)]


@pytest.mark.parametrize("inline", ["all", "no-secrets"])
async def test_a_client_chooses_neither_its_tenant_nor_its_priority(
    client: Client, tmp_path: Path, inline: str
) -> None:
    """Neither by labels of its manifests nor by the priority with which it starts a run."""
    async with Environment.running(client, tmp_path, variables={"BATON_INLINE_MANIFESTS": inline}) as env:
        trio(env)
        given = Given(priority_key=1, fairness_key="ceo", fairness_weight=100)
        root = await ask(env, {"baton/priority": "1", "baton/tenant": "ceo"}, priority=given)
        assert await begun_with(env, root, "target-1/team") == [own_priority(root)]


async def test_a_quota_decides_the_tenant_and_its_share_of_the_workers(env: Environment) -> None:
    quota = manifest("Quota", "share", {"weight": 2.5, "priority": 4})
    query = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "team", "name": "team"}]})
    query["metadata"]["labels"] = {"baton/priority": "1", "baton/tenant": "ceo"}
    async with env.with_manifests([quota, query, *TRIO, *TEAMS]) as other:
        root = await other.start("query", {"name": "q"})
        await other.status(root)
    expected = Priority(priority_key=4, fairness_key="default", fairness_weight=2.5)
    assert await begun_with(env, root, *BELOW) == 2 * [expected]


@pytest.mark.parametrize(
    ("label", "value", "wrong"),
    [
        ("baton/priority", "high", "is not a priority: write '1' (highest) to '5'"),
        ("baton/tenant", "x" * 64, "is not a tenant: write 1 to 63 bytes"),
    ],
)
async def test_a_label_that_makes_no_sense_is_refused(env: Environment, label: str, value: str, wrong: str) -> None:
    failed = await env.status(await ask(env, {label: value}))
    assert failed.failure and failed.failure.type == "InvalidManifest"
    assert f"metadata.labels.{label}: {wrong}" in failed.failure.message


async def test_a_wide_team_does_not_make_a_small_one_wait_until_all_its_members_were_asked(env: Environment) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request["messages"][0]["content"])
        return Reply(text="Yes.", delay=0.1, held=True)

    def crowd(name: str, size: int) -> list[Json]:
        members = [f"{name}-{number}" for number in range(size)]
        return [*map(agent, members), team("team", *members, strategy="parallel")]

    env.answer = answer
    queue = uuid.uuid4().hex
    other = dataclasses.replace(env, task_queue=queue)
    calls = {"BATON_MODEL_TASK_QUEUE": f"{queue}-models", "BATON_MAX_CONCURRENT_ACTIVITIES": "2"}
    async with worker.run_worker(env.client, Loaded(), {**other.worker_env, **calls}):
        wide = await other.start_team(crowd("wide", 50))
        await env.wait_for_calls(2)
        small = await other.start_team(crowd("small", 3))
        while await calls_of_members(env, small) < 3:
            await asyncio.sleep(0.05)
        env.model.release()
        await other.turn_result(small)
        await other.turn_result(wide)
    last = max(number for number, prompt in enumerate(asked, 1) if "small" in prompt)
    print(f"the small team's last call was number {last} of {len(asked)}")
    assert last < 35


async def calls_of_members(env: Environment, run: Handle) -> int:
    """How many calls of models the members of a parallel team wait for."""
    started = [child for child in (await run.describe()).raw_description.pending_children if child.run_id]
    members = [await env.client.get_workflow_handle(child.workflow_id).describe() for child in started]
    calls = [call for member in members for call in member.raw_description.pending_activities]
    return sum(call.activity_type.name == "ask_model" for call in calls)
