"""Workers for the task queues of models and tools that are frozen: they take calls, and send no heartbeat."""

import asyncio
from datetime import timedelta

from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from baton.contracts.requests import MISSED_HEARTBEATS
from tests.harness.environment import Environment, Json, agent, manifest, team

QUEUE = "frozen-models"
SETTINGS = {"BATON_MODEL_TASK_QUEUE": QUEUE, "BATON_ROLES": "workflows,tools"}
"""The settings of an environment whose own worker calls no models."""

LAST_ATTEMPT = 1 + MISSED_HEARTBEATS
"""The last attempt of a call of ``teams``."""

SETTINGS_OF_FUNCTIONS = {"BATON_TOOL_TASK_QUEUE": "frozen-functions", "BATON_ROLES": "workflows,models"}
"""The settings of an environment whose own worker calls no functions."""


@activity.defn(name="ask_model")
async def ask_model(_: JsonValue) -> None:
    """A call that does not end."""
    await asyncio.Event().wait()


@activity.defn(name="ask_model")
async def fail_and_freeze(_: JsonValue) -> None:
    """A call that is refused until its last attempt, which does not end."""
    if activity.info().attempt < LAST_ATTEMPT:
        raise ApplicationError("refused", type="ModelUnavailable", next_retry_delay=timedelta(milliseconds=1))
    await asyncio.Event().wait()


@activity.defn(name="perform")
async def perform(_: JsonValue) -> None:
    """A call that does not end."""
    await asyncio.Event().wait()


def frozen_worker(env: Environment) -> Worker:
    """The frozen worker."""
    return Worker(env.client, task_queue=env.variables["BATON_MODEL_TASK_QUEUE"], activities=[ask_model])


def failing_worker(env: Environment) -> Worker:
    """The frozen worker whose calls have failed before."""
    return Worker(env.client, task_queue=env.variables["BATON_MODEL_TASK_QUEUE"], activities=[fail_and_freeze])


def frozen_worker_for_functions(env: Environment) -> Worker:
    """The frozen worker for functions that are members."""
    return Worker(env.client, task_queue=env.variables["BATON_TOOL_TASK_QUEUE"], activities=[perform])


def teams(env: Environment) -> list[Json]:
    """The agent ``one`` and nested teams of it. Its calls miss their heartbeats for a minute: twenty-one attempts."""
    retries = {"maximumAttempts": 1, "initialInterval": "10ms", "maximumInterval": "10ms"}
    config = {"openai": {"baseUrl": env.model_url}}
    spec = {"type": "completions", "provider": "openai", "model": "m", "config": config, "retryPolicy": retries}
    return [
        agent("one", modelRef={"name": "slow"}),
        team("inner", "one", strategy="sequential"),
        team("outer", "inner", strategy="sequential"),
        manifest("Model", "slow", spec),
    ]
