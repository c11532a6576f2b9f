"""A query with a single agent, model or tool takes that turn in its own run; several targets and teams do not."""

import asyncio

import pytest

from baton.testing import Reply
from tests.harness.continued_runs import continued_runs
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team, texts
from tests.harness.tool_server import Answer, ToolServer


async def runs_of(env: Environment, handle: Handle) -> set[str]:
    """The ids of a run and of all runs below it, as soon as Temporal lists any of them."""
    return {*await env.find_runs(f"RootWorkflowId = '{handle.id}'", 1)}


async def children(handle: Handle) -> int:
    """How many child workflows a run has started."""
    events = (await handle.fetch_history()).events
    return sum(event.HasField("start_child_workflow_execution_initiated_event_attributes") for event in events)


@pytest.mark.parametrize("target", ["agent/one", "model/m", "tool/echo"])
async def test_a_single_agent_model_or_tool_answers_in_the_run_of_its_query(
    env: Environment, tool_server: ToolServer, target: str
) -> None:
    tool_server.answers(Answer("Rome"))
    env.answer = lambda request: Reply(text="Rome")
    config = {"openai": {"baseUrl": {"value": env.model_url}}}
    model = manifest("Model", "m", {"type": "openai", "model": {"value": "gpt"}, "config": config})
    echo = manifest("Tool", "echo", {"type": "http", "http": {"url": tool_server.url, "method": "POST"}})
    handle = await env.start_query([agent("one"), model, echo], target, input='{"city": "?"}')
    status = await env.status(handle)
    (response,) = status.responses
    assert (status.phase, response.run, await children(handle)) == ("Completed", handle.id, 0)
    assert "Rome" in status.message


async def test_a_team_and_several_targets_answer_in_runs_of_their_own(env: Environment) -> None:
    env.answer = lambda request: Reply(text="Rome")
    duo = team("duo", "one", "two", strategy="sequential")
    for targets in (("agent/one", "agent/two"), ("team/duo",)):
        handle = await env.start_query([agent("one"), agent("two"), duo], *targets)
        status = await env.status(handle)
        assert await children(handle) == len(targets)
        assert all(each.run and each.run.startswith(f"{handle.id}/target-") for each in status.responses)


async def test_there_it_is_paused_steered_and_ended(env: Environment) -> None:
    env.script(line("one", {**call("noop"), "held": True}, {**call("noop"), "hang": True}, "Never."))
    handle = await env.start_query([agent("one", "noop")], "agent/one")
    await env.wait_for_calls(1)
    await handle.signal("pause", {"name": "ann"})
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    while (await handle.query("status"))["paused"]["by"] != "ann":
        await asyncio.sleep(0.02)
    env.model.release()
    await handle.signal("resume")
    await env.wait_for_calls(2)
    await handle.signal("terminate_team", {"reason": "enough", "now": True})
    status = await env.status(handle)
    (response,) = status.responses
    assert (status.stop_reason, status.note, response.stop_reason) == ("terminated", "enough", "terminated")
    assert "Be brief." in [message.content for message in response.messages] + [
        str(message["content"]) for request in env.model.requests for message in request.body["messages"]
    ]


@pytest.mark.full
async def test_a_long_turn_goes_on_in_a_new_run_and_its_messages_stand_once(
    env_with_short_histories: Environment,
) -> None:
    env = env_with_short_histories
    rounds = 20
    env.script(line("one", *(call("noop", text=f"step {number}") for number in range(rounds)), "Done."))
    handle = await env.start_query([agent("one", "noop", maxIterations=rounds + 1)], "agent/one", timeout="5m")
    status = await env.status(handle)
    assert (status.phase, status.message) == ("Completed", "Done.")
    assert len(await continued_runs(env, handle)) > 1
    assert await runs_of(env, handle) == {handle.id}
    head = status.responses[0].head
    assert head
    said = [row["content"] for row in env.transcript(head.id) if row["role"] == "assistant"]
    assert said == [*(f"step {number}" for number in range(rounds)), "Done."]
    assert texts(status.responses[0].messages)[-1] == "Done."


async def test_the_budget_of_its_agent_holds_there(env: Environment) -> None:
    env.script(line("one", call("noop"), call("noop"), "Never."))
    one: Json = agent("one", "noop", budget={"modelCalls": 2})
    status = await env.status(await env.start_query([one], "agent/one"))
    assert (status.stop_reason, status.token_usage.model_calls) == ("budget", 2)
    assert len(env.model.requests) == 2
