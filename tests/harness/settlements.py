"""The worker of an application with workflows, which knows nothing of Baton, and the Tool that starts one of them."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.harness.environment import Json, manifest
from tests.harness.payments import SCHEMA


@dataclass
class Settlement:
    """What a workflow with one argument gets."""

    amount: int
    currency: str


@activity.defn
async def book(amount: int) -> str:
    """Declines everything above a thousand."""
    if amount > 1_000:
        raise ApplicationError("the limit is 1000", non_retryable=True)
    return f"booked {amount}"


@workflow.defn(name="settle")
class Settle:
    """Settles a claim by an activity, in as many executions as the currency has letters."""

    @workflow.run
    async def run(self, amount: int, currency: str, executions: int = 0) -> Settlement:
        await workflow.execute_activity(
            book, amount, start_to_close_timeout=timedelta(minutes=1), schedule_to_close_timeout=timedelta(minutes=1)
        )
        if executions < len(currency):
            workflow.continue_as_new(args=[amount, currency, executions + 1])
        return Settlement(amount, currency)


@workflow.defn(name="inspect")
class Inspect:
    """Waits for an adjuster's signal."""

    def __init__(self) -> None:
        self.report = ""

    @workflow.run
    async def run(self, claim: Settlement) -> str:
        await workflow.wait_condition(lambda: bool(self.report))
        return f"{self.report} of {claim.amount}"

    @workflow.signal
    def inspected(self, report: str) -> None:
        """The adjuster's report."""
        self.report = report


@asynccontextmanager
async def settlements(client: Client) -> AsyncIterator[str]:
    """The worker of the application, with a client of its own; its task queue."""
    own = await Client.connect(client.service_client.config.target_host)
    queue = f"settlements-{uuid.uuid4().hex[:8]}"
    runner = UnsandboxedWorkflowRunner()  # the sandbox would import this harness anew
    async with Worker(own, task_queue=queue, workflows=[Settle, Inspect], activities=[book], workflow_runner=runner):
        yield queue


def workflow_tool(queue: str | None, name: str = "settle", kind: str = "settle", /, **spec: Any) -> Json:
    """A Tool that starts a workflow; ``workflow`` has further fields of that."""
    started: Json = {"type": kind, **({"taskQueue": queue} if queue else {}), **spec.pop("workflow", {})}
    return manifest("Tool", name, {"type": "workflow", "inputSchema": SCHEMA, "workflow": started, **spec})
