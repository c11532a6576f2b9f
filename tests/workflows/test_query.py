"""Queries: several targets, each with its own result; phases, timeouts and what a client in any language may send."""

import asyncio
import time
import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.harness.environment import KEY, Environment, agent, call, line, team, texts

THREE = [agent("one"), agent("two"), agent("three")]


async def test_each_target_has_its_own_response_in_the_order_written(env: Environment) -> None:
    env.script(line("one", {"text": "slow", "delay": 0.5}), line("two", "quick"), line("three", "soon"))
    handle = await env.start_query(
        [*THREE, team("team", "three", maxTurns=1, onMaxTurns="complete")], "agent/one", "team/team", "agent/two"
    )
    status = await env.status(handle)
    assert status.phase == "Completed"
    assert [(each.target.type, each.target.name, each.message, each.status) for each in status.responses] == [
        ("agent", "one", "slow", "Success"),
        ("team", "team", "soon", "Success"),
        ("agent", "two", "quick", "Success"),
    ]
    assert status.message == "one:\nslow\n\nteam:\nsoon\n\ntwo:\nquick"
    assert status.token_usage.model_calls == 3


async def test_a_query_fails_when_a_target_fails_and_keeps_every_answer(env: Environment) -> None:
    env.script(line("one", "fine"), line("two", {"status": 400, "text": "broken"}), line("three", "good"))
    status = await env.status(await env.start_query(THREE, "agent/one", "agent/two", "agent/three"))
    assert (status.phase, status.stop_reason) == ("Failed", "failed")
    assert [each.status for each in status.responses] == ["Success", "Failed", "Success"]
    assert status.responses[1].error == f"gpt-4.1-mini at {env.model_host} answered HTTP 400: broken"
    assert status.error == f"1 of 3 targets failed: two: {status.responses[1].error}"
    assert status.failure is not None
    assert (status.failure.type, status.failure.target) == ("ModelRejected", "agent/two")
    assert status.message == f"Error: {status.error}"
    assert status.said == "one:\nfine\n\nthree:\ngood"


async def test_with_fail_fast_the_first_failure_cancels_the_other_targets(env: Environment) -> None:
    env.script(line("one", {"text": "late", "delay": 100}), line("two", {"status": 400, "text": "no"}))
    begun = time.monotonic()
    status = await env.status(await env.start_query(THREE, "agent/one", "agent/two", failFast=True))
    assert time.monotonic() - begun < 60
    assert status.phase == "Failed"
    assert [(each.status, each.stop_reason, each.error) for each in status.responses] == [
        ("Failed", "canceled", "the run of one was canceled"),
        ("Failed", "failed", f"gpt-4.1-mini at {env.model_host} answered HTTP 400: no"),
    ]


async def test_a_timeout_counts_for_the_whole_query_and_keeps_what_was_said(env: Environment) -> None:
    env.script(line("one", "one 1"), line("two", {"text": "late", "hang": True}))
    manifests = [*THREE, team("team", "one", "two", maxTurns=5)]
    for seconds in ("1.5", "15"):  # a busy machine may need more than the first until somebody has spoken
        status = await env.status(await env.start_query(manifests, "team/team", timeout=f"{seconds}s"))
        assert (status.phase, status.stop_reason) == ("Failed", "timeout")
        assert status.error == f"the query took longer than its timeout of {seconds} s"
        if status.said:
            break
    assert status.failure is not None
    assert (status.failure.family, status.failure.type) == ("TimeoutError", "QueryTimeout")
    assert (status.responses[0].status, status.responses[0].stop_reason) == ("Failed", "timeout")
    assert texts(status.responses[0].messages) == ["one 1"]


@pytest.mark.parametrize("limit", ["99999999999h", "0s", "soon", "-5m"])
async def test_a_timeout_that_is_no_usable_duration_fails_the_query_before_any_model_is_asked(
    env: Environment, limit: str
) -> None:
    async with asyncio.timeout(60):
        status = await env.status(await env.start_query(THREE, "agent/one", timeout=limit))
    assert status.failure is not None
    assert status.failure.type == "InvalidManifest"
    assert "spec.timeout: is not a" in status.failure.message
    assert env.model.requests == []


async def test_max_turns_of_a_target_fails_the_query_with_everything_said(env: Environment) -> None:
    env.script(line("one", "one 1", "one 2"))
    status = await env.status(await env.start_query([*THREE, team("team", "one", maxTurns=2)], "team/team"))
    assert (status.phase, status.stop_reason) == ("Failed", "max_turns")
    assert status.error == "team round-robin MaxTurns reached team"
    assert (status.message, status.said) == (f"Error: {status.error}", "one 2")
    assert texts(status.responses[0].messages) == ["one 1", "one 2"]


