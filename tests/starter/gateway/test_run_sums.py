"""What the members of a run have used, and the tree of its forks, over HTTP: of the whole run, however long it is."""

import asyncio

import pytest

from tests.harness.continued_runs import count_replies
from tests.harness.environment import Environment, Handle, Json, agent, line, team
from tests.harness.gateway import GatewayServer
from tests.harness.resets import reset, reset_points


async def sums(gateway: GatewayServer, run: str) -> dict[str, Json]:
    """The sums by name, once they are complete."""
    while not (listed := await gateway.get(f"/runs/{run}/members"))["isComplete"]:
        await asyncio.sleep(0.02)
    return {member["name"]: member for member in listed["members"]}


async def used(handle: Handle) -> Json:
    """What the result of a run says that it has used."""
    usage: Json = (await handle.result())["tokenUsage"]
    return usage


@pytest.mark.slow
async def test_the_sums_of_a_continued_nested_run_are_those_of_all_its_calls(
    env_with_short_histories: Environment,
) -> None:
    env = env_with_short_histories
    env.answer = count_replies
    teams = [
        agent("one"),
        agent("two"),
        agent("three"),
        team("inner", "one", "two", maxTurns=6, onMaxTurns="complete"),
        team("team", "inner", "three", maxTurns=3, onMaxTurns="complete"),
    ]
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query(teams, "team/team")
        await env.wait_for_calls(5)
        early = await sums(gateway, handle.id)
        usage = await used(handle)
        late = await sums(gateway, handle.id)
    assert early["one"]["turns"] <= late["one"]["turns"]
    assert {name: member["turns"] for name, member in late.items()} == {"one": 18, "two": 18, "three": 3}
    assert sum(member["usage"]["totalTokens"] for member in late.values()) == usage["totalTokens"]
    assert sum(member["usage"]["modelCalls"] for member in late.values()) == usage["modelCalls"] == 39


async def test_the_sums_of_a_run_that_was_reset_are_those_of_what_has_stayed(gateway: GatewayServer) -> None:
    env = gateway.env
    env.answer = count_replies
    handle = await env.start_team(
        [agent("one"), agent("two"), team("team", "one", "two", maxTurns=3, onMaxTurns="complete")]
    )
    await handle.result()
    before = await sums(gateway, handle.id)
    points = await reset_points(handle)
    again = await reset(env, env.client.get_workflow_handle(handle.id), points[len(points) // 2])
    await again.result()
    after = await sums(gateway, handle.id)
    assert {name: member["turns"] for name, member in after.items()} == {"one": 3, "two": 3}
    assert sum(member["usage"]["modelCalls"] for member in after.values()) == 6
    assert list(before) == list(after)


async def test_the_forks_of_a_run_are_a_tree(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", *"abcd"), line("two", *"efgh"))
    first = (await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201))["id"]
    await gateway.finished(first)
    second = (await gateway.post(f"/runs/{first}/fork", {"at": "1"}, 201))["id"]
    await gateway.finished(second)
    third = (await gateway.post(f"/runs/{second}/fork", {"at": "2"}, 201))["id"]
    await gateway.finished(third)
    expected = [(first, None), (second, first), (third, second)]
    for run in (first, second, third):
        async with asyncio.timeout(20):  # Temporal lists a run a moment after its start
            while len(tree := (await gateway.get(f"/runs/{run}/forks"))["runs"]) < 3:
                await asyncio.sleep(0.05)
        assert [(each["id"], each.get("source")) for each in tree] == expected
        assert [each.get("at") for each in tree] == [None, "1", "2"]


async def test_the_tree_of_a_fork_has_it_also_before_temporal_lists_it(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", *"abcd"), line("two", *"efgh"))
    runs = [(await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201))["id"]]
    await gateway.finished(runs[0])
    for at in ("1", "2"):
        runs.append((await gateway.post(f"/runs/{runs[-1]}/fork", {"at": at}, 201))["id"])
        tree = (await gateway.get(f"/runs/{runs[-1]}/forks"))["runs"]
        assert [(each["id"], each.get("source")) for each in tree] == [*zip(runs, [None, *runs], strict=False)]
        await gateway.finished(runs[-1])
