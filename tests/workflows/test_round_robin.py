"""Round-robin: the three scenarios of ARK's team documentation, and the rules of the strategy."""

import json

import pytest

from baton.contracts.turn import TurnResult
from baton.testing import ScriptLine
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team, texts

TRIO = [agent("brainstormer"), agent("critic"), agent("coordinator", "terminate_team")]
SAID = [f"{name} {n}" for n in (1, 2, 3) for name in ("brainstormer", "critic", "coordinator")]


def talkers(*names: str) -> list[ScriptLine]:
    return [line(name, *(f"{name} {n}" for n in (1, 2, 3))) for name in names]


async def test_a_team_that_nobody_ends_has_nine_executions_and_then_reaches_max_turns(env: Environment) -> None:
    env.script(*talkers("brainstormer", "critic", "coordinator"))
    handle = await env.start_team([*TRIO, team("team", "brainstormer", "critic", "coordinator", maxTurns=3)])
    turn = await env.turn_result(handle)
    assert len(env.model.requests) == 9
    assert turn.stop_reason == "max_turns"
    assert turn.failure is not None
    assert turn.failure.type == "MaxTurnsReached"
    assert turn.failure.message == "team round-robin MaxTurns reached team"
    await everything_stands(env, handle, turn, SAID)


async def test_a_team_is_ended_by_its_coordinator_after_three_executions(env: Environment) -> None:
    env.script(*talkers("brainstormer", "critic"), line("coordinator", call("terminate_team", response="Done.")))
    handle = await env.start_team([*TRIO, team("team", "brainstormer", "critic", "coordinator", maxTurns=3)])
    turn = await env.turn_result(handle)
    assert len(env.model.requests) == 3
    assert (turn.stop_reason, turn.failure, turn.message) == ("terminated", None, "Done.")
    await everything_stands(env, handle, turn, ["brainstormer 1", "critic 1", "", "Done."])


async def test_a_third_member_that_fails_ends_the_team_with_all_that_was_said_before(env: Environment) -> None:
    env.script(*talkers("brainstormer", "critic"), line("coordinator", {"status": 400, "text": "no such thing"}))
    handle = await env.start_team([*TRIO, team("team", "brainstormer", "critic", "coordinator", maxTurns=3)])
    turn = await env.turn_result(handle)
    assert turn.stop_reason == "failed"
    assert turn.failure is not None
    assert (turn.failure.family, turn.failure.type) == ("ModelError", "ModelRejected")
    assert (turn.failure.member, turn.failure.turn) == ("coordinator", 3)
    assert "no such thing" in turn.failure.message
    await everything_stands(env, handle, turn, ["brainstormer 1", "critic 1"])


async def everything_stands(env: Environment, handle: Handle, turn: TurnResult, said: list[str]) -> None:
    """All messages stand in the failure's details, in the status, and in the transcript of the journal."""
    assert texts(turn.messages) == said
    status: Json = await handle.query("status")
    assert [message.get("content", "") for message in status["messages"]] == said
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", *said]


async def test_each_member_reads_the_system_prompt_the_history_and_the_question_last(env: Environment) -> None:
    env.script(*talkers("one", "two"))
    await env.turn_result(await env.start_team([agent("one"), agent("two"), team("team", "one", "two", maxTurns=2)]))
    received = [
        [(m["role"], m["content"], m.get("name")) for m in each.body["messages"]] for each in env.model.requests
    ]
    question = ("user", "Why?", None)
    assert received[0] == [("system", "You are one.", None), question]
    assert received[1] == [("system", "You are two.", None), ("assistant", "one 1", "one"), question]
    assert received[3] == [
        ("system", "You are two.", None),
        ("assistant", "one 1", "one"),
        ("assistant", "two 1", "two"),
        ("assistant", "one 2", "one"),
        question,
    ]


async def test_reaching_max_turns_is_a_normal_end_where_the_manifest_says_so(env: Environment) -> None:
    env.script(*talkers("one"))
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")])
    turn = TurnResult.model_validate_json(json.dumps(await handle.result()))
    assert (turn.stop_reason, turn.failure, turn.message) == ("max_turns", None, "one 2")


@pytest.mark.full
async def test_a_team_without_max_turns_goes_on_until_a_member_terminates_it(env: Environment) -> None:
    env.script(line("one", "a", "b", "c", "d", call("terminate", response="Enough.")))
    turn = await env.turn_result(await env.start_team([agent("one", "terminate"), team("team", "one")]))
    assert (turn.stop_reason, turn.turns, turn.message) == ("terminated", 5, "Enough.")


async def test_a_member_may_stand_in_the_order_more_than_once(env: Environment) -> None:
    env.script(*talkers("one", "two"))
    turn = await env.turn_result(
        await env.start_team([agent("one"), agent("two"), team("team", "one", "two", "one", maxTurns=1)])
    )
    assert texts(turn.messages) == ["one 1", "two 1", "one 2"]


async def test_tokens_are_summed_as_the_models_server_has_counted_them(env: Environment) -> None:
    env.script(*talkers("one", "two"))
    turn = await env.turn_result(
        await env.start_team([agent("one"), agent("two"), team("team", "one", "two", maxTurns=2)])
    )
    assert turn.usage.model_calls == 4
    assert turn.usage.total_tokens == sum(message.usage.total_tokens for message in turn.messages if message.usage)
    assert turn.usage.total_tokens == turn.usage.prompt_tokens + turn.usage.completion_tokens > 0
