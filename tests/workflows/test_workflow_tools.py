"""Tests of tools that are workflows of an application, on a worker of its own that knows nothing of Baton."""

import asyncio
import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from baton.contracts.status import Status
from baton.starter.console.status import print_status
from baton.starter.history.follow import follow
from baton.starter.history.run_events import RunEvent
from baton.starter.runs.decisions import all_pending_decisions
from baton.starter.runs.listing import recent_runs
from baton.starter.runs.runs import live_status
from baton.temporal.executions import run_tree
from baton.workflows.discussion.agent_turn import INTERRUPTED
from tests.harness.continued_runs import continued_runs
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team
from tests.harness.manifests import Writer
from tests.harness.payments import SCHEMA
from tests.harness.replayer import replay
from tests.harness.resets import reset, reset_points
from tests.harness.settlements import settlements, workflow_tool
from tests.harness.signals import SignalWhileAChildStarts
from tests.workflows.test_activity_tools import results, start
from tests.workflows.test_approval import approve

BY_POSITION: Json = {"arguments": ["amount", "currency"]}
SETTLE = call("settle", amount=120)
INSPECT = call("inspect", amount=120)


async def waiting_for_workflow(env: Environment, handle: Handle) -> WorkflowHandle[Any, Any]:
    """The workflow that a tool call waits for, once the status shows it."""
    while True:
        status: Status = await live_status(env.client, handle)
        if status.workflows:
            (workflow_id,) = status.workflows
            return env.client.get_workflow_handle(workflow_id)
        await asyncio.sleep(0.02)


async def test_a_workflow_gets_the_arguments_by_position_and_its_result_is_read_after_it_has_continued_as_new(
    env: Environment,
) -> None:
    env.script(line("adjuster", SETTLE, "Settled."))
    async with settlements(env.client) as queue:
        handle = await start(env, workflow_tool(queue, workflow=BY_POSITION, description="Settles a claim."))
        assert await results(env, handle) == ['{"amount":120,"currency":"EUR"}']
    (sent,) = env.model.requests[0].body["tools"]
    assert (sent["function"]["description"], sent["function"]["parameters"]) == ("Settles a claim.", SCHEMA)
    (started,) = [
        event.start_child_workflow_execution_initiated_event_attributes
        for event in (await handle.fetch_history()).events
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]
    described = await env.client.get_workflow_handle(started.workflow_id).describe()
    assert (started.workflow_type.name, described.task_queue, described.parent_id) == ("settle", queue, handle.id)
    assert started.workflow_id.startswith(f"{handle.id}/call-")
    await replay([await handle.fetch_history()])


@pytest.mark.full
async def test_the_status_shows_the_workflow_that_a_call_waits_for_and_it_is_no_run(env: Environment) -> None:
    env.script(line("adjuster", INSPECT, "Inspected."))
    async with settlements(env.client) as queue:
        handle = await start(env, workflow_tool(queue, "inspect", "inspect"))
        inspect = await waiting_for_workflow(env, handle)
        text = io.StringIO()
        print_status(Console(file=text, width=500), handle.id, await live_status(env.client, handle))
        assert f"waits for the workflow {inspect.id}" in text.getvalue()
        assert inspect.id not in [run.id for run in await recent_runs(env.client, None, 500)]
        await inspect.signal("inspected", "a broken wheel")
        assert await results(env, handle) == ["a broken wheel of 120"]
        status: Status = await handle.query("status", result_type=Status)
        assert status.workflows is None
        description = await handle.describe()
        tree = await run_tree(env.client, handle.id, description.run_id)
        assert {execution.workflow_id for execution in tree} == {handle.id}, "baton prune leaves the workflow alone"
    events = list[RunEvent]()
    await follow(env.client, handle, events.append, wait=False)
    assert {event.run.id for event in events} == {handle.id}


