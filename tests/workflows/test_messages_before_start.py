"""Signals and updates that arrive before a run's first step apply after its input, also to children not yet started."""

import asyncio
import dataclasses
import json
import uuid

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.service import RPCError

from baton import worker
from tests.harness.continued_runs import continued, continued_runs, count_replies, numbers
from tests.harness.environment import Environment, Handle, Json, agent, line, manifest, team, texts
from tests.harness.tool_server import ToolServer
from tests.replay.scenarios import a_session_changed_meanwhile, resumed_meanwhile

PAIR = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=15)]


async def carried(env_with_short_histories: Environment) -> Json:
    """With what the second run of a team began, as JSON."""
    env_with_short_histories.answer = count_replies
    handle = await env_with_short_histories.start_team(PAIR)
    await env_with_short_histories.turn_result(handle)
    return input_of((await continued_runs(env_with_short_histories, handle))[1])


def input_of(history: WorkflowHistory) -> Json:
    """With what a run began, as JSON."""
    began = history.events[0].workflow_execution_started_event_attributes
    given: Json = json.loads(began.input.payloads[0].data)
    return given


@pytest.mark.full
async def test_a_run_that_was_paused_and_goes_on_heeds_who_lets_it_before_it_begins(
    env_with_short_histories: Environment,
) -> None:
    given = await carried(env_with_short_histories)
    given["carried"]["inbox"] = {"pause": {"since": "2026-01-01T00:00:00Z"}}
    async with continued(env_with_short_histories, "round-robin", given, "resume") as handle:
        turn = await asyncio.wait_for(env_with_short_histories.turn_result(handle), 60)
    assert (turn.stop_reason, texts(turn.messages)[-1]) == ("max_turns", numbers(30)[-1])


@pytest.mark.full
async def test_a_session_keeps_what_is_changed_before_its_run_begins(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    given = await carried(env)
    given["carried"]["session"] = {"rounds": 1, "old": 1}
    changes = {"rounds": 2, "old": None}

    async def check(handle: Handle) -> None:
        assert await handle.execute_update("session", {"x": 3}) == {"rounds": 2, "x": 3}
        await handle.cancel()

    async with continued(env, "round-robin", given, "session", changes) as handle:
        await check(handle)
    new = {"team": "team", "input": "Why?", "resources": PAIR, "session": {"rounds": 1, "old": 1}}
    await check(await env.start("round-robin", new, start_signal="session", start_signal_args=[changes]))


@pytest.mark.full
async def test_a_child_that_takes_time_to_start_is_sent_the_changes_of_its_session_meanwhile(env: Environment) -> None:
    handle = await a_session_changed_meanwhile(env)
    status = await env.status(handle)
    assert (status.phase, len(env.model.requests)) == ("Completed", 2), status.error


async def test_messages_to_a_query_that_never_begins_are_in_the_journal(env: Environment) -> None:
    words = [f"word {number}." for number in range(6)]
    for number, word in enumerate(words):
        target = {"type": "team", "name": "team" if number % 2 else "unknown"}
        given: Json = {"spec": {"input": "Why?", "targets": [target]}, "resources": PAIR}
        handle = await env.start("query", given, start_signal="steer", start_signal_args=[{"text": word}])
        await handle.signal("cancel")
        await env.status(handle)
    assert [word for word in words if word not in [row["content"] for row in env.rows()]] == []


def team_of(env: Environment, handle: Handle) -> Handle:
    """The run of a query's only target."""
    child: Handle = env.client.get_workflow_handle(f"{handle.id}/target-1/team")
    return child


async def is_paused(child: Handle) -> bool:
    """Whether a run has begun, and is paused."""
    try:
        return bool((await child.query("status"))["paused"])
    except RPCError:
        return False


async def test_a_team_below_a_query_that_was_paused_before_it_asks_nobody_until_it_goes_on(env: Environment) -> None:
    env.script(line("one", "1"), line("two", "2"))
    manifests = [agent("one"), agent("two"), team("team", "one", "two", strategy="sequential")]
    asked = {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}
    handle = await env.start("query", {"spec": asked, "resources": manifests}, start_signal="pause")
    child = team_of(env, handle)
    while not await is_paused(child):
        await asyncio.sleep(0.05)
    assert input_of(await child.fetch_history())["pause"]["since"]
    assert not env.model.requests
    await handle.signal("resume")
    assert (await env.status(handle)).phase == "Completed"


@pytest.mark.full
async def test_a_team_below_a_query_goes_on_if_that_was_resumed_while_the_team_was_started(env: Environment) -> None:
    handle = await resumed_meanwhile(env)
    assert (await asyncio.wait_for(env.status(handle), 60)).phase == "Completed"
    assert input_of(await team_of(env, handle).fetch_history())["pause"]["by"] == "Ann"


def order(tool_server: ToolServer) -> list[Json]:
    """A tool whose use has an effect."""
    return [manifest("Tool", "order", {"type": "http", "http": {"url": tool_server.url, "method": "POST"}})]


@pytest.mark.parametrize("workflow", ["query", "tool"])
async def test_a_tool_of_a_run_that_was_canceled_before_its_first_step_is_not_used(
    env: Environment, tool_server: ToolServer, workflow: str
) -> None:
    given: Json = {"tool": "order", "input": "{}", "resources": order(tool_server)}
    if workflow == "query":
        spec = {"input": "{}", "targets": [{"type": "tool", "name": "order"}]}
        given = {"spec": spec, "resources": order(tool_server)}
    handle = await env.start(workflow, given, start_signal="cancel")
    assert (await env.status(handle)).phase == "Canceled"
    other = dataclasses.replace(env, task_queue=uuid.uuid4().hex)
    handle = await other.start(workflow, given)  # no worker is there before the cancellation
    await handle.cancel()
    async with worker.run_worker(env.client, env.catalog, other.worker_env):
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert tool_server.seen == []


@pytest.mark.parametrize("workflow", ["query", "tool"])
async def test_a_tool_of_a_run_that_was_paused_before_its_first_step_waits_for_resume(
    env: Environment, tool_server: ToolServer, workflow: str
) -> None:
    given: Json = {"tool": "order", "input": "{}", "resources": order(tool_server)}
    if workflow == "query":
        spec = {"input": "{}", "targets": [{"type": "tool", "name": "order"}]}
        given = {"spec": spec, "resources": order(tool_server)}
    handle = await env.start(workflow, given, start_signal="pause")
    await env.find_runs(f"WorkflowId = '{handle.id}' AND BatonPhase = 'Paused'", 1)
    await asyncio.sleep(0.3)
    assert tool_server.seen == []
    await handle.signal("resume")
    assert (await env.status(handle)).phase == "Completed"
    assert len(tool_server.seen) == 1
