"""A run whose history becomes long goes on in a new one: nobody who starts, steers or waits for it notices."""

from temporalio.client import WorkflowHistory

from baton.starter.scripted_model.script import Reply, Request
from tests.harness.environment import Environment, Handle, agent, line, team, texts

BOUND = 150
"""Events that a run may have where it is to go on in a new one after fifty: one step more, with all that it takes."""


def counted(request: Request) -> Reply:
    """The model says how many answers it was shown before."""
    return Reply(text=str(sum(message["role"] == "assistant" for message in request["messages"]) + 1))


async def chain(env: Environment, handle: Handle) -> list[WorkflowHistory]:
    """The histories of a run and of those in which it went on, the first one first."""
    histories = []
    run_id = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
    while run_id:
        history = await env.client.get_workflow_handle(handle.id, run_id=run_id).fetch_history()
        histories.append(history)
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return histories


async def check(env: Environment, handle: Handle, at_least: int = 3) -> list[WorkflowHistory]:
    """The run went on several times, and none of its histories is long."""
    histories = await chain(env, handle)
    assert len(histories) >= at_least
    assert max(len(history.events) for history in histories) <= BOUND
    return histories


def numbers(upto: int) -> list[str]:
    return [str(number) for number in range(1, upto + 1)]


async def test_a_round_robin_of_many_turns_says_each_message_once_and_in_order(
    env_with_short_histories: Environment,
) -> None:
    env_with_short_histories.answer = counted
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
    await check(env_with_short_histories, handle, 6)


async def test_an_agents_long_turn_goes_on_between_its_tool_calls(env_with_short_histories: Environment) -> None:
    """Once alone, and once as a member, whose team hears it to its end and then the next one."""
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
        await check(env_with_short_histories, handle, 4)
        env_with_short_histories.script(line("one", *[many] * 3, "Done."), line("two", "I agree."))
    assert turn.message == "I agree."


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
    assert len(await chain(env_with_short_histories, handle)) == 3


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
    await check(env_with_short_histories, handle, 4)


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
