"""A run that continues as new is one run for its clients: for its events, status, list, signals and resets."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from baton.contracts.requests import AskModelResult
from baton.contracts.status import Status
from baton.starter.history.follow import follow
from baton.starter.history.run_events import CallEnded, RunEnded, RunEvent, RunStarted
from baton.starter.runs.listing import recent_runs
from baton.starter.runs.runs import final_status, find_run
from baton.starter.runs.start import run_manifest
from baton.testing import Reply
from tests.harness.continued_runs import check_continued, continued_runs, count_replies, numbers
from tests.harness.environment import Environment, agent, team, texts
from tests.harness.resets import reset, reset_points
from tests.starter.test_ark_events import events

pytestmark = pytest.mark.full

PAIR = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=15)]


@pytest.mark.slow
async def test_a_signal_or_a_cancellation_during_continue_as_new_is_not_lost(
    env_with_short_histories: Environment,
) -> None:
    """Sixteen endless teams get the request to end at sixteen moments around it, among unknown signals."""
    env_with_short_histories.answer = lambda _: Reply(text="…")
    endless = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=999)]

    async def disturbed(number: int) -> tuple[str, str | None, int]:
        handle = await env_with_short_histories.start_team(endless)
        while (await handle.query("status"))["turns"] < 7:
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
        assert len(env_with_short_histories.transcript(status.head.id)) - (status.turns or 0) in (
            0,
            1,
        )  # the last turn may be cut off
        return str(status.stop_reason), status.note, len(await continued_runs(env_with_short_histories, handle))

    ended = await asyncio.gather(*map(disturbed, range(16)))
    assert [reason for reason, *_ in ended] == ["terminated", "canceled"] * 8
    assert [note for _, note, _ in ended[::2]] == [f"enough {number}" for number in range(0, 16, 2)]
    assert max(runs for *_, runs in ended) > 1


async def test_the_events_of_all_its_executions_are_read_once_and_in_order(
    env_with_short_histories: Environment,
) -> None:
    env_with_short_histories.answer = count_replies
    inner = team("inner", "one", "two", maxTurns=8, onMaxTurns="complete")
    handle = await env_with_short_histories.start_query(
        [*PAIR, inner, team("outer", "inner", "one", maxTurns=2)], "team/outer"
    )
    live: list[RunEvent] = []
    await follow(env_with_short_histories.client, handle, live.append)
    status = await final_status(env_with_short_histories.client, handle)
    later: list[RunEvent] = []
    await follow(env_with_short_histories.client, handle, later.append, wait=False)
    ends = [each.run.name for each in live if isinstance(each, RunEnded)]
    assert ends == [each.run.name for each in later if isinstance(each, RunEnded)] == ["inner", "inner", "outer", "q"]
    for seen in (live, later):
        assert said_in(seen) == numbers(34)
        assert (
            sum(isinstance(each, RunStarted) for each in seen) == sum(isinstance(each, RunEnded) for each in seen) == 4
        )
        assert {each.failure.type if each.failure else None for each in seen if isinstance(each, RunEnded)} == {
            None,
            "MaxTurnsReached",
        }
    assert len({each.run.run_id for each in later}) > 6
    names = [each.name for each in await events(env_with_short_histories.client, handle)]
    assert names.count("TeamExecutionStarted") == names.count("TeamExecutionCompleted") + 1 == 3
    assert (names.count("TeamTurn"), names.count("LLMCallCompleted"), names.count("ContextLoaded")) == (39, 34, 1)
    assert status.token_usage.model_calls == 34


def said_in(seen: list[RunEvent]) -> list[str]:
    replies = [each.result for each in seen if isinstance(each, CallEnded)]
    return [reply.message.content for reply in replies if isinstance(reply, AskModelResult)]


async def test_a_status_counts_from_the_first_execution_and_the_run_is_found_and_listed_once(
    env_with_short_histories: Environment,
) -> None:
    env_with_short_histories.answer = lambda request: Reply(text="…", delay=0.02)
    handle = await env_with_short_histories.start_team(PAIR)
    began = (await handle.describe()).start_time
    turn = await env_with_short_histories.turn_result(handle)
    await check_continued(env_with_short_histories, handle)
    status: Any = await handle.query("status")
    assert status["turns"] == turn.turns == 30
    second = (await continued_runs(env_with_short_histories, handle))[1].events[0].event_time.ToDatetime(UTC)
    assert began - timedelta(seconds=1) < datetime.fromisoformat(status["startTime"]) < second
    await env_with_short_histories.find_runs("BatonStopReason = 'max_turns' AND BatonTeam = 'team'", 1)
    assert await env_with_short_histories.find_runs("BatonPhase = 'Failed' AND BatonStrategy = 'round-robin'", 1) == [
        handle.id
    ]
    (run,) = await recent_runs(env_with_short_histories.client, None, 20, env_with_short_histories.task_queue)
    assert (run.id, run.state) == (handle.id, "Failed")
    assert abs((run.start - began).total_seconds()) < 1
    again = await find_run(env_with_short_histories.client, handle.id, "default")
    manifest = await run_manifest(env_with_short_histories.client, again, Status.model_validate(status))
    assert manifest["spec"] == PAIR[2]["spec"]


async def test_a_timeout_and_a_condition_on_time_count_from_the_first_execution(
    env_with_short_histories: Environment,
) -> None:
    env_with_short_histories.answer = lambda request: Reply(text="…", delay=0.1 if len(request["messages"]) > 2 else 2)
    endless = [agent("one"), team("team", "one", terminateWhen="elapsed > 2 && turn >= 15", maxTurns=999)]
    asked = await env_with_short_histories.start_team(endless)
    names = [f"a{n}" for n in range(12)]
    slow = [agent(name) for name in names]
    limited = await env_with_short_histories.start_query(
        [*slow, team("team", *names, maxTurns=9)], "team/team", timeout="2s"
    )
    turn, status = await env_with_short_histories.turn_result(asked), await env_with_short_histories.status(limited)
    assert not turn.failure, turn.failure
    assert (turn.stop_reason, len(await continued_runs(env_with_short_histories, asked)) > 1) == ("condition", True)
    assert turn.turns == 15, "the first turn took two seconds, and was made in the first execution"
    assert (status.stop_reason, status.phase) == ("timeout", "Failed")


async def test_a_stall_is_detected_across_executions(env_with_short_histories: Environment) -> None:
    said = iter([*map(str, range(7)), *["After you!"] * 50])
    env_with_short_histories.answer = lambda _: Reply(text=next(said))
    handle = await env_with_short_histories.start_team(
        [agent("one"), team("team", "one", noProgress={"window": 4}, maxTurns=99)]
    )
    turn = await env_with_short_histories.turn_result(handle)
    assert not turn.failure, turn.failure
    assert (turn.stop_reason, turn.turns) == ("no_progress", 12)
    assert len(await continued_runs(env_with_short_histories, handle)) == 2


@pytest.mark.parametrize("where", ["the current run", "a run before it"])
async def test_a_team_that_is_reset_goes_on_from_there_in_any_execution(
    env_with_short_histories: Environment, where: str
) -> None:
    env_with_short_histories.answer = count_replies
    handle = await env_with_short_histories.start_team(PAIR)
    first = await env_with_short_histories.turn_result(handle)
    runs = await check_continued(env_with_short_histories, handle)
    meant = runs[-1] if where == "the current run" else runs[1]
    started = meant.events[0].workflow_execution_started_event_attributes
    old = env_with_short_histories.client.get_workflow_handle(handle.id, run_id=started.original_execution_run_id)
    other = await reset(env_with_short_histories, old, (await reset_points(old))[1])
    again = await env_with_short_histories.turn_result(env_with_short_histories.client.get_workflow_handle(handle.id))
    assert texts(again.messages) == texts(first.messages) == numbers(30)
    assert (again.stop_reason, again.head != first.head) == ("max_turns", True)
    seen: list[RunEvent] = []
    await follow(env_with_short_histories.client, other, seen.append, wait=False)
    assert said_in(seen) == numbers(30), "only the executions that led here are read"


@pytest.mark.parametrize("how", ["cancel", "terminate_team", "now"])
async def test_a_query_reaches_its_team_in_any_execution(env_with_short_histories: Environment, how: str) -> None:
    env_with_short_histories.answer = lambda _: Reply(text="…", delay=0.02)
    endless = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=999)]
    handle = await env_with_short_histories.start_query(endless, "team/team")
    await env_with_short_histories.wait_for_calls(20)
    if how == "cancel":
        await handle.cancel()
    else:
        await handle.signal("terminate_team", {"reason": "enough", "now": how == "now"})
    with contextlib.suppress(WorkflowFailureError):
        await asyncio.wait_for(handle.result(), 60)
    status = Status.model_validate_json(json.dumps(await handle.query("status")))
    assert status.stop_reason == ("canceled" if how == "cancel" else "terminated")
    assert len(env_with_short_histories.model.requests) < 200
    team_run = env_with_short_histories.client.get_workflow_handle(f"{handle.id}/target-1/team")
    assert (await team_run.describe()).status is not WorkflowExecutionStatus.RUNNING
