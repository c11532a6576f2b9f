"""Teams within teams: a child run that takes one turn, with its own bound and its own end."""

from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from baton.testing import Reply
from tests.harness.environment import Environment, Json, agent, call, line, signaled, team, texts
from tests.harness.signals import SignalWhileAChildStarts

AGENTS = [agent("one"), agent("two", "terminate"), agent("last")]


async def test_a_nested_team_takes_one_turn_and_reads_and_is_read_by_all(env: Environment) -> None:
    env.script(line("one", "1", "2"), line("two", "a", "b"), line("last", "end"))
    inner = team("inner", "one", "two", strategy="sequential")
    handle = await env.start_team([*AGENTS, inner, team("team", "last", "inner", "last", strategy="sequential")])
    turn = await env.turn_result(handle)
    assert (turn.turns, texts(turn.messages)) == (3, ["end", "1", "a", "end"])
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", "end", "1", "a", "end"]
    received = [message["content"] for message in env.model.requests[3].body["messages"]]
    assert received == ["You are last.", "end", "1", "a", "Why?"]
    child = env.client.get_workflow_handle(f"{handle.id}/turn-2/inner")
    assert (await child.query("status"))["message"] == "a"
    assert turn.usage.model_calls == 4


async def test_a_nested_teams_own_terminate_ends_it_alone(env: Environment) -> None:
    env.script(line("two", call("terminate", response="Inner end.")), line("last", "end"))
    inner = team("inner", "two", "last", maxTurns=9)
    turn = await env.turn_result(
        await env.start_team([*AGENTS, inner, team("team", "inner", "last", strategy="sequential")])
    )
    assert (turn.stop_reason, texts(turn.messages)) == ("completed", ["", "Inner end.", "end"])


async def test_a_nested_team_that_reaches_its_bound_fails_its_parent(env: Environment) -> None:
    env.script(line("one", "1"), line("last", "end"))
    inner = team("inner", "one", maxTurns=2)
    turn = await env.turn_result(
        await env.start_team([*AGENTS, inner, team("team", "inner", "last", strategy="sequential")])
    )
    assert turn.stop_reason == "failed"
    assert turn.failure is not None
    assert (turn.failure.type, turn.failure.member, turn.failure.turn) == ("MaxTurnsReached", "inner", 1)
    assert texts(turn.messages) == ["1", "1"]


async def test_a_team_that_is_terminated_while_it_starts_a_nested_team_ends_that_too(
    client: Client, tmp_path: Path
) -> None:
    signals = SignalWhileAChildStarts(client, "round-robin", "terminate_team", {"now": True})
    async with Environment.running(signals.client, tmp_path) as env:
        env.script(line("one", {"text": "late", "hang": True}), line("last", "end"))
        inner = team("inner", "one", maxTurns=2)
        outer = team("team", "inner", "last", strategy="sequential")
        handle = await env.start("sequential", {"team": "team", "input": "Why?", "resources": [*AGENTS, inner, outer]})
        with suppress(WorkflowFailureError):
            await handle.result()
        child = env.client.get_workflow_handle(f"{handle.id}/turn-1/inner")
        assert (await handle.query("status"))["stopReason"] == "terminated"
        # If the child has started by the time its parent reads the signal, it gets the stop request, and completes.
        ends = (WorkflowExecutionStatus.CANCELED, WorkflowExecutionStatus.COMPLETED)
        assert (await child.describe()).status in ends


async def test_a_nested_team_that_is_canceled_by_itself_fails_its_parent(env: Environment) -> None:
    env.script(line("one", {"text": "late", "delay": 30}), line("last", "end"))
    inner = team("inner", "one", maxTurns=2)
    handle = await env.start_team([*AGENTS, inner, team("team", "inner", "last", strategy="sequential")])
    await env.wait_for_calls(1)
    await env.client.get_workflow_handle(f"{handle.id}/turn-1/inner").cancel()
    turn = await env.turn_result(handle)
    assert turn.failure is not None
    assert (turn.stop_reason, turn.failure.type, turn.failure.member) == ("failed", "RunClosed", "inner")