async def test_a_failure_is_told_to_the_model_by_the_message_of_its_innermost_cause(env: Environment) -> None:
    env.script(line("adjuster", call("settle", amount=2_000), "Too much, then."))
    async with settlements(env.client) as queue:
        turn = await env.turn_result(await start(env, workflow_tool(queue, workflow=BY_POSITION)))
    assert [each.content for each in turn.messages if each.role == "tool"] == ["Error: the limit is 1000"]
    assert (turn.message, turn.usage.tool_calls) == ("Too much, then.", 1)


@pytest.mark.parametrize("end", ["timeout", "cancel", "terminate"])
async def test_a_workflow_that_ends_without_a_result_is_told_to_the_model(env: Environment, end: str) -> None:
    env.script(line("adjuster", INSPECT, "Well."))
    async with settlements(env.client) as queue:
        limit = {"timeout": "1s"} if end == "timeout" else {}
        handle = await start(env, workflow_tool(queue, "inspect", "inspect", **limit))
        if end == "cancel":
            await (await waiting_for_workflow(env, handle)).cancel()
        if end == "terminate":
            await (await waiting_for_workflow(env, handle)).terminate()
        (result,) = await results(env, handle)
    how = {"timeout": "took too long", "cancel": "was canceled", "terminate": "was terminated"}[end]
    assert result == f"Error: the workflow 'inspect' {how}"


@pytest.mark.full
@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("request_", ["cancel", "terminate now"])
async def test_the_end_of_the_run_cancels_the_workflow_and_does_not_wait_for_it(
    env: Environment, request_: str, served: bool
) -> None:
    env.script(line("adjuster", INSPECT, "Well."))
    async with settlements(env.client) as queue:
        handle = await start(env, workflow_tool(queue if served else "nowhere", "inspect", "inspect"))
        inspect = await waiting_for_workflow(env, handle)
        if request_ == "cancel":
            await handle.cancel()
        else:
            await handle.signal("terminate_team", {"now": True})
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        if served:
            with pytest.raises(WorkflowFailureError):
                await inspect.result()
            assert (await inspect.describe()).status is WorkflowExecutionStatus.CANCELED
        else:
            while not (await inspect.describe()).raw_description.workflow_extended_info.cancel_requested:
                await asyncio.sleep(0.02)
            await inspect.terminate()
        status = await handle.query("status")
    assert status["stopReason"] == ("canceled" if request_ == "cancel" else "terminated")
    (result,) = [message["content"] for message in status["messages"] if message["role"] == "tool"]
    assert result == INTERRUPTED


async def test_a_run_that_is_terminated_while_it_starts_the_workflow_cancels_it_and_says_that_it_was_interrupted(
    client: Client, tmp_path: Path
) -> None:
    signals = SignalWhileAChildStarts(client, "inspect", "terminate_team", {"now": True})
    async with Environment.running(signals.client, tmp_path) as env, settlements(env.client) as queue:
        env.script(line("adjuster", INSPECT, "Well."))
        handle = await start(env, workflow_tool(queue, "inspect", "inspect"))
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        status: Status = await handle.query("status", result_type=Status)
        (started,) = [
            event.child_workflow_execution_started_event_attributes
            for event in (await handle.fetch_history()).events
            if event.HasField("child_workflow_execution_started_event_attributes")
        ]
        inspect = env.client.get_workflow_handle(started.workflow_execution.workflow_id)
        with pytest.raises(WorkflowFailureError):
            await inspect.result()
        assert (await inspect.describe()).status is WorkflowExecutionStatus.CANCELED
    assert (status.stop_reason, await results(env, handle)) == ("terminated", [INTERRUPTED])


