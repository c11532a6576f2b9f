"""Gateways of two Temporal namespaces with one journal and the same callers: what is of one is unknown to the other."""

import asyncio
import base64
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from a2a.types import (
    CancelTaskRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import TaskNotFoundError
from temporalio.client import Client

from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.operations.manifests import manifests_of_workers
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import connect
from baton.temporal.encryption import KEYS
from baton.testing import Reply
from tests.harness.environment import Environment, agent
from tests.harness.gateway import GatewayServer, Json
from tests.starter.gateway.test_a2a import a2a_client, message, started
from tests.starter.test_namespaces import other_namespace

KEY, OTHER_KEY = (f"{name}:{base64.b64encode(name.encode() * 8).decode()}" for name in ("mine", "else"))
"""The encryption key of the journal and of both namespaces, and one that is neither's."""

BODY = {"target": "agent/one", "input": "Where?"}


def answering(env: Environment) -> None:
    """Has the model say in which namespace it was asked, and how many messages it has received."""
    env.answer = lambda request: Reply(text=f"{env.client.namespace}: {len(request['messages'])}")


@pytest_asyncio.fixture(loop_scope="session")
async def gateways(
    client: Client, server: EmbeddedServer, tmp_path: Path, journal_url: str
) -> AsyncIterator[list[GatewayServer]]:
    """Gateways of two namespaces, with encryption; their workers have the same manifests."""
    loaded = load_documents([Document("manifests.yaml", agent("one"), {})])
    namespaces = [(await other_namespace(client, server)).namespace for _ in range(2)]  # runs that others cannot read
    async with contextlib.AsyncExitStack() as stack:
        gateways = []
        converter = (await connect(server.address, {KEYS: KEY})).data_converter
        for namespace in namespaces:
            keyed = await Client.connect(server.address, namespace=namespace, data_converter=converter)
            folder = tmp_path / namespace
            folder.mkdir()
            env = await stack.enter_async_context(
                Environment.running(keyed, folder, loaded, journal_url, encryption_keys=KEY)
            )
            answering(env)
            while not (await manifests_of_workers(keyed, env.worker_env)).is_complete:
                await asyncio.sleep(0.05)
            private = {"BATON_ALLOW_PRIVATE_HOSTS": "1"}
            gateways.append(await stack.enter_async_context(GatewayServer.running(env, **private)))
        yield gateways


async def finished(gateway: GatewayServer, body: Json = BODY, **headers: str) -> tuple[str, str]:
    """The id and the answer of a run that a request with these headers has started."""
    run = (await gateway.post("/runs", body, 201, **headers))["id"]
    await gateway.finished(run)
    return run, (await gateway.get(f"/runs/{run}"))["status"]["message"]


async def test_one_idempotency_key_starts_a_run_in_each_namespace_with_a_conversation_of_its_own(
    gateways: list[GatewayServer],
) -> None:
    key = uuid.uuid4().hex
    body = {**BODY, "conversation": key}
    first = [await finished(gateway, body, idempotency_key=key) for gateway in gateways]
    assert first[0][0] == first[1][0], "the ids are the same, as the callers are"
    for gateway, (run, answer) in zip(gateways, first, strict=True):
        namespace = gateway.env.client.namespace  # each conversation has the turns of one namespace
        assert answer == f"{namespace}: 2"
        assert await finished(gateway, body, idempotency_key=key) == (run, answer)
        assert (await finished(gateway, body))[1] == f"{namespace}: 4"


async def test_no_protocol_shows_what_is_of_the_other_namespace(gateways: list[GatewayServer]) -> None:
    here, there = gateways
    run, _ = await finished(here)
    for path in (f"/runs/{run}", f"/runs/{run}/events", f"/v1/responses/resp_{run}"):
        assert (await there.http.get(path)).status_code == 404, path
    response = await here.post("/v1/responses", {"model": "agent/one", "input": "Where?"})
    assert (await here.get(f"/v1/responses/{response['id']}"))["status"] == "completed"
    assert (await there.http.get(f"/v1/responses/{response['id']}")).status_code == 404
    follow_up = {"model": "agent/one", "input": "And?", "previous_response_id": response["id"]}
    assert (await there.http.post("/v1/responses", json=follow_up)).status_code in (400, 404)
    assert (await here.post("/v1/responses", follow_up))["status"] == "completed"
    name = f"asked-{uuid.uuid4().hex}"
    query = {"name": name, "input": "?", "target": {"type": "agent", "name": "one"}}
    assert (await here.http.post("/v1/queries", json=query)).is_success
    assert (await there.http.get(f"/v1/queries/{name}")).status_code == 404
    assert (await there.http.post("/v1/queries", json=query)).is_success, "the name is free there"
    while run not in str(await here.get("/runs")):  # Temporal lists a run a moment after its start
        await asyncio.sleep(0.05)
    assert run not in str(await there.get("/runs"))


async def test_tasks_and_push_notifications_of_one_namespace_are_unknown_in_the_other(
    gateways: list[GatewayServer],
) -> None:
    here, there = gateways
    async with a2a_client(here, "agent/one") as own, a2a_client(there, "agent/one") as other:
        here.env.answer = lambda _: Reply(hang=True)
        task = await started(own, message("Where?"))
        config = TaskPushNotificationConfig(task_id=task.id, id="mine", url="http://127.0.0.1:1/hook")
        await own.create_task_push_notification_config(config)
        with pytest.raises(TaskNotFoundError):
            await other.get_task(GetTaskRequest(id=task.id))
        asked = GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        assert (await own.get_task_push_notification_config(asked)).url == config.url
        with pytest.raises(TaskNotFoundError):
            await other.get_task_push_notification_config(asked)
        while task.id not in {each.id for each in (await own.list_tasks(ListTasksRequest())).tasks}:
            await asyncio.sleep(0.05)  # Temporal lists a run a moment after its start
        assert not (await other.list_tasks(ListTasksRequest())).tasks
        await own.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_gateway_without_the_key_shows_nothing_and_does_not_fail(gateways: list[GatewayServer]) -> None:
    here, _ = gateways
    run, _ = await finished(here)
    address = here.env.client.service_client.config.target_host
    converter = (await connect(address, {KEYS: OTHER_KEY})).data_converter
    other = await Client.connect(address, namespace=here.env.client.namespace, data_converter=converter)
    env = dataclasses.replace(here.env, client=other, encryption_keys=OTHER_KEY)
    async with GatewayServer.running(env) as gateway:
        await gateway.get(f"/runs/{run}", 404)
        refused = await gateway.post("/runs", BODY, 503)
        assert refused["error"]["code"] == "unavailable"
