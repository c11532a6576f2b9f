"""What people tell a run arrives: in order, at the right place, also when it comes late or many at once."""

import asyncio
import json
from typing import Any

import pytest

from baton.testing import ScriptLine
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team

SELECT = call("select-next-speaker", name="one")


def slow(*texts: str) -> list[Any]:
    return [{"text": text, "delay": 0.3} for text in texts]


async def told_until_closed(handle: Handle, action: str) -> list[str]:
    """Tells a run one thing after the other until it is closed; the messages that it has accepted."""
    accepted = list[str]()
    for number in range(10_000):
        try:
            if action == "steer":
                await handle.execute_update("steer", {"text": f"word {number}."})
                accepted.append(f"word {number}.")
            else:
                await handle.signal(("pause", "resume")[number % 2])
        except Exception:
            return accepted
    raise AssertionError("the run goes on and on")


async def test_every_message_that_a_lone_agent_accepts_is_in_its_conversation(env: Environment) -> None:
    env.script(line("one", *slow("a")))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    accepted = await told_until_closed(handle, "steer")
    turn = await env.turn_result(handle)
    contents = [row["content"] for row in env.transcript(turn.head.id)]
    assert accepted
    assert [word for word in accepted if word not in contents] == []


@pytest.mark.full
async def test_every_message_that_a_query_to_a_nested_team_accepts_is_in_the_journal(env: Environment) -> None:
    env.script(line("one", *slow("a", "b")), line("two", *slow("c", "d")))
    bound: Json = {"onMaxTurns": "complete", "maxTurns": 1}
    inner, outer = team("inner", "one", "two", **bound), team("team", "inner", "one", **bound)
    handle = await env.start_query([agent("one"), agent("two"), inner, outer], "team/team")
    accepted = await told_until_closed(handle, "steer")
    await env.status(handle)
    contents = [row["content"] for row in env.rows()]
    assert accepted
    assert [word for word in accepted if word not in contents] == []


@pytest.mark.full
async def test_no_nested_team_stays_paused_after_pause_and_resume_back_to_back(env: Environment) -> None:
    env.script(line("one", *slow("a", "b", "c", "d")), line("two", *slow("e", "f", "g", "h")))
    bound: Json = {"onMaxTurns": "complete", "maxTurns": 2}
    below = [team("left", "one", **bound), team("right", "two", **bound)]
    outer = team("team", "left", "right", strategy="parallel")
    handle = await env.start_team([agent("one"), agent("two"), *below, outer])
    await env.wait_for_calls(2)
    for _ in range(10):
        await handle.signal("pause")
        await handle.signal("resume")
    assert (await asyncio.wait_for(env.turn_result(handle), 60)).stop_reason == "completed"


@pytest.mark.full
async def test_a_selector_waits_while_the_team_is_paused_and_reads_what_people_said(env: Environment) -> None:
    chooser = {"system": "You moderate", "agent": "chooser", "say": [SELECT, SELECT, SELECT]}
    held = {"text": "a", "held": True}
    env.script(ScriptLine.model_validate(chooser), line("one", held, "b"), line("two", "c"))
    names = [agent("one"), agent("two")]
    spec: Json = {"strategy": "selector", "maxTurns": 2, "onMaxTurns": "complete"}
    handle = await env.start_team([*names, agent("three"), team("team", "one", "two", "three", **spec)])
    await env.wait_for_calls(2)
    await handle.signal("pause", {"name": "ann"})
    env.model.release()
    await env.wait_until_idle(handle)
    assert len(env.model.requests) == 2, "nobody is asked while the team is paused"
    await handle.execute_update("steer", {"text": "Let two speak."})
    await handle.signal("resume")
    await env.turn_result(handle)
    asked = next(each for each in env.model.requests[2:] if "You moderate" in str(each.body["messages"][0]))
    assert "Let two speak." in json.dumps(asked.body["messages"])


async def test_a_status_tells_who_has_paused_a_run_and_since_when(env: Environment) -> None:
    env.script(line("one", {"text": "a", "held": True}, "b"))
    handle = await env.start_query([agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")], "team/team")
    await env.wait_for_calls(1)
    await handle.signal("pause", {"name": "ann"})
    await handle.signal("pause", {"name": "bob"})
    paused = (await handle.query("status"))["paused"]
    assert (paused["by"], paused["since"].endswith("Z")) == ("ann", True)
    below = env.client.get_workflow_handle(f"{handle.id}/target-1/team")
    while "paused" not in (status := await below.query("status")):
        await asyncio.sleep(0.05)
    assert status["paused"]["by"] == "ann"
    await handle.signal("resume")
    assert "paused" not in await handle.query("status")
    env.model.release()
    await env.status(handle)


@pytest.mark.full
async def test_many_messages_at_once_are_all_read_by_the_next_model_call(env: Environment) -> None:
    env.script(line("one", {"text": "a", "held": True}, "b"))
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")])
    await env.wait_for_calls(1)
    texts = [f"{number}: " + "x" * 1_000 for number in range(40)]
    await asyncio.gather(*(handle.execute_update("steer", {"text": each}) for each in texts))
    env.model.release()
    await env.turn_result(handle)
    read = json.dumps(env.model.requests[1].body["messages"])
    assert [each for each in texts if each not in read] == []


async def test_a_session_that_is_too_large_from_the_start_is_refused(env: Environment) -> None:
    given = {"agent": "one", "input": "?", "resources": [agent("one")], "session": {"big": "x" * 20_000}}
    turn = await env.turn_result(await env.start("agent", given))
    assert turn.failure
    assert (turn.failure.type, "16,000 bytes" in turn.failure.message) == ("InvalidInput", True)


@pytest.mark.full
async def test_a_message_to_a_run_that_is_closing_is_refused_or_kept_but_never_lost(env: Environment) -> None:
    env.script(line("one", "a"), line("two", "b"))
    outer = team("team", "one", "two", strategy="parallel")
    for _ in range(3):
        handle = await env.start_team([agent("one"), agent("two"), outer])
        accepted = await told_until_closed(handle, "steer")
        turn = await env.turn_result(handle)
        contents = [row["content"] for row in env.transcript(turn.head.id)]
        assert [word for word in accepted if word not in contents] == []


async def test_messages_to_a_query_that_is_canceled_before_its_target_answers_are_in_the_journal(
    env: Environment,
) -> None:
    env.script(line("one", {"text": "a", "hang": True}))
    handle = await env.start_query([agent("one"), team("team", "one", "one", strategy="sequential")], "team/team")
    await env.wait_for_calls(1)
    await handle.execute_update("steer", {"text": "word 1."})
    await handle.signal("cancel")
    await env.status(handle)
    assert "word 1." in [row["content"] for row in env.rows()]
