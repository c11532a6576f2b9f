"""Helpers for runs that continue as new: their histories in order, and a model that counts its replies."""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from baton import worker
from baton.testing import Reply, Request
from tests.harness.environment import Environment, Handle, Json

BOUND = 150
"""Events that a run may have at most on a server where runs continue as new after 50: one more step is allowed."""


def count_replies(request: Request) -> Reply:
    """A model that replies with the number of its reply."""
    return Reply(text=str(sum(message["role"] == "assistant" for message in request["messages"]) + 1))


async def continued_runs(env: Environment, handle: Handle) -> list[WorkflowHistory]:
    """The histories of a run and of the runs in which it was continued, in order."""
    histories = []
    run_id = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
    while run_id:
        history = await env.client.get_workflow_handle(handle.id, run_id=run_id).fetch_history()
        histories.append(history)
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return histories


async def check_continued(env: Environment, handle: Handle, at_least: int = 3) -> list[WorkflowHistory]:
    """Checks that the run was continued several times and that each history is short; its histories."""
    histories = await continued_runs(env, handle)
    assert len(histories) >= at_least
    assert max(len(history.events) for history in histories) <= BOUND
    return histories


def numbers(upto: int) -> list[str]:
    """The replies of ``count_replies``, from 1."""
    return [str(number) for number in range(1, upto + 1)]


@workflow.defn(name="relay")
class Relay:
    """Continues as new as a run of Baton: a client can't pass the state of one."""

    @workflow.run
    async def run(self, workflow_type: str, run_input: Json, queue: str) -> None:
        """Continues as a workflow of another type, on another queue."""
        run_input["carried"]["firstRun"] = workflow.info().first_execution_run_id
        workflow.continue_as_new(args=[run_input], workflow=workflow_type, task_queue=queue)


@contextlib.asynccontextmanager
async def continued(
    env: Environment, workflow_type: str, run_input: Json, signal: str, *payload: Json
) -> AsyncIterator[Handle]:
    """A run that continues another one, and finds a signal in its first step."""
    own_env = dataclasses.replace(env, task_queue=f"{env.task_queue}-{uuid.uuid4().hex[:8]}")
    queue = f"{own_env.task_queue}-relay"
    async with Worker(env.client, task_queue=queue, workflows=[Relay], workflow_runner=UnsandboxedWorkflowRunner()):
        arguments = [workflow_type, run_input, own_env.task_queue]
        started = await env.client.start_workflow("relay", args=arguments, id=queue, task_queue=queue)
        while (await (handle := env.client.get_workflow_handle(started.id)).describe()).workflow_type == "relay":
            await asyncio.sleep(0.05)
        await handle.signal(signal, *payload)
    async with worker.run_worker(env.client, env.catalog, own_env.worker_env):
        yield handle
