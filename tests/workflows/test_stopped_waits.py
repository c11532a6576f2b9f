"""Tests of runs that are stopped, or paused, while they wait for a person, and of what is told of their calls then."""

import asyncio
import dataclasses
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, cast

import pytest
from temporalio.client import WorkflowUpdateFailedError

from baton import worker
from baton.contracts.control_messages import TerminateRequest
from baton.contracts.decisions import DecisionsState, PendingDecision
from baton.contracts.message import PersonDecision
from baton.testing import Reply, Request
from baton.workflows.state.decisions import Decisions, NotWaiting
from baton.workflows.state.run_trace import RunTrace
from baton.workflows.state.stopping import ActivityInterrupted, StopState
from tests.harness.continued_runs import continued, continued_runs
from tests.harness.environment import Environment, Handle, Json, agent, line, team, texts
from tests.harness.tool_server import ToolServer
from tests.workflows.test_approval import BUY, approve, pending, tool
from tests.workflows.test_messages_before_start import input_of
from tests.workflows.test_people import ANN, people, reply

ACCEPTED: Final = "workflow_execution_update_accepted_event_attributes"
NOT_EXECUTED = "Not executed: the turn ended first."


async def paused_and_continued(env: Environment, handle: Handle) -> Handle:
    """Pauses a run, again and again, until it has continued as new."""
    first, latest = (await handle.describe()).run_id, env.client.get_workflow_handle(handle.id)
    while (await latest.describe()).run_id == first:
        await latest.signal("pause", {"name": "bob"})
    return latest


def buyers(shop: ToolServer) -> list[Json]:
    return [team("team", "buyer", strategy="sequential"), agent("buyer", "buy"), tool(shop, {})]


async def test_a_remembered_yes_carries_out_nothing_once_a_run_is_to_end(
    env: Environment, tool_server: ToolServer
) -> None:
    env.script(line("buyer", BUY, BUY, "Bought."))
    scripted, stopped = env.answer, threading.Event()

    def answer(request: Request) -> Reply:
        assert len(env.model.requests) < 2 or stopped.wait(60)
        return scripted(request)

    env.answer = answer
    handle = await env.start_team(buyers(tool_server))
    (asked,) = await pending(handle)
    await approve(handle, asked, remember=True)
    await env.wait_for_calls(2)
    await handle.signal("terminate_team", {"reason": "enough"})
    stopped.set()
    turn = await asyncio.wait_for(env.turn_result(handle), 60)
    assert (turn.stop_reason, len(tool_server.seen)) == ("terminated", 1)
    assert turn.messages[-1].content == NOT_EXECUTED


async def test_a_yes_that_was_remembered_above_comes_with_the_stop_and_carries_out_nothing(
    env: Environment, tool_server: ToolServer
) -> None:
    env.script(line("buyer", BUY, "Bought."))
    other = dataclasses.replace(env, task_queue=uuid.uuid4().hex)
    async with worker.run_worker(env.client, env.catalog, other.worker_env):
        handle = await other.start_team(buyers(tool_server))
        (asked,) = await pending(handle)
    await handle.signal("terminate_team", {"reason": "enough"})
    yes = {"approved": True, "at": "2026-11-23T00:00:00Z"}
    await handle.signal("remembered", {"rule": asked.rule, "decision": yes})
    async with worker.run_worker(env.client, env.catalog, other.worker_env):
        turn = await asyncio.wait_for(env.turn_result(handle), 60)
    assert (turn.stop_reason, tool_server.seen) == ("terminated", [])
    assert turn.messages[-1].content == NOT_EXECUTED


async def test_a_reply_to_a_paused_run_that_is_then_to_end_is_refused_and_the_run_ends(
    env_with_short_histories: Environment,
) -> None:
    env = env_with_short_histories
    env.script(line("one", "A contract."), line("two", "Signed."))
    handle = await env.start_team([agent("one"), agent("two"), people("one", ANN, "two")])
    await pending(handle)
    handle = await paused_and_continued(env, handle)
    replying = asyncio.create_task(reply(handle, "Yes."))
    while not any(each.HasField(ACCEPTED) for each in (await handle.fetch_history()).events):
        await asyncio.sleep(0.05)
    await handle.signal("terminate_team", {"reason": "enough"})
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await asyncio.wait_for(replying, 60)
    assert "too late" in str(refused.value.cause)
    turn = await asyncio.wait_for(env.turn_result(handle), 60)
    assert (turn.stop_reason, texts(turn.messages)) == ("terminated", ["A contract."])


class ImmediateStop(StopState):
    """A stop request outside of a workflow: what is waited for has come already."""

    async def wait(
        self,
        condition: Callable[[], bool],
        *,
        continues: bool,
        limit: timedelta | float | None = None,
        summary: str | None = None,
    ) -> None:
        assert condition()


async def test_a_decision_is_too_late_if_the_run_is_stopped_while_it_is_checked() -> None:
    """The handler of an update may not raise ActivityInterrupted: that would fail the workflow task."""
    stop = ImmediateStop()
    decisions = Decisions(stop, cast(RunTrace, None))
    now = datetime.now(UTC)
    decisions.restore(DecisionsState(pending=(PendingDecision(id="1", run="run", speaker="buyer", since=now),)))

    async def interrupted(_: PersonDecision) -> None:
        stop.request("terminated", TerminateRequest(now=True))
        raise ActivityInterrupted

    decisions._checks["1"] = interrupted
    with pytest.raises(NotWaiting, match="1 comes too late: the run is ending"):
        await decisions.check("1", PersonDecision(approved=True, at=now))


async def test_a_call_that_was_carried_out_is_told_by_a_run_that_is_stopped_as_it_goes_on(
    env_with_short_histories: Environment, tool_server: ToolServer
) -> None:
    env = env_with_short_histories
    both = {"text": "", "calls": [{"name": "look", "arguments": {"item": "map", "amount": 1}}, BUY["calls"][0]]}
    env.script(line("buyer", both, "Done."))
    tools = [tool(tool_server, {}), tool(tool_server, None, "look")]
    buyer = agent("buyer", "buy", "look", parallelToolCalls=True)
    handle = await env.start_team([team("team", "buyer", strategy="sequential"), buyer, *tools])
    await pending(handle)
    while not any(row.get("role") == "tool" for row in env.rows()):
        await asyncio.sleep(0.02)
    handle = await paused_and_continued(env, handle)
    given = input_of((await continued_runs(env, handle))[1])
    await handle.signal("cancel")
    async with continued(env, "sequential", given, "cancel") as stopped:
        for run in (handle, stopped):
            turn = await asyncio.wait_for(env.turn_result(run), 60)
            told = [each.content for each in turn.messages if each.role == "tool"]
            assert (turn.stop_reason, len(told), told[1]) == ("canceled", 2, NOT_EXECUTED)
            assert told[0] != NOT_EXECUTED
    assert [each.path for each in tool_server.seen] == ["/buy?item=map"]
