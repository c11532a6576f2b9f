"""A2A: the clients of the protocol's SDK, in both versions and bindings, before one or two gateways."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client import Client as A2AClient
from a2a.types import (
    AgentCard,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from temporalio.client import Client

from baton.resources.documents import Document
from baton.resources.loader import load_documents
from tests.harness.environment import Environment, Json, agent, line, manifest, team
from tests.harness.gateway import GatewayServer

SHOP = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {}})
INTERVIEW = manifest(
    "Team",
    "interview",
    {
        "strategy": "sequential",
        "members": [{"name": "guest", "type": "human", "prompt": "Who?"}, {"name": "one", "type": "agent"}],
    },
)
MANIFESTS = [
    agent("one"),
    agent("two"),
    team("duo", "one", "two", maxTurns=1, onMaxTurns="complete"),
    agent("buyer", "order"),
    agent("shop"),
    SHOP,
    team("desk", "buyer", strategy="sequential"),
    INTERVIEW,
]
INTERFACES = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")]

Events = list[StreamResponse]


@pytest_asyncio.fixture(loop_scope="session")
async def served_env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """An environment with the team and the agents of the tests."""
    loaded = load_documents([Document("manifests.yaml", each, {}) for each in MANIFESTS])
    async with Environment.running(client, tmp_path, loaded) as env:
        yield env


async def card_of(gateway: GatewayServer, target: str, key: str = "") -> AgentCard:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    resolver = A2ACardResolver(gateway.http, f"{gateway.url}/a2a/{target}")
    return await resolver.get_agent_card(http_kwargs={"headers": headers})


@contextlib.asynccontextmanager
async def a2a_client(
    gateway: GatewayServer,
    target: str,
    binding: str = "JSONRPC",
    version: str = "1.0",
    *,
    streaming: bool = True,
    key: str = "",
) -> AsyncIterator[A2AClient]:
    """A client for an interface in the card of a target."""
    card = await card_of(gateway, target, key)
    chosen = [
        each
        for each in card.supported_interfaces
        if (each.protocol_binding, each.protocol_version) == (binding, version)
    ]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(chosen)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=60, headers=headers) as http:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], streaming=streaming)
        yield ClientFactory(config).create(card)


def message(text: str, task: Task | None = None, **more: Any) -> Message:
    given = {"message_id": uuid.uuid4().hex, "task_id": task.id if task else "", **more}
    return Message(role=Role.ROLE_USER, parts=[Part(text=text)], **given)


def data(value: Json, task: Task) -> Message:
    made = message("", task)
    del made.parts[:]
    made.parts.append(Part(data=ParseDict(value, Value())))
    return made


async def send(client: A2AClient, sent: Message, *, waits: bool = True) -> Events:
    configuration = SendMessageConfiguration(return_immediately=not waits)
    return [event async for event in client.send_message(SendMessageRequest(message=sent, configuration=configuration))]


def task_of(events: Events) -> Task:
    return next(event.task for event in reversed(events) if event.HasField("task"))


def said(events: Events) -> list[str]:
    updates = [event.status_update.status.message for event in events if event.HasField("status_update")]
    return [part.text for each in updates for part in each.parts if part.text]


def states(events: Events) -> list[str]:
    return [TaskState.Name(event.status_update.status.state) for event in events if event.HasField("status_update")]


def answer(task: Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


@pytest.mark.parametrize(("binding", "version"), INTERFACES)
async def test_a_team_answers_in_every_binding_and_version(gateway: GatewayServer, binding: str, version: str) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    async with a2a_client(gateway, "team/duo", binding, version) as client:
        events = await send(client, message("Why?"))
        assert events[0].HasField("task")
        assert said(events) == ["a", "b"]
        assert states(events)[-1] == "TASK_STATE_COMPLETED"
        task = await client.get_task(GetTaskRequest(id=task_of(events).id))
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        assert [each.parts[0].text for each in task.history] == ["Why?", "a", "b"]
        assert answer(task) == "b"
        last = await client.get_task(GetTaskRequest(id=task.id, history_length=1))
        assert [each.parts[0].text for each in last.history] == ["b"]


@pytest.mark.parametrize(("binding", "version"), INTERFACES)
async def test_a_message_without_a_stream_waits_for_the_answer_or_does_not(
    gateway: GatewayServer, binding: str, version: str
) -> None:
    gateway.env.script(line("one", "a", "c"))
    async with a2a_client(gateway, "agent/one", binding, version, streaming=False) as client:
        task = task_of(await send(client, message("Why?")))
        assert (task.status.state, answer(task)) == (TaskState.TASK_STATE_COMPLETED, "a")
        task = task_of(await send(client, message("Why?"), waits=False))
        assert task.status.state in (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
