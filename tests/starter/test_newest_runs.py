"""Tests of which run is the newest: for a Query's name, and in a list."""

import asyncio
import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

import baton
from baton import Agent, Connection, Query
from baton.starter.console.status import print_status
from baton.starter.runs.listing import recent_runs, reset_time
from baton.starter.runs.runs import live_status
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request
from tests.harness.environment import Environment, agent
from tests.harness.resets import reset, reset_points
from tests.starter.test_approvals import temporal
from tests.test_architecture import command

__all__ = ["temporal"]
ONE = Agent("one", prompt="You are one.")
ENDED = "WorkflowType = 'query' AND ExecutionStatus != 'Running'"


def answer(request: Request) -> Reply:
    """The question; one that says so gets no answer."""
    asked = request["messages"][-1]["content"]
    return Reply(text=asked, held="slow" in asked)


@pytest.mark.full
async def test_the_newest_run_is_the_one_that_started_last_also_where_an_older_one_is_open(
    env: Environment, temporal: Connection
) -> None:
    env.answer = answer
    older = await temporal.start(Query("daily", "Be slow.", targets=[ONE]))
    await env.wait_for_calls(1)
    newer = await temporal.start(Query("daily", "Why?", targets=[ONE]))
    await newer.result()
    await env.find_runs(ENDED, 1)
    assert (await temporal.attach("daily")).id == newer.id
    named = await temporal.start(Query("daily", "Why?", targets=[ONE]), id="nightly")
    await named.result()
    await env.find_runs(ENDED, 2)
    assert (await temporal.attach("daily")).id == "nightly"
    listed = [run.id for run in await recent_runs(env.client, None, 2, env.task_queue)]
    assert listed == ["nightly", newer.id]
    assert (await older.status()).is_open
    await older.cancel()


async def test_a_querys_run_is_found_though_its_id_was_used_again(env: Environment, temporal: Connection) -> None:
    env.answer = answer
    for name in ("first-user", "second-user"):
        await (await temporal.start(Query(name, f"I am the {name}.", targets=[ONE]), id="shared")).result()
    await env.find_runs(ENDED, 2)
    found = await temporal.attach("first-user")
    assert (await found.result()).message == "I am the first-user."
    assert [each.text async for each in found] == ["I am the first-user."]
    assert await found.approvals() == []
    assert (await (await temporal.attach("shared")).result()).message == "I am the second-user."
    with pytest.raises(baton.Refused):
        await found.steer("Again.")


@pytest.mark.full
async def test_runs_that_a_program_executes_with_its_functions_are_listed(
    env: Environment, temporal: Connection
) -> None:
    @baton.function
    def look_up(word: str) -> str:
        """Looks a word up."""
        return f"the meaning of {word}"

    env.answer = answer
    run = await temporal.start(Agent("one", prompt="You are one.", tools=[look_up]), input="Be slow.")
    await env.wait_for_calls(1)
    while run.id not in [listed.id for listed in await recent_runs(env.client, None, 20, env.task_queue)]:
        await asyncio.sleep(0.05)
    await run.cancel()


async def test_a_run_that_was_reset_is_listed_once_and_has_the_duration_of_its_new_execution(env: Environment) -> None:
    env.answer = answer
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    await handle.result()
    await env.find_runs("WorkflowType = 'agent' AND ExecutionStatus = 'Completed'", 1)
    first = env.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    (listed,) = await recent_runs(env.client, None, 20, env.task_queue)
    again = await reset(env, first, (await reset_points(first))[0])
    await again.result()
    await env.find_runs("WorkflowType = 'agent' AND ExecutionStatus = 'Completed'", 2)
    (only,) = await recent_runs(env.client, None, 20, env.task_queue)
    described = await again.describe()
    assert listed.end
    assert (only.id, only.state, only.start, only.end) == (
        handle.id,
        "Completed",
        described.start_time,
        described.close_time,
    )
    assert only.start > listed.end
    assert await reset_time(env.client, first) is None
    text = io.StringIO()
    reset_at = await reset_time(env.client, again)
    assert reset_at == described.start_time
    print_status(Console(file=text, width=200), "run", await live_status(env.client, again), reset_at)
    assert re.search(r"\d s since its reset, .* since its start", text.getvalue())


@pytest.mark.full
async def test_a_table_of_runs_is_printed_without_loading_types_of_runs_and_manifests(
    env: Environment, temporal: Connection, server: EmbeddedServer
) -> None:
    env.answer = answer
    started = await temporal.start(Query("quick", "Why?", targets=[ONE]))
    await started.result()
    await env.find_runs(ENDED, 1)
    settings = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": env.task_queue}
    program = f"import os; os.environ.update({settings})\n{command('list', '-o', 'wide')}"
    unneeded = "yaml", "sqlalchemy", "cryptography", "baton.resources.base", "baton.contracts.errors"
    code = f"{program}\nprint(*[name for name in {unneeded} if name in sys.modules])"
    printed = await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", code], cwd="/", text=True)
    _, row, loaded = printed.splitlines()
    assert row.split()[:2] == [started.id, "query"]
    assert "quick" in row.split()
    assert loaded == ""
