"""People steer a run: they add messages, pause it and resume it."""

import asyncio
import threading
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from baton.testing import Reply, Request, ScriptLine
from tests.harness.environment import Environment, agent, call, line, manifest, signaled, team, texts
from tests.harness.memory_server import MemoryServer
from tests.harness.panels import SYNTHESIS, model_requests, panel, panelist_line, role_member
from tests.workflows.test_approval import pending
from tests.workflows.test_delegation import children, only_child


def held(*texts: str) -> list[Any]:
    """Answers that are sent once a test releases them."""
    return [{"text": text, "held": True} for text in texts]


async def test_what_a_person_says_is_read_before_the_next_model_call(env: Environment) -> None:
    env.script(line("one", *held("a", "b")), line("two", "c", "d"))
    handle = await env.start_team([agent("one"), agent("two"), team("team", "one", "two", maxTurns=1)])
    await env.wait_for_calls(1)
    assert await handle.execute_update("steer", {"text": "Be kind.", "name": "ann"}) == {"turn": 2}
    env.model.release()
    turn = await env.turn_result(handle)
    assert texts(turn.messages) == ["a", "c"]
    said = [(row["role"], row.get("name"), row["content"]) for row in env.transcript(turn.head.id)]
    assert said[1:] == [("assistant", "one", "a"), ("user", "ann", "Be kind."), ("assistant", "two", "c")]
    assert ("Be kind.", "ann") in [(m["content"], m.get("name")) for m in env.model.requests[1].body["messages"]]


async def test_it_is_read_in_the_middle_of_a_turn_too(env: Environment) -> None:
    env.script(line("one", {**call("noop"), "held": True}, "a"))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one", "noop")]})
    await env.wait_for_calls(1)
    assert await handle.execute_update("steer", {"text": "Hurry."}) == {}
    env.model.release()
    turn = await env.turn_result(handle)
    roles = [row["role"] for row in env.transcript(turn.head.id)]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


async def test_it_reaches_the_team_below_a_query(env: Environment) -> None:
    env.script(line("one", *held("a", "b")))
    handle = await env.start_query([agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")], "team/team")
    await env.wait_for_calls(1)
    assert await handle.execute_update("steer", {"text": "Be kind."}) == {}
    env.model.release()
    status = await env.status(handle)
    assert status.responses[0].head
    rows = env.transcript(status.responses[0].head.id)
    assert [row["content"] for row in rows] == ["Why?", "a", "Be kind.", "b"]


async def test_nothing_that_was_said_is_lost_where_nobody_speaks_any_more(env: Environment) -> None:
    env.script(line("one", *held("a")))
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=1)])
    await env.wait_for_calls(1)
    await handle.execute_update("steer", {"text": "Too late."})
    env.model.release()
    turn = await env.turn_result(handle)
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", "a", "Too late."]


async def test_what_comes_during_the_last_call_of_whom_a_tool_asks_is_read_by_who_has_asked(env: Environment) -> None:
    env.script(line("lead", call("ask-expert", input="Sum?"), "Done."), line("expert", *held("It is 4.")))
    tool = manifest("Tool", "ask-expert", {"type": "agent", "agent": {"name": "expert"}})
    brought = [agent("lead", "ask-expert"), agent("expert"), tool]
    handle = await env.start("agent", {"agent": "lead", "input": "?", "resources": brought})
    await env.wait_for_calls(2)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    await signaled(await only_child(handle), "steer")
    env.model.release()
    turn = await env.turn_result(handle)
    assert ("Be brief.", "ann") in [(m["content"], m.get("name")) for m in env.model.requests[-1].body["messages"]]
    assert [row["content"] for row in env.transcript(turn.head.id)].count("Be brief.") == 1


@pytest.mark.parametrize("strategy", ["sequential", "selector", "handoff"])
async def test_what_comes_during_the_last_call_of_a_team_that_a_tool_asks_is_read_by_who_has_asked(
    env: Environment, strategy: str
) -> None:
    env.script(line("lead", call("ask-experts", input="Sum?"), "Done."), line("expert", *held("It is 4.")))
    tool = manifest("Tool", "ask-experts", {"type": "team", "team": {"name": "experts"}})
    spec: dict[str, Any] = {"maxTurns": 1, "onMaxTurns": "complete"} if strategy == "selector" else {}
    brought = [
        agent("lead", "ask-experts"),
        agent("expert"),
        team("experts", "expert", strategy=strategy, **spec),
        tool,
    ]
    handle = await env.start("agent", {"agent": "lead", "input": "?", "resources": brought})
    await env.wait_for_calls(2)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    await signaled(await only_child(handle), "steer")
    env.model.release()
    turn = await env.turn_result(handle)
    assert ("Be brief.", "ann") in [(m["content"], m.get("name")) for m in env.model.requests[-1].body["messages"]]
    assert [row["content"] for row in env.transcript(turn.head.id)].count("Be brief.") == 1


