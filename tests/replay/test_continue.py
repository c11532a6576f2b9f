"""A run with a long history continues as new, without a visible difference for those who start or wait for it."""

import pytest

from baton.testing import Reply
from tests.harness.continued_runs import check_continued, continued_runs, count_replies, numbers
from tests.harness.environment import Environment, agent, line, team, texts

pytestmark = pytest.mark.full


async def test_a_round_robin_of_many_turns_says_each_message_once_and_in_order(
    env_with_short_histories: Environment,
) -> None:
    env_with_short_histories.answer = count_replies
    members = "one", "two", "three"
    handle = await env_with_short_histories.start_team([*map(agent, members), team("team", *members, maxTurns=20)])
    turn = await env_with_short_histories.turn_result(handle)
    assert (turn.stop_reason, turn.turns) == ("max_turns", 60)
    assert turn.usage.model_calls == len(env_with_short_histories.model.requests) == 60
    said = env_with_short_histories.transcript(turn.head.id)
    assert [row["content"] for row in said] == ["Why?", *numbers(60)]
    assert [row["name"] for row in said[1:]] == [*members] * 20
    assert 20 < len(turn.messages) <= 60
    assert texts(turn.messages) == numbers(60)[-len(turn.messages) :]
    await check_continued(env_with_short_histories, handle, 6)


@pytest.mark.slow
async def test_an_agents_long_turn_goes_on_between_its_tool_calls(env_with_short_histories: Environment) -> None:
    """Once alone, and once as a member of a team, which waits for its end before the next member."""
    many = {"calls": [{"name": "noop", "arguments": {"message": f"m{n}"}} for n in range(20)]}
    env_with_short_histories.script(line("one", *[many] * 3, "Done."), line("two", "I agree."))
    manifests = [agent("one", "noop"), agent("two"), team("team", "one", "two", strategy="sequential")]
    for handle in (
        await env_with_short_histories.start("agent", {"agent": "one", "input": "Why?", "resources": manifests}),
        await env_with_short_histories.start_team(manifests),
    ):
        turn = await env_with_short_histories.turn_result(handle)
        assert turn.stop_reason == "completed"
        assert turn.usage.tool_calls == 60
        said = [row["content"] for row in env_with_short_histories.transcript(turn.head.id) if row["role"] == "tool"]
        assert said == [f"m{n}" for n in range(20)] * 3
        await check_continued(env_with_short_histories, handle, 4)
        env_with_short_histories.script(line("one", *[many] * 3, "Done."), line("two", "I agree."))
    assert turn.message == "I agree."


@pytest.mark.slow
async def test_tool_calls_made_at_once_are_all_answered_however_many(env_with_short_histories: Environment) -> None:
    calls = [{"name": "noop" if n % 2 else "unknown", "arguments": {"message": f"m{n}"}} for n in range(128)]
    env_with_short_histories.script(line("one", {"calls": calls}, {"calls": calls}, "Done."))
    manifests = [agent("one", "noop", parallelToolCalls=True)]
    handle = await env_with_short_histories.start("agent", {"agent": "one", "input": "Why?", "resources": manifests})
    turn = await env_with_short_histories.turn_result(handle)
    assert (turn.stop_reason, turn.message, turn.usage.tool_calls) == ("completed", "Done.", 256)
    said = [row["content"] for row in env_with_short_histories.transcript(turn.head.id) if row["role"] == "tool"]
    assert [text for text in said if text.startswith("m")] == [f"m{n}" for n in range(1, 128, 2)] * 2
    assert sum(text.startswith("Error: there is no tool 'unknown'") for text in said) == 128
    assert len(await continued_runs(env_with_short_histories, handle)) == 5  # after every 100 calls, and every answer


async def test_members_of_a_parallel_team_speak_on_the_same_history_in_whatever_run(
    env_with_short_histories: Environment,
) -> None:
    env_with_short_histories.answer = lambda request: Reply(text=str(len(request["messages"])))
    names = [f"a{n}" for n in range(40)]
    given = team("team", *names, strategy="parallel", maxConcurrency=5, aggregator="sum")
    handle = await env_with_short_histories.start_team([*map(agent, names), agent("sum"), given])
    turn = await env_with_short_histories.turn_result(handle)
    said = env_with_short_histories.transcript(turn.head.id)
    assert [row.get("name") for row in said[1:]] == [*names, "sum"]
    assert [row["content"] for row in said[1:]] == ["2"] * 40 + ["42"]
    assert (turn.turns, turn.message, turn.stop_reason) == (41, "42", "completed")
    await check_continued(env_with_short_histories, handle, 4)


@pytest.mark.slow
async def test_a_query_with_many_targets_starts_each_of_them_once(env_with_short_histories: Environment) -> None:
    env_with_short_histories.answer = lambda request: Reply(text="I " + request["messages"][0]["content"])
    names = [f"a{n}" for n in range(30)]
    handle = await env_with_short_histories.start_query(
        [*map(agent, names)], *(f"agent/{name}" for name in names), timeout="1h"
    )
    status = await env_with_short_histories.status(handle)
    assert [each.message for each in status.responses] == [f"I You are {name}." for name in names]
    assert (status.phase, status.token_usage.model_calls, len(env_with_short_histories.model.requests)) == (
        "Completed",
        30,
        30,
    )
