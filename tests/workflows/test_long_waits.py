"""Tests of calls that wait for a person while the runs around them become so long that they have to continue as new."""

from baton.contracts.status import Status
from tests.harness.continued_runs import continued_runs
from tests.harness.environment import Environment, agent, line, team
from tests.harness.tool_server import ToolServer
from tests.workflows.test_approval import BUY, approve, pending, tool, waiting_run

SIGNALS = 60
"""More than the 50 events after which a run continues as new on the server of these tests."""


async def lengthen(env: Environment, id_: str) -> None:
    """Makes a run long, and waits until it has read that."""
    handle = env.client.get_workflow_handle(id_)
    for number in range(SIGNALS):
        await handle.signal("session", {"n": number})
    await handle.query("status")


async def test_a_parallel_team_that_is_long_waits_for_the_yes_before_it_continues_as_new(
    env_with_short_histories: Environment, tool_server: ToolServer
) -> None:
    env = env_with_short_histories
    env.script(line("buyer", BUY, "Bought."), line("other", "Ready."), line("third", "Ready as well."))
    team_of = team("team", "buyer", "other", "third", strategy="parallel", maxConcurrency=2)
    members = [agent("buyer", "buy"), agent("other"), agent("third")]
    handle = await env.start_team([team_of, *members, tool(tool_server, {})])
    (asked,) = await pending(handle)
    await lengthen(env, handle.id)
    assert await pending(handle) == (asked,)
    assert len(await continued_runs(env, handle)) == 1
    await approve(env.client.get_workflow_handle(handle.id), asked)
    turn = await env.turn_result(handle)
    assert [each.path for each in tool_server.seen] == ["/buy?item=pen"]
    assert sorted(turn.message.split("\n\n")) == ["buyer:\nBought.", "other:\nReady.", "third:\nReady as well."]
    assert turn.usage.tool_calls == 1


async def test_a_tool_that_is_a_long_querys_target_waits_in_the_run_in_which_it_began(
    env_with_short_histories: Environment, tool_server: ToolServer
) -> None:
    env = env_with_short_histories
    handle = await env.start_query([tool(tool_server, {})], "tool/buy", input='{"item": "pen"}')
    (asked,) = await pending(await waiting_run(env, handle.id))
    await lengthen(env, handle.id)
    status: Status = await handle.query("status", result_type=Status)
    assert (status.phase, status.waiting_runs) == ("InputRequired", None)
    assert len(await continued_runs(env, handle)) == 1
    await approve(handle, asked)
    assert (await env.status(handle)).phase == "Completed"
    assert [each.path for each in tool_server.seen] == ["/buy?item=pen"]