async def test_what_comes_during_the_last_call_of_a_team_in_a_panel_is_read_by_the_next_member(
    env: Environment,
) -> None:
    env.script(line("expert", *held("It is 4.")), panelist_line("a", "a1"))
    members = [{"name": "experts", "type": "team"}, role_member("a")]
    brought = [agent("expert"), team("experts", "expert", strategy="sequential")]
    handle = await env.start_team([*brought, panel(*members, maxRounds=1, synthesizer=False)], "panel")
    await env.wait_for_calls(1)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    await signaled(await only_child(handle), "steer")
    env.model.release()
    await env.turn_result(handle)
    assert "# Messages from people\nann: Be brief." in str(env.model.requests[-1].body["messages"][-1]["content"])


async def test_what_comes_before_a_person_is_asked_in_a_team_below_is_read_by_that_person_and_by_the_next_member(
    env: Environment,
) -> None:
    env.script(line("one", *held("A draft.")), line("last", "Signed."))
    lawyer = {"name": "lawyer", "type": "human", "prompt": "Is it legal?"}
    inner = manifest("Team", "inner", {"strategy": "sequential", "members": [{"name": "one"}, lawyer]})
    outer = team("team", "inner", "last", strategy="sequential")
    handle = await env.start_team([agent("one"), agent("last"), inner, outer])
    await env.wait_for_calls(1)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    below = await only_child(handle)
    await signaled(below, "steer")
    env.model.release()
    (asked,) = await pending(below)
    assert asked.question == "Is it legal?\n\nuser: Why?\n\none: A draft.\n\nann: Be brief."
    await below.execute_update("reply", {"text": "It is."})
    turn = await env.turn_result(handle)
    assert ("Be brief.", "ann") in [(m["content"], m.get("name")) for m in env.model.requests[-1].body["messages"]]
    assert [row["content"] for row in env.transcript(turn.head.id)].count("Be brief.") == 1


async def test_what_comes_while_a_panel_delivers_is_read_by_the_next_member_of_the_team_around_it(
    env: Environment,
) -> None:
    env.script(
        panelist_line("a", "a1"),
        ScriptLine.model_validate(
            {"system": "You write what", "agent": "synthesizer", "say": held("The deliverable.")}
        ),
        line("c", "c1"),
    )
    outer = team("team", "panel", "c", strategy="sequential")
    handle = await env.start_team([panel(role_member("a"), maxRounds=1), agent("c"), outer])
    await env.wait_for_calls(2)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    await signaled(await only_child(handle), "steer")
    env.model.release()
    turn = await env.turn_result(handle)
    assert ("Be brief.", "ann") in [(m["content"], m.get("name")) for m in env.model.requests[-1].body["messages"]]
    assert [row["content"] for row in env.transcript(turn.head.id)].count("Be brief.") == 1


@pytest.mark.full
async def test_what_one_member_has_read_and_another_has_not_joins_the_conversation_once(env: Environment) -> None:
    """Both members of the parallel team get the message; only one of them makes another call after it."""
    two = line("two", {**call("noop", message="x"), "held": True}, "b")
    env.script(line("one", *held("a")), two, line("last", "c"))
    both = team("both", "one", "two", strategy="parallel")
    outer = team("team", "both", "last", strategy="sequential")
    members = [agent("one"), agent("two", "noop"), agent("last"), both, outer]
    handle = await env.start_team(members)
    await env.wait_for_calls(2)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    below = await only_child(handle)
    for child in await children(below):
        await signaled(child, "steer")
    env.model.release()
    turn = await env.turn_result(handle)
    assert [row["content"] for row in env.transcript(turn.head.id)].count("Be brief.") == 1


async def test_a_panel_reads_what_people_say_in_addition_to_its_contributions(env: Environment) -> None:
    env.script(panelist_line("a", *held("a1", "a2")), SYNTHESIS)
    handle = await env.start_team([panel(role_member("a"), maxRounds=2)], "panel")
    await env.wait_for_calls(1)
    await handle.execute_update("steer", {"text": "Mind the costs.", "name": "ann"})
    env.model.release()
    await env.turn_result(handle)
    assert ["# Messages from people\nann: Mind the costs." in each.user for each in model_requests(env)] == [
        False,
        True,
        True,
    ]


async def test_whoever_delivers_reads_what_is_said_in_the_last_turn(env: Environment) -> None:
    env.script(panelist_line("a", *held("a1")), SYNTHESIS)
    handle = await env.start_team([panel(role_member("a"), maxRounds=1)], "panel")
    await env.wait_for_calls(1)
    await handle.execute_update("steer", {"text": "Mind the costs."})
    env.model.release()
    turn = await env.turn_result(handle)
    assert "user: Mind the costs." in model_requests(env)[-1].user
    said = [row["content"] for row in env.transcript(turn.head.id)]
    assert said == ["Why?", "a1", "Mind the costs.", "The deliverable."]