@pytest.mark.full
async def test_an_approved_call_in_a_team_below_a_team_gets_the_changed_arguments(
    env: Environment,
) -> None:
    env.script(line("adjuster", SETTLE, "Settled."))
    async with settlements(env.client) as queue:
        tool = workflow_tool(queue, workflow=BY_POSITION, approval={"required": True})
        adjuster = agent("adjuster", "settle")
        desk = team("desk", "adjuster", strategy="sequential")
        office = team("office", "desk", strategy="sequential")
        inline = {"team": "office", "input": "Pay.", "resources": [adjuster, desk, office, tool]}
        handle = await env.start("sequential", inline)
        while not (waiting := (await all_pending_decisions(env.client, queue=env.task_queue)).decisions):
            await asyncio.sleep(0.02)
        ((_, asked),) = waiting
        await approve(env.client.get_workflow_handle(asked.run), asked, arguments={"amount": 80})
        turn = await env.turn_result(handle)
    assert [each.content for each in turn.messages if each.role == "tool"] == ['{"amount":80,"currency":"EUR"}']
    assert turn.usage.tool_calls == 1


@pytest.mark.full
@pytest.mark.parametrize(("policy", "again"), [("AllowDuplicate", True), ("RejectDuplicate", False)])
async def test_a_reset_run_starts_the_workflow_again_only_if_its_policy_allows_it(
    env: Environment, policy: str, again: bool
) -> None:
    env.script(line("adjuster", SETTLE, "Settled."), line("adjuster", "Well."))
    async with settlements(env.client) as queue:
        settle = workflow_tool(queue, workflow={**BY_POSITION, "idReusePolicy": policy})
        handle = await start(env, settle)
        await handle.result()
        first = env.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        events = (await first.fetch_history()).events
        (initiated,) = [
            event.event_id
            for event in events
            if event.HasField("start_child_workflow_execution_initiated_event_attributes")
        ]
        before = max(point for point in await reset_points(first) if point < initiated - 1)
        (result,) = await results(env, await reset(env, first, before))
    settled = '{"amount":120,"currency":"EUR"}'
    refused = "Error: the workflow 'settle' was already started for this call, with the id "
    assert result == settled if again else result.startswith(refused)


async def test_a_tool_that_is_the_target_of_a_query_starts_its_workflow(env: Environment) -> None:
    async with settlements(env.client) as queue:
        tool = workflow_tool(queue, workflow=BY_POSITION)
        handle = await env.start_query([tool], "tool/settle", input='{"amount": 5}')
        assert (await env.status(handle)).message == '{"amount":5,"currency":"EUR"}'


async def test_a_call_counts_once_in_a_budget(env: Environment) -> None:
    env.script(line("adjuster", SETTLE, SETTLE, "Settled."))
    async with settlements(env.client) as queue:
        handle = await start(env, workflow_tool(queue, workflow=BY_POSITION), budget={"toolCalls": 1})
        turn = await env.turn_result(handle)
    events = (await handle.fetch_history()).events
    started = [event for event in events if event.HasField("child_workflow_execution_started_event_attributes")]
    assert (turn.stop_reason, len(started)) == ("budget", 1)


@pytest.mark.full
async def test_an_inline_tool_that_starts_a_workflow_is_refused(env: Environment, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    async with Environment.running(env.client, folder, variables={"BATON_INLINE_MANIFESTS": "no-secrets"}) as careful:
        status = await careful.status(await careful.start_query([workflow_tool("claims")], "tool/settle"))
    assert status.failure
    assert status.failure.type == "InvalidInput"
    assert "Tool/default/settle: spec.workflow: an inline Tool can't call workflows" in status.failure.message


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"workflow": None}, "spec.workflow: is missing: a tool of type 'workflow' needs {type}"),
        ({"workflow": {"type": "t", "arguments": ["amount", "to"]}}, "spec.workflow.arguments[1]: 'to' is not a"),
        ({"workflow": {"type": "t", "arguments": ["amount"]}}, "spec.workflow.arguments: 'currency' of inputSchema is"),
        ({"workflow": {"type": "t", "idReusePolicy": "Never"}}, "spec.workflow.idReusePolicy: 'Never' is unknown"),
        ({"workflow": {"type": "round-robin"}}, "spec.workflow.type: 'round-robin' is a workflow of Baton"),
        ({"workflow": {"type": "t", "heartbeatTimeout": "3s"}}, "spec.workflow.heartbeatTimeout: is not a field"),
        ({"workflow": {"type": "t"}, "activity": {"type": "t"}}, "spec.activity: can't be used for a tool of type"),
    ],
)
def test_combinations_that_make_no_sense_are_reported(tmp_path: Path, spec: Json, problem: str) -> None:
    given = {name: value for name, value in {"type": "workflow", "inputSchema": SCHEMA, **spec}.items() if value}
    problems = Writer(tmp_path).refusal(manifest("Tool", "t", given))
    assert any(f"Tool/default/t: {problem}" in each for each in problems), problems


