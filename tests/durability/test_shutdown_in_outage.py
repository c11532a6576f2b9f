"""A worker that is stopped during an outage ends within its grace time, without a dump, and all of its log is JSON."""

import json
from pathlib import Path

import pytest

from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply
from tests.harness.environment import agent, call, manifest
from tests.harness.killable import MANIFESTS, KillableEnvironment, wait_until
from tests.harness.postgres import PostgresServer

GRACE = 2.0


async def start_runs(env: KillableEnvironment, count: int) -> None:
    """Starts runs, and waits until their models are called."""
    given = {"team": "team", "input": "Why?", "resources": MANIFESTS}
    for number in range(count):
        await env.client.start_workflow(
            "round-robin",
            given,
            id=f"run-{number}",
            task_queue=env.worker.task_queue,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
        )
    await wait_until(lambda: len(env.model.requests) >= count)


async def stop_in_time(env: KillableEnvironment) -> None:
    """Stops the worker: it has to end with exit code 0, and with nothing but JSON on its output.

    With that code it has ended in time: otherwise a thread of it ends it with another one.
    """
    code = await env.worker.stop()
    lines = [json.loads(each) for each in env.worker.log.read_text().splitlines()]
    assert [each["message"] for each in lines if each["level"] == "CRITICAL"] == []
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("outage", ["none", "the models fail", "Temporal is silent", "Temporal is dead", "journal"])
async def test_a_worker_ends_in_time_during_an_outage(tmp_path: Path, postgres: PostgresServer, outage: str) -> None:
    reply = Reply(status=503) if outage == "the models fail" else Reply(text="answer", delay=0.2)
    settings = {"BATON_LOG_FORMAT": "json", "BATON_GRACEFUL_SHUTDOWN": f"{GRACE}"}
    if outage == "journal":
        settings["BATON_JOURNAL_URL"] = await postgres.database()
    async with KillableEnvironment.running(tmp_path, lambda _: reply, **settings) as env:
        await start_runs(env, 10)
        match outage:
            case "Temporal is silent":
                async with env.silent_server():
                    await stop_in_time(env)
            case "Temporal is dead":
                await env.kill_server()
                await stop_in_time(env)
                await env.server.start()
            case "journal":
                with postgres.away():
                    await stop_in_time(env)
            case _:
                await stop_in_time(env)
        env.worker.start()


@pytest.mark.slow
async def test_a_process_that_does_not_stop_in_time_says_what_its_threads_do(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    stuck = {"BATON_FUNCTIONS": "stuck", "PYTHONPATH": str(tmp_path), "BATON_GRACEFUL_SHUTDOWN": "0.1"}
    calls = Reply.model_validate(call("wait"))
    async with KillableEnvironment.running(tmp_path, lambda _: calls, BATON_LOG_FORMAT="json", **stuck) as env:
        waits = manifest("Tool", "wait", {"type": "function", "function": {"name": "wait"}, "inputSchema": {}})
        given = {"agent": "waiter", "input": "Wait!", "resources": [agent("waiter", "wait"), waits]}
        await env.start("agent", given)
        await wait_until((tmp_path / "called").exists)
        assert await env.worker.stop() == 1
        (ended,) = [
            each for each in map(json.loads, env.worker.log.read_text().splitlines()) if each["level"] == "CRITICAL"
        ]
        assert "in never_returns" in ended["stack_info"]
        env.worker.start()


STUCK = """
import pathlib, time, baton

@baton.function
def wait() -> str:
    pathlib.Path(__file__).with_name("called").touch()
    never_returns()

def never_returns():
    while True:
        time.sleep(0.01)
"""
