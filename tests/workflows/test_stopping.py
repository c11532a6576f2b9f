"""Ending a run from outside: gracefully by a signal, at once, or by a cancel; all messages are kept."""

import asyncio
import json
import time
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from tests.harness.environment import Environment, Handle, agent, call, line, signaled, team, texts

DUO = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=50)]


async def duo(env: Environment, third: str) -> Handle:
    """A team of two in the midst of its third turn, whose answer is ``held`` until it is released, or does ``hang``."""
    env.script(line("one", "one 1", {"text": "one 2", third: True}, "one 3"), line("two", "two 1", "two 2", "two 3"))
    handle = await env.start_team(DUO)
    await env.wait_for_calls(3)
    return handle


@pytest.mark.parametrize(
    ("payload", "note"),
    [
        pytest.param([{"reason": "enough", "now": False}], "enough", id="an-object"),
        pytest.param(["enough"], "enough", id="a-text"),
        pytest.param([], None, id="nothing"),
        pytest.param([{"reason": 5, "now": "yes"}, "more"], None, id="what-makes-no-sense"),
    ],
)
async def test_the_signal_ends_a_team_gracefully_after_the_current_turn(
    env: Environment, payload: list[Any], note: str | None
) -> None:
    handle = await duo(env, "held")
    await handle.signal("terminate_team", args=payload)
    env.model.release()
    turn = await env.turn_result(handle)
    assert (turn.stop_reason, turn.note, turn.failure) == ("terminated", note, None)
    assert texts(turn.messages) == ["one 1", "two 1", "one 2"]
    assert len(env.model.requests) == 3


async def test_a_signal_that_nobody_can_read_still_ends_the_team(env: Environment) -> None:
    handle = await duo(env, "held")
    broken = Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=b"{no json")])
    await env.client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace="default",
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            signal_name="terminate_team",
            input=broken,
        ),
        retry=True,
    )
    env.model.release()
    assert (await env.turn_result(handle)).stop_reason == "terminated"


async def test_a_signal_with_now_gives_up_the_call_in_flight(env: Environment) -> None:
    handle = await duo(env, "hang")
    begun = time.monotonic()
    await handle.signal("terminate_team", {"reason": "stop it", "now": True})
    turn = await env.turn_result(handle)
    assert time.monotonic() - begun < 60
    assert (turn.stop_reason, turn.note, turn.failure) == ("terminated", "stop it", None)
    assert texts(turn.messages) == ["one 1", "two 1"]


async def test_an_unknown_signal_changes_nothing(env: Environment) -> None:
    env.script(line("one", "hello"))
    handle = await env.start_team([agent("one"), team("team", "one", strategy="sequential")])
    await handle.signal("whatever", "x")
    assert (await env.turn_result(handle)).stop_reason == "completed"


async def test_a_cancel_closes_a_team_as_canceled_with_all_that_was_said(env: Environment) -> None:
    handle = await duo(env, "hang")
    begun = time.monotonic()
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    assert time.monotonic() - begun < 60
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    status = await handle.query("status")
    assert (status["phase"], status["stopReason"]) == ("Canceled", "canceled")
    assert [message["content"] for message in status["messages"]] == ["one 1", "two 1"]


@pytest.mark.full
async def test_a_cancel_closes_the_runs_below_as_canceled_too_and_nothing_of_them_is_lost(env: Environment) -> None:
    env.script(line("one", "one 1", "one 2", {"text": "late", "delay": 100}), line("two", "two 1"))
    inner = team("inner", "one", "two", maxTurns=50)
    middle = team("middle", "inner", strategy="sequential")
    outer = team("team", "one", "middle", strategy="sequential")
    handle = await env.start_team([agent("one"), agent("two"), inner, middle, outer])
    await env.wait_for_calls(4)
    runs = [
        env.client.get_workflow_handle(f"{handle.id}{path}")
        for path in ("/turn-2/middle", "/turn-2/middle/turn-1/inner")
    ]
    await runs[1].execute_update("steer", {"text": "Hurry.", "name": "ann"})
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert [(await run.describe()).status for run in runs] == [WorkflowExecutionStatus.CANCELED] * 2
    status = await handle.query("status")
    assert [message["content"] for message in status["messages"]] == ["one 1", "one 2", "two 1"]
    rows = env.transcript(status["head"]["id"])
    assert [row["content"] for row in rows] == ["Why?", "one 1", "one 2", "two 1", "Hurry."]


async def test_a_cancel_reaches_the_model_call_in_flight(env: Environment) -> None:
    handle = await duo(env, "hang")
    await env.wait_for_calls(3)
    begun = time.time()
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    while env.model.requests[2].disconnected_at is None:
        await asyncio.sleep(0.05)
    assert env.model.requests[2].disconnected_at - begun < 60


async def test_the_signal_cancel_does_what_a_cancel_does(env: Environment) -> None:
    handle = await duo(env, "hang")
    await handle.signal("cancel", "changed my mind")
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    status = await handle.query("status")
    assert (status["phase"], status["note"]) == ("Canceled", "changed my mind")


async def test_a_cancel_in_the_midst_of_tool_calls_leaves_none_of_them_unanswered(env: Environment) -> None:
    replies = {"text": "", "calls": [{"name": "noop", "arguments": {"message": "a"}}] * 2}
    env.script(line("one", replies, {"text": "late", "delay": 30}))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one", "noop")]})
    await env.wait_for_calls(2)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    status = await handle.query("status")
    rows = env.transcript(status["head"]["id"])
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool"]


