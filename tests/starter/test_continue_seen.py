"""Whoever watches, steers or asks a run that goes on in new ones sees one run, from its first word to its last."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from baton.conversation.contracts.requests import Asked
from baton.conversation.contracts.status import Status
from baton.starter.history.follow import follow
from baton.starter.history.run_events import CallEnded, Happening, RunBegan, RunEnded
from baton.starter.runs.list_runs import listed
from baton.starter.runs.runs import described, final_status, find_run
from baton.starter.scripted_model.script import Reply
from tests.harness.stage import Stage, agent, team, texts
from tests.replay.test_continue import chain, check, counted, numbers
from tests.replay.test_history import reset, steps
from tests.starter.test_events import events
from tests.workflows.test_attributes import found

PAIR = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=15)]


async def test_a_signal_or_cancel_that_comes_as_a_run_goes_on_is_not_lost(relay: Stage) -> None:
    """Sixteen endless teams are told to end at sixteen moments around that one, amid signals that mean nothing."""
    relay.answer = lambda _: Reply(text="…")
    endless = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=999)]

    async def disturbed(number: int) -> tuple[str, str | None, int]:
        handle = await relay.start_team(endless)
        while (await handle.query("status"))["turns"] < 5:
            await asyncio.sleep(0.05)
        for _ in range(10):
            await handle.signal("nothing", number)
            await asyncio.sleep(0.003 * number)
        if number % 2:
            await handle.cancel()
        else:
            await handle.signal("terminate_team", f"enough {number}")
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        status = Status.model_validate_json(json.dumps(await handle.query("status")))
        assert status.head
        assert len(relay.transcript(status.head.id)) - (status.turns or 0) in (0, 1)  # the last turn may be cut off
        return str(status.stop_reason), status.note, len(await chain(relay, handle))

    ended = await asyncio.gather(*map(disturbed, range(16)))
    assert [reason for reason, *_ in ended] == ["terminated", "canceled"] * 8
    assert [note for _, note, _ in ended[::2]] == [f"enough {number}" for number in range(0, 16, 2)]
    assert max(runs for *_, runs in ended) > 1


async def test_all_that_happens_in_all_its_runs_is_told_once_and_in_order(relay: Stage) -> None:
    relay.answer = counted
    inner = team("inner", "one", "two", maxTurns=8, onMaxTurns="complete")
    handle = await relay.start_query([*PAIR, inner, team("outer", "inner", "one", maxTurns=2)], "team/outer")
    live: list[Happening] = []
    await follow(relay.client, handle, live.append)
    status = await final_status(handle)
    later: list[Happening] = []
    await follow(relay.client, handle, later.append, wait=False)
    ends = [each.run.name for each in live if isinstance(each, RunEnded)]
    assert ends == [each.run.name for each in later if isinstance(each, RunEnded)] == ["inner", "inner", "outer", "q"]
    for told in (live, later):
        assert said_in(told) == numbers(34)
        assert sum(isinstance(each, RunBegan) for each in told) == sum(isinstance(each, RunEnded) for each in told) == 4
        assert {each.failure.type if each.failure else None for each in told if isinstance(each, RunEnded)} == {
            None,
            "MaxTurnsReached",
        }
    assert len({each.run.run_id for each in later}) > 6
    names = [each.name for each in await events(relay.client, handle)]
    assert names.count("TeamExecutionStarted") == names.count("TeamExecutionCompleted") + 1 == 3
    assert (names.count("TeamTurn"), names.count("LLMCallCompleted"), names.count("ContextLoaded")) == (39, 34, 1)
    assert status.token_usage.model_calls == 34


def said_in(told: list[Happening]) -> list[str]:
    replies = [each.reply for each in told if isinstance(each, CallEnded)]
    return [reply.message.content for reply in replies if isinstance(reply, Asked)]


async def test_a_status_counts_from_the_first_run_and_what_ran_is_found_and_listed_once(relay: Stage) -> None:
    relay.answer = lambda request: Reply(text="…", delay=0.02)
    handle = await relay.start_team(PAIR)
    began = (await handle.describe()).start_time
    turn = await relay.turn(handle)
    await check(relay, handle)
    status: Any = await handle.query("status")
    assert status["turns"] == turn.turns == 30
    assert status["startTime"] == began.isoformat(timespec="seconds").replace("+00:00", "Z")
    await found(relay, "BatonStopReason = 'max_turns' AND BatonTeam = 'team'", 1)
    assert await found(relay, "BatonPhase = 'Failed' AND BatonStrategy = 'round-robin'", 1) == [handle.id]
    (run,) = await listed(relay.client, None, 20, relay.task_queue)
    assert (run.id, run.state) == (handle.id, "Failed")
    assert abs((run.start - began).total_seconds()) < 1
    again = await find_run(relay.client, handle.id, "default")
    manifest = await described(relay.client, again, Status.model_validate(status))
    assert manifest["spec"] == PAIR[2]["spec"]


async def test_a_timeout_and_a_condition_on_time_count_from_the_first_run(relay: Stage) -> None:
    relay.answer = lambda _: Reply(text="…", delay=0.1)
    endless = [agent("one"), team("team", "one", terminateWhen="elapsed > 2.5", maxTurns=999)]
    asked = await relay.start_team(endless)
    names = [f"a{n}" for n in range(12)]
    slow = [agent(name) for name in names]
    limited = await relay.start_query([*slow, team("team", *names, maxTurns=9)], "team/team", timeout="2s")
    turn, status = await relay.turn(asked), await relay.status(limited)
    assert not turn.failure, turn.failure
    assert (turn.stop_reason, len(await chain(relay, asked)) > 1) == ("condition", True)
    assert 0.1 * turn.turns + 2 > 2.5 and turn.turns < 26
    assert (status.stop_reason, status.phase) == ("timeout", "Failed")


async def test_progress_is_watched_across_runs(relay: Stage) -> None:
    said = iter([*map(str, range(7)), *["After you!"] * 50])
    relay.answer = lambda _: Reply(text=next(said))
    handle = await relay.start_team([agent("one"), team("team", "one", noProgress={"window": 4}, maxTurns=99)])
    turn = await relay.turn(handle)
    assert not turn.failure, turn.failure
    assert (turn.stop_reason, turn.turns) == ("no_progress", 12)
    assert len(await chain(relay, handle)) == 2


@pytest.mark.parametrize("where", ["the current run", "a run before it"])
async def test_a_team_that_is_reset_goes_on_from_there_in_whatever_run_that_is(relay: Stage, where: str) -> None:
    relay.answer = counted
    handle = await relay.start_team(PAIR)
    first = await relay.turn(handle)
    runs = await check(relay, handle)
    meant = runs[-1] if where == "the current run" else runs[1]
    started = meant.events[0].workflow_execution_started_event_attributes
    old = relay.client.get_workflow_handle(handle.id, run_id=started.original_execution_run_id)
    other = await reset(relay, old, (await steps(old))[1])
    again = await relay.turn(relay.client.get_workflow_handle(handle.id))
    assert texts(again.messages) == texts(first.messages) == numbers(30)
    assert (again.stop_reason, again.head != first.head) == ("max_turns", True)
    told: list[Happening] = []
    await follow(relay.client, other, told.append, wait=False)
    assert said_in(told) == numbers(30), "watchers are told of the runs that led here alone"


@pytest.mark.parametrize("how", ["cancel", "terminate_team", "now"])
async def test_a_query_reaches_its_team_in_whatever_run_that_is(relay: Stage, how: str) -> None:
    relay.answer = lambda _: Reply(text="…", delay=0.02)
    endless = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=999)]
    handle = await relay.start_query(endless, "team/team")
    await relay.asked(20)
    if how == "cancel":
        await handle.cancel()
    else:
        await handle.signal("terminate_team", {"reason": "enough", "now": how == "now"})
    with contextlib.suppress(WorkflowFailureError):
        await asyncio.wait_for(handle.result(), 10)
    status = Status.model_validate_json(json.dumps(await handle.query("status")))
    assert status.stop_reason == ("canceled" if how == "cancel" else "terminated")
    assert len(relay.model.asked) < 200
    team_run = relay.client.get_workflow_handle(f"{handle.id}/target-1/team")
    assert (await team_run.describe()).status is not WorkflowExecutionStatus.RUNNING