async def test_a_query_that_nobody_could_answer_says_so_in_its_message(env: Environment) -> None:
    env.script(line("one", {"status": 401, "text": f"Incorrect API key provided: {KEY}"}))
    status = await env.status(await env.start_query(THREE, "agent/one"))
    assert status.message == f"Error: gpt-4.1-mini at {env.model_host} rejected the API key (HTTP 401)"
    assert status.failure is not None
    assert (status.failure.family, status.failure.type) == ("AuthenticationError", "KeyRefused")


async def test_the_seeds_spelling_of_a_query_with_a_team_runs(env: Environment) -> None:
    env.script(line("one", "hello"))
    spec = {"input": "Why?", "team": {"name": "team"}}
    brought = [agent("one"), team("team", "one", strategy="sequential")]
    status = await env.status(await env.start("query", {"spec": spec, "resources": brought}))
    assert (status.phase, status.message) == ("Completed", "hello")
    assert status.responses[0].target.name == "team"


async def test_a_running_query_shows_its_status(env: Environment) -> None:
    env.script(line("one", "quick"), line("two", {"text": "slow", "held": True}))
    handle = await env.start_query(THREE, "agent/one", "agent/two")
    status: dict[str, Any] = {"responses": [{}]}
    while not status["responses"] or status["responses"][0].get("status") != "Success":
        status = await handle.query("status")
    assert status["phase"] == "Running"
    assert [each["status"] for each in status["responses"]] == ["Success", "Running"]
    env.model.release()
    assert (await env.status(handle)).phase == "Completed"


BAD = [
    ("query", {}, 'a query needs {"spec": {...}} or {"name": "..."}'),
    ("query", "just text", "the input: is text, must be a mapping"),
    ("query", None, "the input: is empty, must be a mapping"),
    (
        "query",
        {"name": "nobody"},
        "Query default/nobody is neither in the run's manifests nor in its worker's; known: none",
    ),
    ("query", {"spec": {"inptu": "x", "targets": []}}, "spec.inptu: is not a field of Query; did you mean 'input'?"),
    ("query", {"spec": {"input": "x", "targets": [{"type": "agent", "name": "nobody"}]}}, "Agent default/nobody"),
    ("query", {"spec": {"input": 5, "team": {"name": "x"}}}, "spec.input: is a number, must be text"),
    ("round-robin", {"team": "nobody", "input": "x"}, "Team default/nobody is neither"),
    ("round-robin", {"team": "x"}, 'a turn needs {"input": "text"}'),
    ("round-robin", {"input": "x"}, 'a turn needs one of {"team": "name"}, {"agent": …}, {"model": …} or {"tool": …}'),
    ("round-robin", {"team": ["x"], "input": "x"}, "team: is a list, must be text"),
    (
        "sequential",
        {"team": "t", "input": "x", "resources": [agent("one"), team("t", "one", maxTurns=1)]},
        "Team/default/t needs the workflow type 'round-robin', not 'sequential'",
    ),
    (
        "round-robin",
        {"team": "t", "input": "x", "resources": [agent("one"), team("t", "one")]},
        "no member agent can terminate",
    ),
    (
        "round-robin",
        {"agent": "one", "input": "x", "resources": [agent("one")]},
        "Agent/default/one needs the workflow type 'agent', not 'round-robin'",
    ),
    (
        "agent",
        {"agent": "one", "input": "x", "resources": [agent("one", executionEngine={"name": "a2a"})]},
        "metadata.annotations: is missing: the annotation 'a2a.server/name' names the agent's A2AServer",
    ),
]


@pytest.mark.parametrize(("workflow", "given", "says"), BAD, ids=[f"{n}" for n in range(len(BAD))])
async def test_bad_json_fails_the_run_at_once_with_a_clear_error(
    env: Environment, workflow: str, given: Any, says: str
) -> None:
    begun = time.monotonic()
    handle = await env.start(workflow, given)
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert time.monotonic() - begun < 60
    assert isinstance(failure.value.cause, ApplicationError)
    assert says in failure.value.cause.message
    assert not env.model.requests