@pytest.mark.full
async def test_signals_that_updates_would_refuse_are_passed_over(env: Environment) -> None:
    env.script(panelist_line("a", *held("a1", "a2")))
    spec = {"maxRounds": 2, "synthesizer": False, "terminateWhen": "has(session.big)"}
    handle = await env.start_team([panel(role_member("a"), **spec)], "panel")
    await env.wait_for_calls(1)
    unsaid: list[Any] = [{"text": " "}, {"text": "x" * 70_000}, {"text": "x", "name": "n" * 65}, {"text": 5}, [], None]
    unkept: list[Any] = [{"big": "x" * 20_000}, ["big"], "big", None]
    for name, garbage in [*(("steer", each) for each in unsaid), *(("session", each) for each in unkept)]:
        await handle.signal(name, garbage)
    env.model.release()
    turn = await env.turn_result(handle)
    assert (turn.stop_reason, [row["role"] for row in env.transcript(turn.head.id)][:3]) == (
        "completed",
        ["user", "assistant", "assistant"],
    )


@pytest.mark.parametrize("wrong", [{"text": " "}, {"text": "x" * 70_000}, {"text": "x", "name": "n" * 65}])
async def test_what_can_not_be_said_is_refused_and_leaves_the_run_alone(env: Environment, wrong: Any) -> None:
    env.script(line("one", *held("a")))
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=1, onMaxTurns="complete")])
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("steer", wrong)
    env.model.release()
    assert (await env.turn_result(handle)).message == "a"


async def test_a_paused_team_waits_before_the_next_turn_and_goes_on_when_it_is_resumed(env: Environment) -> None:
    env.script(line("one", *held("a", "b")), line("two", "c", "d"))
    handle = await env.start_query([agent("one"), agent("two"), team("team", "one", "two", maxTurns=1)], "team/team")
    await env.wait_for_calls(1)
    await handle.signal("pause")
    await signaled(env.client.get_workflow_handle(f"{handle.id}/target-1/team"), "pause")
    env.model.release()
    await env.wait_until_idle(handle)
    assert len(env.model.requests) == 1
    await handle.signal("resume")
    await env.status(handle)
    assert len(env.model.requests) == 2


@pytest.mark.parametrize(("how", "reason"), [("terminate_team", "terminated"), ("cancel", "canceled")])
async def test_a_paused_team_can_be_ended(env: Environment, how: str, reason: str) -> None:
    env.script(line("one", *held("a", "b")))
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=2)])
    await env.wait_for_calls(1)
    await handle.signal("pause")
    env.model.release()
    await env.wait_until_idle(handle)
    await handle.signal(how)
    turn = await env.turn_result(handle)
    assert (turn.stop_reason, texts(turn.messages), len(env.model.requests)) == (reason, ["a"], 1)


async def test_equal_messages_are_two_messages_and_one_that_was_read_does_not_come_back(env: Environment) -> None:
    env.script(line("one", "a", "b"), line("two", "c"))
    scripted, told = env.answer, threading.Semaphore(0)

    def answer(request: Request) -> Reply:
        assert "You are two." in request.system or told.acquire(timeout=60)
        return scripted(request)

    env.answer = answer
    inner = team("inner", "one", maxTurns=2, onMaxTurns="complete")
    handle = await env.start_team(
        [agent("one"), agent("two"), inner, team("team", "inner", "two", strategy="sequential")]
    )
    for calls in (1, 2):  # the first is read in the inner team, the second comes too late for it
        await env.wait_for_calls(calls)
        await handle.execute_update("steer", {"text": "Yes."})
        told.release()
    turn = await env.turn_result(handle)
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", "a", "Yes.", "b", "Yes.", "c"]


async def test_a_message_that_comes_by_a_signal_while_a_run_closes_is_told_in_its_status(env: Environment) -> None:
    env.script(line("one", "a"))
    told = threading.Event()

    def wait_until_told() -> None:
        told.wait(30)

    with MemoryServer("items").serving() as service:
        service.after_write = wait_until_told
        memory = manifest("Memory", "m", {"address": service.url})
        handle = await env.start_query([agent("one"), memory], "agent/one", memory="m", conversationId="c")
        while len(service.seen) < 2:  # the conversation is read at the beginning, and written at the end
            await asyncio.sleep(0.02)
        with pytest.raises(WorkflowUpdateFailedError, match="Workflow update failed"):
            await handle.execute_update("steer", {"text": "Wait!"})
        await handle.signal("steer", {"text": "Wait!", "name": "ann"})
        told.set()
        status = await env.status(handle)
    assert status.notices == ("a message of ann came too late to be read: Wait!",)
