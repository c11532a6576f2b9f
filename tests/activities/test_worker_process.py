"""The workers of a process run and end together."""

import asyncio

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from baton.activities.runtime.worker_process import run_all


@activity.defn
async def noop() -> None:
    """Does nothing."""


@pytest.mark.full
async def test_a_worker_that_ends_by_itself_ends_the_block_with_its_error_and_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    other = await Client.connect(client.service_client.config.target_host, namespace="no-such-namespace")
    workers = [Worker(each, task_queue=queue, activities=[noop]) for each, queue in ((client, "good"), (other, "bad"))]
    with pytest.raises(RuntimeError, match="no-such-namespace"):
        async with run_all(workers, 1):
            await asyncio.Event().wait()
    assert "the worker of the task queue bad stopped unexpectedly" in caplog.text
    assert "task queue good" not in caplog.text
