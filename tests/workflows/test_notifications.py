"""``spec.notify``: webhooks get each event once, signed, even after the end of the run, and never hold it up."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

from baton.contracts.decisions import ApproveRequest
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.runs.decisions import decide, pending_decisions
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team
from tests.harness.tool_server import Answer, Seen, ToolServer

KEY = "whsec_" + base64.b64encode(b"a key of the receiver and the worker").decode()


@pytest_asyncio.fixture(loop_scope="session")
async def hook() -> AsyncIterator[ToolServer]:
    """The receiver of notifications."""
    with ToolServer().serving() as server:
        yield server


def query(hook: ToolServer, **spec: Any) -> Json:
    """A query of the worker's files, whose Secret has the key of the signatures."""
    key = {"valueFrom": {"secretKeyRef": {"name": "hook", "key": "key"}}}
    webhook = {"url": hook.url + "/hook", "events": ["started", "waiting", "ended"], "secret": key}
    return manifest(
        "Query", "ask", {"input": "Why?", "target": {"type": "agent", "name": "one"}, "notify": [webhook], **spec}
    )


SECRET: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hook"}, "stringData": {"key": KEY}}


async def start(env: Environment) -> Handle:
    return await env.start("query", {"name": "ask"})


async def seen(hook: ToolServer, count: int) -> list[Seen]:
    """The first requests, once there are so many."""
    while len(hook.seen) < count:
        await asyncio.sleep(0.02)
    return hook.seen


def verified(request: Seen) -> Json:
    """The event of a request whose signature is that of the key."""
    headers = request.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{request.body}".encode()
    secret = base64.b64decode(KEY.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    event: Json = json.loads(request.body)
    assert event["id"] == headers["webhook-id"]
    return event


async def deliveries(env: Environment, handle: Handle) -> list[Handle]:
    """The workflows that deliver the events of a run."""
    found = env.client.list_workflows(f"WorkflowType = 'notify' AND ParentWorkflowId = '{handle.id}'")
    return [env.client.get_workflow_handle(each.id) async for each in found]


async def test_the_beginning_and_the_end_of_a_run_are_told_once_and_signed(env: Environment, hook: ToolServer) -> None:
    async with env.with_manifests([agent("one"), query(hook), SECRET]) as own:
        own.script(line("one", "Because."))
        handle = await start(own)
        await handle.result()
        events = {event["type"]: event for event in map(verified, await seen(hook, 2))}
        assert [*sorted(events)] == ["baton.run.ended", "baton.run.started"]
        ended = events["baton.run.ended"]
        assert ended["specversion"] == "1.0"
        assert ended["source"] == "/namespaces/default/queries/ask"
        assert ended["subject"] == handle.id
        assert ended["data"]["phase"] == "Completed"
        assert ended["data"]["message"] == "Because."
        assert ended["data"]["tokenUsage"]["modelCalls"] == 1
        for each in await deliveries(own, handle):
            assert await each.result() == {"delivered": 1}
            assert KEY.removeprefix("whsec_") not in str(await each.fetch_history())
        assert KEY.removeprefix("whsec_") not in str(await handle.fetch_history())
        assert len(hook.seen) == 2


@pytest.mark.full
async def test_an_event_is_sent_again_with_its_id_until_it_is_accepted(env: Environment, hook: ToolServer) -> None:
    hook.answers(Answer(status=500), Answer(status=503, headers={"retry-after": "0"}), Answer(status=204))
    notify = [{"url": hook.url, "events": ["ended"]}]
    async with env.with_manifests([agent("one"), query(hook, notify=notify), SECRET]) as own:
        own.script(line("one", "Because."))
        handle = await start(own)
        await handle.result()  # the run does not wait
        requests = await seen(hook, 3)
        assert len({request.headers["webhook-id"] for request in requests}) == 1
        assert "webhook-signature" not in requests[0].headers
        assert (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED


@pytest.mark.full
async def test_a_webhook_that_is_gone_is_not_called_again_and_the_run_completes(
    env: Environment, hook: ToolServer
) -> None:
    hook.answers(Answer(status=410))
    async with env.with_manifests([agent("one"), query(hook), SECRET]) as own:
        own.script(line("one", {"text": "Because.", "delay": 0.2}))
        handle = await start(own)
        assert (await own.status(handle)).phase == "Completed"
        await seen(hook, 2)
        for each in await deliveries(own, handle):
            try:
                await each.result()
            except WorkflowFailureError as error:
                assert "answered HTTP 410" in str(error.cause.__cause__)
        assert len(hook.seen) == 2


async def test_a_run_below_that_waits_for_a_person_is_told(env: Environment, hook: ToolServer) -> None:
    asks = {"type": "agent", "agent": {"name": "expert"}, "approval": {"required": True}}
    target = {"type": "team", "name": "duo"}
    notify = [{"url": hook.url, "events": ["waiting"]}]
    manifests = [agent("one", "ask"), agent("expert"), manifest("Tool", "ask", asks)]
    manifests += [team("duo", "one", strategy="sequential"), query(hook, target=target, notify=notify)]
    async with env.with_manifests(manifests) as own:
        own.script(line("one", call("ask", input="Why?"), "Done."), line("expert", "Because."))
        handle = await start(own)
        [request] = await seen(hook, 1)
        event = json.loads(request.body)
        assert event["type"] == "baton.run.waiting"
        assert event["data"]["phase"] == "InputRequired"
        assert event["data"]["runs"] == [f"{handle.id}/target-1/duo"]
        [decision] = await pending_decisions(own.client, handle.id, None)
        await decide(own.client, handle, ApproveRequest(call=decision.id, approved=True))
        await handle.result()
        assert len(hook.seen) == 1


async def test_a_canceled_run_tells_its_end(env: Environment, hook: ToolServer) -> None:
    async with env.with_manifests([agent("one"), query(hook), SECRET]) as own:
        own.script(line("one", {"text": "late", "delay": 60}))
        handle = await start(own)
        await own.wait_for_calls(1)
        await handle.cancel()
        events = {event["type"]: event for event in map(verified, await seen(hook, 2))}
        assert events["baton.run.ended"]["data"]["phase"] == "Canceled"


async def test_an_inline_query_calls_no_private_address_and_uses_no_secrets(
    client: Client, tmp_path: Path, hook: ToolServer
) -> None:
    loaded = load_documents([Document("own.yaml", each, {}) for each in (agent("one"), SECRET)])
    async with Environment.running(client, tmp_path, loaded) as env:
        env.inline_manifests = "no-secrets"
        async with env.with_manifests([agent("one"), SECRET]) as own:
            own.script(line("one", "Because."))
            spec = query(hook)["spec"]
            refused = await own.start("query", {"name": "ask", "spec": spec})
            status = await own.status(refused)
            assert status.phase == "Failed"
            assert "can't use Secrets of the worker" in str(status.error)
            spec = {**spec, "notify": [{"url": hook.url, "events": ["ended"]}]}
            handle = await own.start("query", {"name": "ask", "spec": spec})
            assert (await own.status(handle)).phase == "Completed"
            [delivery_id] = await own.find_runs("WorkflowType = 'notify'", 1)
            delivery = own.client.get_workflow_handle(delivery_id)
            try:
                await delivery.result()
                raise AssertionError("it was delivered")
            except WorkflowFailureError as error:
                assert "in the worker's own network" in str(error.cause.__cause__)
            assert hook.seen == []