@pytest.mark.parametrize(
    "secret",
    [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": KEY}},
        {
            "apiVersion": "ark.mckinsey.com/v1alpha1",
            "kind": "Model",
            "metadata": {"name": "m"},
            "spec": {"type": "openai", "model": {"value": "m"}, "config": {"openai": {"apiKey": {"value": KEY}}}},
        },
    ],
    ids=["a-secret", "a-key-spelled-out"],
)
async def test_a_run_may_not_bring_secrets(env: Environment, secret: dict[str, Any]) -> None:
    handle = await env.start("agent", {"agent": "one", "input": "x", "resources": [agent("one"), secret]})
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, ApplicationError)
    assert "can't contain Secrets" in failure.value.cause.message


def payload(data: bytes, encoding: bytes | None = b"json/plain") -> Payload:
    return Payload(metadata={"encoding": encoding} if encoding else {}, data=data)


@pytest.mark.parametrize(
    "payloads",
    [
        pytest.param([], id="nothing"),
        pytest.param([payload(b'{"name": "q"}'), payload(b"{}")], id="two"),
        pytest.param([payload(b"{no json")], id="no-json"),
        pytest.param([payload(b"\x00\x01", b"binary/plain")], id="bytes"),
        pytest.param([payload(b"x", b"json/encrypted")], id="unknown"),
        pytest.param([payload(b"{}", None)], id="without-encoding"),
    ],
)
@pytest.mark.parametrize("workflow", ["query", "round-robin"])
async def test_an_input_that_nobody_can_read_fails_the_run_at_once(
    env: Environment, workflow: str, payloads: list[Payload]
) -> None:
    name = uuid.uuid4().hex
    await env.client.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace="default",
            workflow_id=name,
            workflow_type=WorkflowType(name=workflow),
            task_queue=TaskQueue(name=env.task_queue),
            input=Payloads(payloads=payloads),
            request_id=name,
        ),
        retry=True,
    )
    handle = env.client.get_workflow_handle(name)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == "InvalidInput"


async def test_a_run_that_was_refused_says_so_when_asked_how_it_stands(env: Environment) -> None:
    handle = await env.start("query", {"spec": {"inptu": "x"}})
    assert (await env.status(handle)).phase == "Failed"
    status = await handle.query("status")
    assert (status["phase"], status["failure"]["type"]) == ("Failed", "InvalidManifest")
    team = await env.start("round-robin", {"team": "x"})
    with pytest.raises(WorkflowFailureError):
        await team.result()
    assert (await team.query("status"))["phase"] == "Failed"


@pytest.mark.slow
async def test_a_status_stays_within_temporals_limits_however_much_was_said(env: Environment) -> None:
    env.script(*(line(name, "汉" * 60_000) for name in ("one", "two", "three")))
    status = await env.status(await env.start_query(THREE, *(f"agent/{n}" for n in ("one", "two", "three"))))
    assert status.phase == "Completed"
    assert len(status.model_dump_json()) < 1_000_000
    assert "… [truncated" in status.message
    assert "… [truncated" in status.responses[0].message


async def test_the_reason_for_an_end_is_cut_where_it_is_too_long(env: Environment) -> None:
    env.script(line("one", {"text": "slow", "hang": True}))
    handle = await env.start_query(THREE, "agent/one")
    await env.wait_for_calls(1)
    await handle.signal("cancel", "x" * 1_500_000)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert "… [truncated" in (await handle.query("status"))["note"]


@pytest.mark.full
async def test_a_message_with_many_long_tool_calls_is_no_trouble(env: Environment) -> None:
    env.script(line("one", {"calls": call("noop", message="y" * 60_000)["calls"] * 40}, "Done."))
    manifest = agent("one", "noop", parallelToolCalls=True)
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": [manifest]}))
    assert turn.message == "Done."
    assert turn.usage.tool_calls == 40


async def test_a_target_that_is_canceled_by_itself_fails_the_query(env: Environment) -> None:
    env.script(line("one", {"text": "late", "delay": 30}), line("two", "quick"))
    handle = await env.start_query(THREE, "agent/one", "agent/two")
    await env.wait_for_calls(2)
    await env.client.get_workflow_handle(f"{handle.id}/target-1/one").cancel()
    status = await env.status(handle)
    assert (status.phase, status.responses[0].error) == ("Failed", "the run of one was canceled")
    assert status.responses[1].message == "quick"


async def test_a_query_that_is_ended_while_its_team_fails_counts_as_failed(env: Environment) -> None:
    env.script(line("one", {"held": True, "status": 400, "text": "no"}))
    handle = await env.start_query([agent("one"), team("team", "one", maxTurns=3)], "team/team")
    await env.wait_for_calls(1)
    await handle.signal("terminate_team", "enough")
    env.model.release()
    status = await env.status(handle)
    assert (status.phase, status.stop_reason) == ("Failed", "failed")