async def test_the_signal_reaches_the_teams_of_a_query_and_the_query_counts_as_completed(env: Environment) -> None:
    env.script(line("one", "one 1", {"text": "one 2", "held": True}, "one 3"), line("two", "two 1", "two 2"))
    handle = await env.start_query(DUO, "team/team")
    await env.wait_for_calls(3)
    await handle.signal("terminate_team", {"reason": "enough"})
    await signaled(env.client.get_workflow_handle(f"{handle.id}/target-1/team"), "terminate_team")
    env.model.release()
    status = await env.status(handle)
    assert (status.phase, status.stop_reason, status.note, status.error) == ("Completed", "terminated", "enough", None)
    assert (status.responses[0].status, status.responses[0].stop_reason) == ("Success", "terminated")
    assert status.message == "one 2"


async def test_a_query_that_is_terminated_before_it_has_begun_asks_nobody(env: Environment) -> None:
    env.script(line("one", "1"), line("two", "a"))
    asked = {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}
    given = {"spec": asked, "resources": DUO}
    handle = await env.start("query", given, start_signal="terminate_team", start_signal_args=["never mind"])
    status = await env.status(handle)
    assert (status.phase, status.stop_reason, status.note) == ("Completed", "terminated", "never mind")
    assert not env.model.requests
    child = await env.client.get_workflow_handle(f"{handle.id}/target-1/team").fetch_history()
    given = json.loads(child.events[0].workflow_execution_started_event_attributes.input.payloads[0].data)
    assert given["stop"]["reason"] == "terminated"


async def test_a_query_that_is_ended_now_keeps_what_was_said_and_counts_as_completed(env: Environment) -> None:
    env.script(line("one", "one 1", "one 2"), line("two", "two 1", {"text": "late", "delay": 30}))
    handle = await env.start_query(DUO, "team/team")
    await env.wait_for_calls(4)
    await handle.signal("terminate_team", {"now": True})
    status = await env.status(handle)
    assert (status.phase, status.stop_reason) == ("Completed", "terminated")
    assert status.responses[0].stop_reason == "terminated"
    assert texts(status.responses[0].messages) == ["one 1", "two 1", "one 2"]


async def test_a_query_that_is_canceled_keeps_what_was_said(env: Environment) -> None:
    env.script(line("one", "one 1", {"text": "late", "delay": 30}), line("two", "two 1"))
    handle = await env.start_query(DUO, "team/team")
    await env.wait_for_calls(3)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    status = await handle.query("status")
    assert (status["phase"], status["stopReason"]) == ("Canceled", "canceled")
    assert (status["responses"][0]["status"], status["responses"][0]["error"]) == ("Canceled", "canceled")
    assert [message["content"] for message in status["responses"][0]["messages"]] == ["one 1", "two 1"]
    child = env.client.get_workflow_handle(f"{handle.id}/target-1/team")
    assert (await child.query("status"))["phase"] == "Canceled"


async def test_a_query_that_is_canceled_before_anybody_was_asked_closes_all_the_same(env: Environment) -> None:
    env.script(line("one", {"text": "late", "delay": 30}))
    handle = await env.start_query(DUO, "team/team")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    assert (await handle.query("status"))["phase"] == "Canceled"


async def test_an_agents_tool_call_is_not_lost_when_it_terminates_among_others(env: Environment) -> None:
    both = [
        {"name": "noop", "arguments": {"message": "kept"}},
        {"name": "terminate", "arguments": {"response": "End."}},
    ]
    env.script(line("one", {"calls": [both[1], both[0]]}))
    turn = await env.turn_result(await env.start_team([agent("one", "noop", "terminate"), team("team", "one")]))
    assert (turn.stop_reason, texts(turn.messages)) == ("terminated", ["", "End.", "kept"])


async def test_an_agent_asked_alone_that_terminates_ends_normally(env: Environment) -> None:
    env.script(line("one", call("terminate", response="Good bye.")))
    status = await env.status(await env.start_query([agent("one", "terminate")], "agent/one"))
    assert (status.phase, status.stop_reason, status.message) == ("Completed", "completed", "Good bye.")


async def test_a_failed_run_is_red_in_temporal_and_says_why(env: Environment) -> None:
    env.script(line("one", {"status": 400, "text": "bad"}))
    handle = await env.start_query([agent("one")], "agent/one")
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == "ModelRejected"
    assert failure.value.cause.details[0]["phase"] == "Failed"


@pytest.mark.full
async def test_a_worker_logs_a_failed_attempt_in_a_line_and_nothing_of_a_cancelled_call(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    env.script(line("one", {"text": "late", "hang": True}), line("two", {"status": 400, "text": "bad", "held": True}))
    handle = await env.start_query([agent("one"), agent("two")], "agent/one", "agent/two", failFast=True)
    await env.wait_for_calls(2)
    env.model.release()
    assert (await env.status(handle)).phase == "Failed"
    while not any(request.disconnected_at for request in env.model.requests):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    logged = [record for record in caplog.records if record.name == "temporalio.activity"]
    assert [record.getMessage().partition("ModelRejected")[0] for record in logged] == [
        "Completing activity as failed: "
    ]
    assert not [record for record in logged if record.exc_info]
