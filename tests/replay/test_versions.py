"""Worker versions: a run stays on the version it started with, and new runs start on the current one."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import WorkflowHistory
from temporalio.service import RPCError

from baton import worker
from baton.resources.loader import Loaded
from baton.temporal.client import connect
from baton.testing import Reply, Request
from tests.harness.continued_runs import continued_runs
from tests.harness.environment import Environment, Handle, agent, team

pytestmark = pytest.mark.full

TEAM = [agent("one"), agent("two"), team("team", "one", "two", strategy="sequential")]


@contextlib.asynccontextmanager
async def version(env: Environment, deployment: str, build: str) -> AsyncIterator[None]:
    """A worker of a version, with a connection of its own, on the deployment's task queue."""
    given = {"BATON_TASK_QUEUE": deployment, "BATON_DEPLOYMENT": deployment, "BATON_BUILD_ID": build}
    client = await connect(env.client.service_client.config.target_host)
    async with worker.run_worker(client, Loaded(), {**env.worker_env, **given}):
        yield


async def make_current(env: Environment, deployment: str, build: str) -> None:
    """Sends new runs to a version, as soon as the server knows of it."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace="default", deployment_name=deployment, build_id=build, identity="test"
    )
    while True:
        with contextlib.suppress(RPCError):
            await env.client.workflow_service.set_worker_deployment_current_version(request, retry=True)
            return
        await asyncio.sleep(0.1)


async def start(env: Environment, deployment: str) -> Handle:
    """Starts a run on the deployment's task queue."""
    spec = {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}
    given = {"name": "q", "spec": spec, "resources": TEAM}
    return await env.client.start_workflow("query", given, id=uuid.uuid4().hex, task_queue=deployment)


async def run_on(env: Environment, deployment: str, build: str) -> Handle:
    """Runs until one has run on a version: the server tells its task queues of it a moment after it is current.

    Whether the server has told them all can't be read: what it says of that sometimes stays "in progress" for good.
    """
    while True:
        handle = await start(env, deployment)
        await env.status(handle)
        if build in await versions_of(env, handle):
            return handle


async def versions_of(env: Environment, root: Handle) -> set[str]:
    """The versions on which a run and its child run have taken their steps."""
    child = env.client.get_workflow_handle(f"{root.id}/target-1/team")
    return steps_of(await root.fetch_history()) | steps_of(await child.fetch_history())


def steps_of(history: WorkflowHistory) -> set[str]:
    """The versions on which a run has taken its steps."""
    steps = [each for each in history.events if each.HasField("workflow_task_completed_event_attributes")]
    return {each.workflow_task_completed_event_attributes.deployment_version.build_id for each in steps}


async def test_a_run_stays_on_its_version_while_new_ones_go_to_the_next_and_back_again(env: Environment) -> None:
    deployment, slow = f"baton-{uuid.uuid4().hex[:8]}", True

    def answer(request: Request) -> Reply:
        return Reply(text="Yes.", delay=3 if slow else 0)

    env.answer = answer
    async with version(env, deployment, "v1"), version(env, deployment, "v2"):
        await make_current(env, deployment, "v1")
        old = await start(env, deployment)
        await env.wait_for_calls(1)
        slow = False
        await make_current(env, deployment, "v2")
        new = await run_on(env, deployment, "v2")
        await make_current(env, deployment, "v1")
        rolled_back = await run_on(env, deployment, "v1")
        await env.status(old)
    assert [await versions_of(env, each) for each in (old, new, rolled_back)] == [{"v1"}, {"v2"}, {"v1"}]


@pytest.mark.slow
async def test_a_long_run_goes_over_to_the_current_version_where_it_goes_on_in_a_new_run(
    env_with_short_histories: Environment,
) -> None:
    deployment = f"baton-{uuid.uuid4().hex[:8]}"
    env_with_short_histories.answer = lambda _: Reply(text="…", delay=0.2)
    long = team("team", "one", "two", maxTurns=12, onMaxTurns="complete")
    given = {"team": "team", "input": "Why?", "resources": [*TEAM[:2], long]}
    async with version(env_with_short_histories, deployment, "v1"), version(env_with_short_histories, deployment, "v2"):
        await make_current(env_with_short_histories, deployment, "v1")
        handle = await env_with_short_histories.client.start_workflow(
            "round-robin", given, id=uuid.uuid4().hex, task_queue=deployment
        )
        await env_with_short_histories.wait_for_calls(2)
        await make_current(env_with_short_histories, deployment, "v2")
        assert (await env_with_short_histories.turn_result(handle)).turns == 24
    steps = [steps_of(history) for history in await continued_runs(env_with_short_histories, handle)]
    assert (steps[0], steps[-1]) == ({"v1"}, {"v2"})
    assert sorted(steps, key=str) == steps, "each run stays on its version, and none goes back"
