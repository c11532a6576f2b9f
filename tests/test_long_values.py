"""What is too long for a history goes by reference: no run is stuck for its size, and nothing is paid for twice."""

from typing import Any

import pytest
from temporalio.service import RPCError

from activities.journal import Blobs, Database
from conversation.wire import storing
from starter.script import Reply
from tests.stage import Stage, agent, call, line, replay, team

HUGE = "x" * 3_000_000


async def size(stage: Stage, handle: Any) -> int:
    """Bytes of a run's history, which is replayed."""
    client = keeping(stage)
    history = await client.get_workflow_handle(handle.id).fetch_history()
    await replay([history], client.data_converter)
    return sum(event.ByteSize() for event in history.events)


def keeping(stage: Stage) -> Any:
    """A client that reaches the journal."""
    return storing(stage.client, Blobs(lambda: Database.at(f"sqlite:///{stage.journal}")))


async def test_arguments_results_and_final_words_of_three_megabytes_are_kept_whole(stage: Stage) -> None:
    stage.script(line("one", call("noop", message=HUGE), call("terminate", HUGE, response=HUGE)))
    handle = await stage.start_team([agent("one", "noop", "terminate"), team("team", "one")])
    turn = await stage.turn(handle)
    assert (turn.stop_reason, len(stage.model.asked)) == ("terminated", 2)
    said = stage.transcript(turn.head.id)
    assert [len(row["content"]) for row in said[2:]] == [len(HUGE)] * 3
    assert [len(row["toolCalls"][0]["arguments"]) > len(HUGE) for row in said[1:4:2]] == [True, True]
    assert await size(stage, handle) < 1_000_000


async def test_answers_of_three_megabytes_are_joined_and_chosen_among(stage: Stage) -> None:
    stage.answer = lambda _: Reply(text=HUGE)
    names = [f"a{n}" for n in range(3)]
    bounded = {"maxTurns": 2, "onMaxTurns": "complete"}
    for strategy, extra, calls in (("parallel", {"aggregator": "a0"}, 4), ("selector", bounded, 2 * 3)):
        stage.model.asked.clear()
        handle = await stage.start_team([*map(agent, names), team("team", *names, strategy=strategy, **extra)])
        turn = await stage.turn(handle)
        assert turn.failure is None, turn.failure
        assert all(len(row["content"]) == len(HUGE) for row in stage.transcript(turn.head.id)[1:])
        assert len(stage.model.asked) == calls
        assert await size(stage, handle) < 1_500_000


async def test_a_long_question_and_long_manifests_are_kept_in_the_journal_by_our_clients(stage: Stage) -> None:
    stage.answer = lambda request: Reply(text=str(len(str(request["messages"][-1]["content"]))))
    brought = [agent("one"), agent("two", prompt=HUGE)]
    given = {"agent": "one", "input": HUGE, "resources": brought}
    handle = await keeping(stage).start_workflow("agent", given, id="long-question", task_queue=stage.task_queue)
    turn = await stage.turn(handle)
    assert turn.message == str(len(HUGE))
    assert await size(stage, handle) < 10_000
    with pytest.raises(RPCError, match=r"exceeds limit|larger than max"):
        await stage.start("agent", given)


async def test_a_status_that_any_client_reads_is_short_however_long_the_answers(stage: Stage) -> None:
    stage.answer = lambda _: Reply(text=HUGE)
    names = [f"a{n}" for n in range(8)]
    handle = await stage.start_query([*map(agent, names)], *(f"agent/{name}" for name in names))
    status = await stage.status(handle)
    assert status.phase == "Completed"
    assert 200_000 < len(status.model_dump_json()) < 500_000
    assert len(stage.model.asked) == 8