@pytest.mark.full
async def test_the_signal_and_a_cancel_reach_a_team_at_any_depth(env: Environment) -> None:
    teams = [
        team("inner", "one", maxTurns=9),
        team("middle", "inner", strategy="sequential"),
        team("team", "middle", "last", strategy="sequential"),
    ]
    env.script(line("one", "1", {"text": "2", "held": True}), line("last", "end"))
    handle = await env.start_team([*AGENTS, *teams])
    await env.wait_for_calls(2)
    await handle.signal("terminate_team", "enough")
    await signaled(env.client.get_workflow_handle(f"{handle.id}/turn-1/middle/turn-1/inner"), "terminate_team")
    env.model.release()
    turn = await env.turn_result(handle)
    assert (turn.stop_reason, turn.note, texts(turn.messages)) == ("terminated", "enough", ["1", "2"])

    env.model.requests.clear()
    env.script(line("one", "1", {"text": "2", "delay": 30}), line("last", "end"))
    handle = await env.start_team([*AGENTS, *teams])
    await env.wait_for_calls(2)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    deepest = env.client.get_workflow_handle(f"{handle.id}/turn-1/middle/turn-1/inner")
    assert (await deepest.query("status"))["phase"] == "Canceled"
    assert [each["content"] for each in (await handle.query("status"))["messages"]] == ["1"]


async def test_a_nested_team_whose_workflow_id_would_be_too_long_fails_with_a_sentence(env: Environment) -> None:
    env.script(line("one", "1"))
    inner = team("inner", "one", strategy="sequential")
    manifests = [*AGENTS, inner, team("team", "inner", strategy="sequential")]
    given = {"team": "team", "input": "Why?", "resources": manifests}
    handle = await env.client.start_workflow("sequential", given, id="x" * 990, task_queue=env.task_queue)
    turn = await env.turn_result(handle)
    assert turn.failure
    assert turn.failure.type == "InvalidInput"
    assert "1,005 bytes; Temporal takes 1,000: start the run with a shorter id" in turn.failure.message


async def test_a_nested_team_that_failed_is_failed_in_temporal_and_what_it_said_is_kept(env: Environment) -> None:
    env.script(line("one", "1"), line("last", "end"))
    inner = team("inner", "one", maxTurns=2)
    handle = await env.start_team([*AGENTS, inner, team("team", "last", "inner", strategy="sequential")])
    turn = await env.turn_result(handle)
    child = env.client.get_workflow_handle(f"{handle.id}/turn-2/inner")
    assert (await child.describe()).status == WorkflowExecutionStatus.FAILED
    with pytest.raises(WorkflowFailureError, match="Workflow execution failed") as failed:
        await child.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "MaxTurnsReached"
    assert (turn.stop_reason, texts(turn.messages)) == ("failed", ["end", "1", "1"])
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", "end", "1", "1"]
    assert (turn.usage.model_calls, turn.failure and turn.failure.type) == (3, "MaxTurnsReached")


LONG_TURNS: list[list[str | Json]] = [[f"{number} {'x' * 9_000}" for number in range(3)]]
LONG_TURNS += [[*[call("calculator", "x" * 1_900, expression="6*7")] * 24, "y" * 30_000]]


@pytest.mark.full
@pytest.mark.parametrize("said", LONG_TURNS, ids=["by a nested team", "in one turn of its agent"])
async def test_the_messages_shown_have_no_gap_where_earlier_ones_of_a_member_are_left_out(
    env: Environment, said: list[str | Json]
) -> None:
    env.script(line("last", "begin"), line("busy", *said))
    inner = team("inner", "busy", maxTurns=sum(isinstance(each, str) for each in said), onMaxTurns="complete")
    outer = team("team", "last", "inner", strategy="sequential")
    turn = await env.turn_result(await env.start_team([*AGENTS, agent("busy", "calculator"), inner, outer]))
    shown, kept = texts(turn.messages), [row["content"] for row in env.transcript(turn.head.id)]
    assert kept[1] == "begin"
    assert shown == kept[-len(shown) :]


async def test_a_message_that_a_failing_nested_team_has_not_read_comes_back_to_its_parent(env: Environment) -> None:
    inner = team("inner", "one", strategy="sequential")
    env.answer = lambda _: Reply(status=400, text="no", held=True)
    handle = await env.start_team([*AGENTS, inner, team("team", "inner", "last", strategy="sequential")])
    await env.wait_for_calls(1)
    child = env.client.get_workflow_handle(f"{handle.id}/turn-1/inner")
    await child.execute_update("steer", {"text": "Too late.", "name": "ann"})
    env.model.release()
    turn = await env.turn_result(handle)
    assert turn.failure
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", "Too late."]


async def test_temporals_ui_shows_what_a_run_was_asked_and_its_nested_teams_too(env: Environment) -> None:
    env.script(line("one", "1"), line("last", "end"))
    inner = team("inner", "one", strategy="sequential")
    handle = await env.start_team([*AGENTS, inner, team("team", "inner", "last", strategy="sequential")])
    await env.turn_result(handle)
    child = env.client.get_workflow_handle(f"{handle.id}/turn-1/inner")
    for run in (handle, child):
        shown = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        assert shown.current_details.startswith("> Why?\n\n### ")
    assert await (await child.describe()).static_details() == "Why?"
