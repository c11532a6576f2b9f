"""Tests of long values: they are stored outside of histories, and no model call is repeated for its size."""

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

import baton
from baton.contracts.message import Head, Message, latest_within
from baton.contracts.turn import TurnResult
from baton.journal.database import Database
from baton.journal.external_storage import JournalStorageDriver
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import with_external_storage
from baton.testing import Reply
from tests.harness.environment import Environment, agent, call, line, manifest, team, texts
from tests.harness.replayer import replay
from tests.harness.tool_server import Answer, ToolServer

HUGE = "x" * 3_000_000
NEWS = [{"type": "custom", "name": "news"}]


async def history_size(env: Environment, handle: Any) -> int:
    """The bytes of a run's history, after it was replayed; no workflow task may have failed in it."""
    client = client_with_journal(env)
    history = await client.get_workflow_handle(handle.id).fetch_history()
    assert not [event for event in history.events if event.HasField("workflow_task_failed_event_attributes")]
    await replay([history], client.data_converter)
    return sum(event.ByteSize() for event in history.events)


def client_with_journal(env: Environment) -> Any:
    """A client that stores long values in the journal."""
    return with_external_storage(
        env.client, JournalStorageDriver(lambda: Database.open(f"sqlite:///{env.journal}", "default"))
    )


@pytest.mark.full
async def test_arguments_results_and_final_words_of_three_megabytes_are_kept_whole(env: Environment) -> None:
    env.script(line("one", call("noop", message=HUGE), call("terminate", HUGE, response=HUGE)))
    handle = await env.start_team([agent("one", "noop", "terminate"), team("team", "one")])
    turn = await env.turn_result(handle)
    assert (turn.stop_reason, len(env.model.requests)) == ("terminated", 2)
    said = env.transcript(turn.head.id)
    assert [len(row["content"]) for row in said[2:]] == [len(HUGE)] * 3
    assert [len(row["toolCalls"][0]["arguments"]) > len(HUGE) for row in said[1:4:2]] == [True, True]
    assert await history_size(env, handle) < 1_000_000


@pytest.mark.slow
async def test_answers_of_three_megabytes_are_joined_and_chosen_among(env: Environment) -> None:
    env.answer = lambda _: Reply(text=HUGE)
    names = [f"a{n}" for n in range(3)]
    bounded = {"maxTurns": 2, "onMaxTurns": "complete"}
    for strategy, extra, calls in (("parallel", {"aggregator": "a0"}, 4), ("selector", bounded, 2 * 3)):
        env.model.requests.clear()
        handle = await env.start_team([*map(agent, names), team("team", *names, strategy=strategy, **extra)])
        turn = await env.turn_result(handle)
        assert turn.failure is None, turn.failure
        assert all(len(row["content"]) == len(HUGE) for row in env.transcript(turn.head.id)[1:])
        assert len(env.model.requests) == calls
        assert await history_size(env, handle) < 1_500_000


@pytest.mark.full
async def test_a_long_question_and_long_manifests_are_kept_in_the_journal_by_our_clients(env: Environment) -> None:
    env.answer = lambda request: Reply(text=str(len(str(request["messages"][-1]["content"]))))
    brought = [agent("one"), agent("two", prompt=HUGE)]
    given = {"agent": "one", "input": HUGE, "resources": brought}
    handle = await client_with_journal(env).start_workflow(
        "agent", given, id="long-question", task_queue=env.task_queue
    )
    turn = await env.turn_result(handle)
    assert turn.message == str(len(HUGE))
    assert await history_size(env, handle) < 10_000
    with pytest.raises(RPCError, match=r"exceeds limit|larger than max"):
        await env.start("agent", given)


@pytest.mark.full
async def test_a_program_asks_a_long_question(
    env: Environment, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.answer = lambda request: Reply(text=str(len(str(request["messages"][-1]["content"]))))
    monkeypatch.setenv("BATON_JOURNAL_URL", env.journal_address)
    async with baton.connect(server.address, task_queue=env.task_queue) as connection:
        result = await connection.run(baton.Agent("one", prompt="You are one."), HUGE)
    assert result.value == str(len(HUGE))


async def test_what_a_tool_or_a_failing_model_says_at_length_is_cut_and_neither_is_asked_again(
    env: Environment, tool_server: ToolServer
) -> None:
    tool = manifest("Tool", "news", {"type": "http", "description": "News.", "http": {"url": tool_server.url}})
    tool_server.answers(Answer("x" * 5_000_000))
    env.script(line("one", call("news"), {"status": 400, "text": HUGE, "raw": HUGE}))
    handle = await env.start_team([tool, agent("one", tools=NEWS), team("team", "one", maxTurns=1)])
    turn = await env.turn_result(handle)
    assert turn.failure
    assert turn.failure.family == "ModelError"
    assert len(turn.failure.message) < 10_000
    assert (len(tool_server.seen), len(env.model.requests)) == (1, 2)
    assert len(env.transcript(turn.head.id)[-1]["content"]) < 300_000
    assert await history_size(env, handle) < 1_000_000


@pytest.mark.full
async def test_long_signals_are_no_harm(env: Environment) -> None:
    env.script(line("one", {"text": "a", "held": True}, "b"))
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")])
    await env.wait_for_calls(1)
    ours = client_with_journal(env).get_workflow_handle(handle.id)
    with pytest.raises(WorkflowUpdateFailedError):
        await ours.execute_update("steer", {"text": HUGE})
    for name in ("steer", "session", "unknown"):
        await ours.signal(name, {"text": HUGE})
    with pytest.raises(RPCError, match=r"exceeds limit|larger than max"):
        await handle.signal("steer", {"text": HUGE})
    await ours.signal("terminate_team", {"reason": HUGE})
    env.model.release()
    turn = await env.turn_result(handle)
    assert (turn.stop_reason, texts(turn.messages), len(env.model.requests)) == ("terminated", ["a"], 1)
    assert len(turn.note or "") < 10_000
    assert await history_size(env, handle) < 1_000_000


def test_of_many_short_messages_as_many_are_kept_as_fit_with_all_that_stands_around_them() -> None:
    kept = latest_within([Message(role="assistant", content="fine", name="one", model="gpt-4")] * 10_000)
    assert len(TurnResult(head=Head(), messages=kept).model_dump_json()) < 64_000


@pytest.mark.full
async def test_a_status_that_any_client_reads_is_short_however_long_the_answers(env: Environment) -> None:
    env.answer = lambda _: Reply(text=HUGE)
    names = [f"a{n}" for n in range(8)]
    handle = await env.start_query([*map(agent, names)], *(f"agent/{name}" for name in names))
    status = await env.status(handle)
    assert status.phase == "Completed"
    assert 200_000 < len(status.model_dump_json()) < 500_000
    assert len(env.model.requests) == 8
