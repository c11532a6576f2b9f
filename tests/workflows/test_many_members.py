"""Teams and queries with more members and targets than run at once: all run once, and are listed in their order."""

import asyncio
import contextlib
import threading

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateFailedError

from baton.testing import Reply, Request
from tests.harness.continued_runs import continued_runs
from tests.harness.environment import Environment, agent, team
from tests.harness.large_teams import PARALLEL_CALLS, BusyModel, busy_team, serving_tool
from tests.replay.scenarios import is_handled

CHILD_COMPLETED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED

NAMES = [f"a{number}" for number in range(105)]
"""More than the 100 that run at once."""


def own_name(request: Request) -> Reply:
    """Each says its name."""
    return Reply(text=request["messages"][0]["content"].removeprefix("You are ").removesuffix("."))


@pytest.mark.slow
async def test_all_members_of_a_wide_parallel_team_speak_once(env: Environment) -> None:
    env.answer = own_name
    wide = [*map(agent, NAMES), team("team", *NAMES, strategy="parallel")]
    turn = await env.turn_result(await env.start_team(wide))
    assert (turn.stop_reason, turn.turns) == ("completed", len(NAMES))
    assert [row["content"] for row in env.transcript(turn.head.id)[1:]] == NAMES
    assert turn.usage.model_calls == len(env.model.requests) == len(NAMES)


@pytest.mark.slow
async def test_all_targets_of_a_wide_query_answer_once(env: Environment) -> None:
    env.answer = own_name
    status = await env.status(await env.start_query([*map(agent, NAMES)], *(f"agent/{name}" for name in NAMES)))
    assert [(each.target.name, each.message, each.stop_reason) for each in status.responses] == [
        (name, name, "completed") for name in NAMES
    ]
    assert len(env.model.requests) == len(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine takes minutes for a hundred runs at once
async def test_with_fail_fast_a_long_query_starts_no_target_after_the_first_failure(
    env_with_short_histories: Environment,
) -> None:
    """Its history is long once the first target has ended, so the next run would start those that are left."""
    env = env_with_short_histories

    def answer(request: Request) -> Reply:
        name = own_name(request).text
        if name == "a1":
            return Reply(text="no", status=400, held=True)
        return Reply(text=name, hang=name in NAMES[2:100])

    def asked() -> set[str]:
        """Whose models were asked, on a busy machine more than once: missed heartbeats repeat what was not answered."""
        return {own_name(request.body).text for request in env.model.requests}

    env.answer = answer
    targets = [f"agent/{name}" for name in NAMES]
    handle = await env.start_query([*map(agent, NAMES)], *targets, failFast=True)
    while len(asked()) < 100:
        await asyncio.sleep(0.05)
    while not is_handled(await handle.fetch_history(), CHILD_COMPLETED, 1):
        await asyncio.sleep(0.1)
    env.model.release()
    status = await env.status(handle)
    assert (status.phase, len(await continued_runs(env, handle))) == ("Failed", 1)
    assert [each.status for each in status.responses] == ["Success", *["Failed"] * 99, *["Canceled"] * 5]
    assert asked() == {*NAMES[:100]}


@pytest.mark.slow
async def test_a_parallel_team_whose_agents_take_many_steps_with_long_results_fits_into_its_histories(
    env: Environment,
) -> None:
    env.answer = BusyModel().answer
    with serving_tool() as tool:
        turn = await env.turn_result(await env.start_team(busy_team(8, tool)))
    assert (turn.stop_reason, turn.turns) == ("completed", 8)
    assert (turn.usage.model_calls, turn.usage.tool_calls) == tuple(8 * calls for calls in PARALLEL_CALLS)
    sizes = [
        (await run.describe()).raw_description.workflow_execution_info.history_size_bytes
        async for run in env.closed_runs()
    ]
    assert (len(sizes), max(sizes) < 2_000_000) == (9, True)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine takes minutes for a hundred copies of each message
async def test_long_messages_to_a_wide_team_fit_into_what_temporal_takes_at_once(env: Environment) -> None:
    """Each of 100 members gets 60 kB several times: that is more than one task, or one history, may hold."""
    names = NAMES[:100]
    ready = threading.Event()

    def answer(request: Request) -> Reply:
        ready.wait(60)
        return Reply(text="Yes.")

    env.answer = answer
    handle = await env.start_team([*map(agent, names), team("team", *names, strategy="parallel")])
    await env.wait_for_calls(1)
    accepted = 0
    with contextlib.suppress(WorkflowUpdateFailedError):
        for _ in range(10):
            await handle.execute_update("steer", {"text": "x" * 60_000})
            accepted += 1
    ready.set()
    turn = await env.turn_result(handle)
    events = (await handle.fetch_history()).events
    assert (turn.stop_reason, turn.turns, accepted > 2) == ("completed", 100, True)
    assert not [event for event in events if event.HasField("workflow_task_failed_event_attributes")]
    assert sum(event.ByteSize() for event in events) < 40_000_000