@workflow.defn(name="handle-claim")
class HandleClaim:
    """A workflow of another application, which starts a query of Baton."""

    @workflow.run
    async def run(self, queue: str, query: Json) -> Any:
        own = workflow.info().workflow_id
        return await workflow.execute_child_workflow("query", query, id=f"{own}/query", task_queue=queue)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["result", "cancel"])
async def test_a_workflow_tool_works_below_a_workflow_of_another_application(env: Environment, end: str) -> None:
    env.script(line("adjuster", INSPECT, "Inspected."))
    async with settlements(env.client) as queue:
        tool = workflow_tool(queue, "inspect", "inspect")
        spec = {"input": "Why?", "targets": [{"type": "agent", "name": "adjuster"}]}
        query = {"name": "claim", "spec": spec, "resources": [agent("adjuster", "inspect"), tool]}
        claims = f"claims-{queue}"
        runner = UnsandboxedWorkflowRunner()
        async with Worker(env.client, task_queue=claims, workflows=[HandleClaim], workflow_runner=runner):
            claim = await env.client.start_workflow(
                "handle-claim", args=[env.task_queue, query], id=claims, task_queue=claims
            )
            await env.find_runs("WorkflowType = 'query'", 1)
            inspect = await waiting_for_workflow(env, env.client.get_workflow_handle(f"{claims}/query"))
            assert (await inspect.describe()).parent_id == f"{claims}/query"
            listed = [run.id for run in await recent_runs(env.client, None, 500)]
            assert f"{claims}/query" in listed
            assert not {inspect.id, claims} & {*listed}
            if end == "result":
                await inspect.signal("inspected", "a broken wheel")
                assert (await claim.result())["message"] == "Inspected."
                assert "a broken wheel of 120" in str(env.model.requests[-1])
            else:
                await claim.cancel()
                with pytest.raises(WorkflowFailureError):
                    await claim.result()
                with pytest.raises(WorkflowFailureError):
                    await inspect.result()
                assert (await inspect.describe()).status is WorkflowExecutionStatus.CANCELED


@pytest.mark.full
async def test_a_run_that_gets_long_while_its_workflow_runs_reads_the_result_before_it_continues_as_new(
    env_with_short_histories: Environment,
) -> None:
    env = env_with_short_histories
    env.script(line("adjuster", INSPECT, INSPECT, "Inspected."))
    async with settlements(env.client) as queue:
        handle = await start(env, workflow_tool(queue, "inspect", "inspect"))
        seen = []
        for report in ("a wheel", "a door"):
            inspect = await waiting_for_workflow(env, handle)
            while inspect.id in seen:
                inspect = await waiting_for_workflow(env, handle)
            seen.append(inspect.id)
            for number in range(30):
                await handle.execute_update("steer", {"text": f"{report} {number}"})
            assert (await inspect.describe()).status is WorkflowExecutionStatus.RUNNING
            await inspect.signal("inspected", report)
        assert await results(env, handle) == ["a wheel of 120", "a door of 120"]
        executions = await continued_runs(env, handle)
    started = [
        event.start_child_workflow_execution_initiated_event_attributes.workflow_id
        for execution in executions
        for event in execution.events
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]
    assert len(executions) > 1
    assert started == seen
