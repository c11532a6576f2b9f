"""Messages that nobody can read don't hold a run up: they are passed over, and the next ones count."""

import asyncio
import json
import uuid
from collections.abc import Mapping

import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest, StartWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from baton.testing import Reply
from tests.harness.environment import Environment, Handle, agent, team

TEAM = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=50)]

REFERENCE = {"driver_name": "baton-journal", "driver_claim": {"claim_data": {"sha": "../x"}}}
MADE_UP = {"driver_name": "baton-journal", "driver_claim": {"claim_data": {"sha": "a" * 64}}}
UNREADABLE: dict[str, Payload] = {
    "made up": Payload(metadata={"encoding": b"json/external-storage-reference"}, data=json.dumps(MADE_UP).encode()),
    "no reference": Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b'{"x":1}'),
    "no JSON": Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b"\xff"),
    "of no driver": Payload(
        metadata={"encoding": b"json/external-storage-reference"},
        data=json.dumps({"driver_name": "x", "driver_claim": {"claim_data": {}}}).encode(),
    ),
    "to no value": Payload(
        metadata={"encoding": b"json/external-storage-reference"}, data=json.dumps(REFERENCE).encode()
    ),
    "marked": Payload(
        metadata={"encoding": b"json/plain", "__temporal_external_storage_reference": b"true"}, data=b'{"x":1}'
    ),
    "encrypted without a key's id": Payload(metadata={"encoding": b"binary/encrypted"}, data=b"x"),
    "encrypted with what is no id": Payload(
        metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"\xff\n"}, data=b"x"
    ),
    "too short to be encrypted": Payload(
        metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"of-another-worker"}, data=b"x"
    ),
    "of an unknown encoding": Payload(metadata={"encoding": b"binary/zlib"}, data=b"x"),
    "without an encoding": Payload(data=b"x"),
    "deep JSON": Payload(metadata={"encoding": b"json/plain"}, data=b"[" * 100_000),
}


async def signal(env: Environment, handle: Handle, name: str, *payloads: Payload) -> None:
    """Sends a signal with payloads as they are."""
    await env.client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=env.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            signal_name=name,
            input=Payloads(payloads=payloads),
        )
    )


@pytest.mark.full
@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("name", ["pause", "nonsense"])
async def test_a_signal_that_nobody_can_read_does_not_keep_a_run_from_being_ended(
    env: Environment, kind: str, name: str
) -> None:
    handle = await env.start_team(TEAM)
    await env.wait_for_calls(1)
    await signal(env, handle, name, UNREADABLE[kind])
    await handle.signal("terminate_team", {"reason": "enough", "now": True})
    turn = await asyncio.wait_for(env.turn_result(handle), 60)
    assert turn.ended is not None


NOW = Payload(metadata={"encoding": b"json/plain"}, data=b'{"reason": "enough", "now": true}')


@pytest.mark.parametrize("payloads", [(), (UNREADABLE["without an encoding"],), (NOW, NOW), (NOW, NOW, NOW)], ids=len)
async def test_a_team_is_terminated_by_none_one_or_several_payloads(
    env: Environment, payloads: tuple[Payload, ...]
) -> None:
    """Of several payloads the first one counts; without any that can be read the team ends gracefully."""
    handle = await env.start_team(TEAM)
    await env.wait_for_calls(1)
    await signal(env, handle, "terminate_team", *payloads)
    turn = await asyncio.wait_for(env.turn_result(handle), 60)
    assert (turn.stop_reason, turn.note) == ("terminated", "enough" if len(payloads) > 1 else None)


async def test_several_payloads_of_which_one_is_unreadable_do_not_hold_a_run_up(env: Environment) -> None:
    """The SDK drops such a signal."""
    handle = await env.start_team(TEAM)
    await env.wait_for_calls(1)
    await signal(env, handle, "terminate_team", NOW, UNREADABLE["without an encoding"])
    await signal(env, handle, "terminate_team", NOW)
    turn = await asyncio.wait_for(env.turn_result(handle), 60)
    assert turn.stop_reason == "terminated"


async def test_the_signals_of_a_run_are_listed_with_descriptions(env: Environment) -> None:
    """Temporal's UI offers them, and says of any other that it is ignored."""
    env.answer = lambda _: Reply(text="Yes.")
    handle = await env.start_team([*TEAM[:2], team("team", "one", "two", strategy="sequential")])
    await env.turn_result(handle)
    shown = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    described = {each.name: each.description for each in shown.definition.signal_definitions}
    assert {"terminate_team", "cancel", "pause", "resume", "steer", "session"} <= set(described)
    assert all(described.values())


async def test_a_signal_of_an_unknown_name_is_ignored_and_the_log_says_so(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await env.start_team(TEAM)
    await env.wait_for_calls(1)
    await handle.signal("terminate_taem", {"now": True})
    while "'terminate_taem' is ignored" not in caplog.text:
        await asyncio.sleep(0.05)
    assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    await handle.signal("terminate_team", {"now": True})
    await env.turn_result(handle)


@pytest.mark.full
@pytest.mark.parametrize("kind", UNREADABLE)
async def test_a_run_with_an_input_that_nobody_can_read_fails_at_once(env: Environment, kind: str) -> None:
    run = f"unreadable-{uuid.uuid4().hex[:8]}"
    request = StartWorkflowExecutionRequest(
        namespace=env.client.namespace, workflow_id=run, request_id=run, input=Payloads(payloads=[UNREADABLE[kind]])
    )
    request.workflow_type.name = "round-robin"
    request.task_queue.name = env.task_queue
    await env.client.workflow_service.start_workflow_execution(request)
    handle = env.client.get_workflow_handle(run)
    status: Mapping[str, object] = {}
    async with asyncio.timeout(60):
        with pytest.raises(Exception, match="failed"):
            status = await handle.result()
    assert not status


async def test_a_run_that_waits_for_the_key_of_a_message_is_ended_by_temporal(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await env.start_team(TEAM)
    await env.wait_for_calls(1)
    metadata = {"encoding": b"binary/encrypted", "encryption-key-id": b"of-another-worker"}
    await signal(env, handle, "pause", Payload(metadata=metadata, data=b"x" * 100))
    while "this is encrypted with the key 'of-another-worker'" not in caplog.text:
        await asyncio.sleep(0.05)
    assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    await handle.terminate()
    assert (await handle.describe()).status == WorkflowExecutionStatus.TERMINATED
